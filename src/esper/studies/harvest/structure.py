"""Structure of a grown network: its seeds, its scores, and the run it comes from. Importing this needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from esper.common.score_scale import ScoreScale
from esper.common.system.disk import check_writable, read_regular
from esper.recordings.events.codec import DECODE_ERRORS

WEIGHTS_FILE = "weights.safetensors"
STRUCTURE_FILE = "structure.json"
CARD_FILE = "README.md"
PROGRAM_FILE = "program.pt2"
_FILES = frozenset({WEIGHTS_FILE, STRUCTURE_FILE, CARD_FILE, PROGRAM_FILE})

STRUCTURE_FORMAT = 1
MAX_STRUCTURE_BYTES = 1 << 20
MAX_CHANNELS = 1 << 20
"""Maximum number of channels of a seed, far above that of any host. A larger number in a file is damage."""


class HarvestError(Exception):
    """A grown network cannot be written or read: a file is missing or damaged, or does not fit the task.

    The message is one sentence: what, why, and what to do.
    """


class GrownSeed(msgspec.Struct, frozen=True, kw_only=True):
    """A seed of a grown network.

    Attributes:
        module: Path of the submodule of the host whose output it receives.
        layout: Layout of this output.
        is_causal: True if the seed does not mix later positions into earlier ones, as its host does not.
        mask: Name of the input that marks the real positions, as that of `SlotSite`.
        alpha: Blending weight, above 0 and up to 1.
        parameters: Number of parameters of the seed and its blend gate.
    """

    slot: str
    module: str
    layout: str
    channels: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHANNELS)]
    is_causal: bool
    mask: str | None = None
    blueprint: str
    blend: str
    alpha: Annotated[float, msgspec.Meta(gt=0, le=1)]
    parameters: int

    @property
    def label(self) -> str:
        """Its blueprint and slot, such as `conv_heavy in s3`."""
        return f"{self.blueprint} in {self.slot}"


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a grown network, and its place there.

    Attributes:
        round: Round, from 1.
        step: Number of completed steps of this round.
        answer: Answer of the growth that chose the network, in one sentence; empty for another network.
    """

    run: str
    env: int
    round: int
    step: int
    policy: str
    seed: int
    version: str
    answer: str = ""


class GrownStructure(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `structure.json`.

    Attributes:
        task: Name of the task whose model is the host.
        reference: The task as the user named it; None for a built-in task and one of a Python session.
        seeds: Seeds, in the order of the forward pass.
        validation_score: Score on the validation split, which was used to select the network.
        test_score: Score on the test split, which was used for nothing else.
        is_random: True if the network draws random numbers, so that two calls with the same inputs differ.
        recipe: Optimizers and schedule of the training in words, keyed by field of the task.
    """

    format: int = STRUCTURE_FORMAT
    task: str
    reference: str | None
    host_parameters: int
    seeds: list[GrownSeed]
    score_name: str
    score_scale: ScoreScale
    validation_score: float
    test_score: float
    is_random: bool = False
    recipe: dict[str, str] = {}
    provenance: Provenance

    @property
    def parameters(self) -> int:
        """Number of parameters of host and seeds."""
        return self.host_parameters + sum(seed.parameters for seed in self.seeds)

    @property
    def parameter_ratio(self) -> float:
        """Number of parameters of host and seeds, divided by that of the host."""
        return self.parameters / self.host_parameters


class _AnyStructure(msgspec.Struct):
    """The field that structures of all versions share."""

    format: int


def read_structure(directory: Path) -> GrownStructure:
    """Read `structure.json` of a harvest.

    Raises:
        HarvestError: The file is missing, damaged, or of another version.
    """
    path = directory / STRUCTURE_FILE
    try:
        content = read_regular(path, limit=MAX_STRUCTURE_BYTES)
    except OSError as error:
        raise HarvestError(
            f"{directory} is not a harvested network: {path} cannot be read: {error.strerror or error}"
        ) from None
    try:
        version = msgspec.json.decode(content, type=_AnyStructure).format
        if version == STRUCTURE_FORMAT:
            return msgspec.json.decode(content, type=GrownStructure)
    except DECODE_ERRORS as error:
        raise HarvestError(f"{path} is not the structure of a harvested network: {error}") from None
    raise HarvestError(f"{path} has format {version}; this version reads {STRUCTURE_FORMAT}")


def holds_networks_of(directory: Path, run: str) -> bool:
    """Return True if a directory has only the files of a network of a run, or only such directories.

    Args:
        run: Name of the run directory.
    """
    try:
        entries = list(directory.iterdir())
        if {entry.name for entry in entries} <= _FILES:
            return read_structure(directory).provenance.run == run
        return all(entry.is_dir() and holds_networks_of(entry, run) for entry in entries)
    except (OSError, HarvestError):
        return False


def check_target(directory: Path) -> None:
    """Check that a harvest can be written to a directory.

    Raises:
        HarvestError: The directory is not empty, is not a directory, or cannot be written.
    """
    try:
        if directory.is_dir():
            if any(directory.iterdir()):
                raise HarvestError(f"{directory} is not empty; choose another directory with --to")
        elif directory.exists():
            raise HarvestError(f"{directory} is not a directory; choose another one with --to")
        target = directory.resolve()
        check_writable(target.parent if target.exists() else target)  # a complete harvest is renamed to the target
    except OSError as error:
        problem = f"cannot write to {directory}: {error.strerror}"
        raise HarvestError(f"{problem}; choose another directory with --to") from None
