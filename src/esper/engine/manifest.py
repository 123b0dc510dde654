"""Which checkpoints there are, what they were made for, and whether a run may go on from one.

Imports no torch: the command line asks before the engine is loaded.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from esper.config import Config
from esper.telemetry.codec import encode

FORMAT = 5
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
TELEMETRY = "telemetry.json"
CHECKPOINTS = "checkpoints"
"""Where a run keeps its checkpoints, below its directory."""
UNDONE = "undone"
"""Where it keeps those that were later than one it went back to: as many, in case that was a mistake."""

FIXED = (
    *("task", "policy", "envs", "steps", "slots", "seed", "reward", "counterfactual", "amp", "scaler", "ppo.hidden"),
    *("training.host_learning_rate", "training.seed_learning_rate", "training.batch_size"),
    *("training.samples_per_epoch", "training.momentum", "training.weight_decay"),
)
"""Options that a resumed run cannot change, as dotted field names."""

PARTIAL, REMOVED, REPLACED = ".partial", ".removed", ".replaced"
"""After the name of a checkpoint: one that is being written, or removed; and one that gives its name to another, whole
until that has it."""
_NAME = re.compile(r"round-(\d+)-step-(\d+)")


class CheckpointError(Exception):
    """A checkpoint that cannot be used; its text is one sentence: which, why, and what else there is."""


class FileEntry(msgspec.Struct, frozen=True):
    """What the manifest says of another file of the checkpoint."""

    bytes: int
    blake2b: str


Count = Annotated[int, msgspec.Meta(ge=0)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json`: what a checkpoint is of, and what its other files must be."""

    format: int
    round: Count
    """Rounds completed."""
    step: Count
    """Steps completed of the round in progress."""
    config: dict[str, Any]
    files: dict[str, FileEntry]
    blake2b: str = ""
    """Of all the rest."""

    def signed(self) -> Manifest:
        """The same with its own digest, so that damage to it is found as well."""
        unsigned = msgspec.structs.replace(self, blake2b="")
        return msgspec.structs.replace(self, blake2b=digest(encode(unsigned)))


class _AnyManifest(msgspec.Struct):
    """What the manifest of any version has."""

    format: int


def digest(content: bytes) -> str:
    """What a file is known by."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint, without reading the rest.

    Raises:
        CheckpointError: there is none, or it is damaged, or of another version.
    """
    try:
        content = (directory / MANIFEST).read_bytes()
    except OSError:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no readable {MANIFEST}") from None
    try:
        version = msgspec.json.decode(content, type=_AnyManifest).format
        manifest = msgspec.json.decode(content, type=Manifest) if version == FORMAT else None
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{directory / MANIFEST} is not the manifest of a checkpoint: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CheckpointError(f"{directory / MANIFEST} is damaged: it is not JSON") from None
    if manifest is None:
        raise CheckpointError(f"{directory} has checkpoint format {version}; this version reads {FORMAT}")
    if manifest.signed() != manifest:
        raise CheckpointError(f"{directory / MANIFEST} is damaged: its digest is another")
    return manifest


def read_files(directory: Path, manifest: Manifest) -> dict[str, bytes]:
    """The other files of a checkpoint by name, each as its manifest has it.

    Raises:
        CheckpointError: one is missing or damaged.
    """
    contents: dict[str, bytes] = {}
    for name in (TENSORS, STATE, TELEMETRY):
        try:
            contents[name] = (directory / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{directory / name} cannot be read: {error.strerror}") from None
        if manifest.files.get(name) != FileEntry(len(contents[name]), digest(contents[name])):
            raise CheckpointError(f"{directory / name} is damaged: its digest is not the one in {MANIFEST}")
    return contents


def saved_config(directory: Path) -> Config:
    """The configuration of the run that a checkpoint is of.

    Raises:
        CheckpointError: as `read_manifest`; or it is none that this version knows.
    """
    return config_of(read_manifest(directory), directory)


def config_of(manifest: Manifest, directory: Path) -> Config:
    """The configuration in the manifest of a checkpoint.

    Raises:
        CheckpointError: it is none that this version knows.
    """
    try:
        return msgspec.convert(manifest.config, Config, strict=False)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{directory} has a configuration that this version does not know: {error}") from None


def checkpoint_path(run: Path, round_number: int, step: int) -> Path:
    """Where a run keeps the checkpoint of a moment: the last step completed, and its round, both counted from 1."""
    return run / CHECKPOINTS / f"round-{round_number:05d}-step-{step:04d}"


def moment_of(checkpoint: Path) -> tuple[int, int]:
    """Round and step of a checkpoint by its name, as `checkpoint_path` has them."""
    named = _NAME.match(checkpoint.name)
    assert named  # by checkpoint_path
    round_number, step = named.groups()
    return int(round_number), int(step)


def run_of(checkpoint: Path) -> Path:
    """The directory of the run that a checkpoint belongs to.

    Raises:
        CheckpointError: it was taken out of its run.
    """
    folder = checkpoint.resolve().parent
    if folder.name != CHECKPOINTS:
        raise CheckpointError(f"{checkpoint} is not in the {CHECKPOINTS}/ of a run; put it there to go on from it")
    return folder.parent


def size_and_time(checkpoint: Path) -> tuple[int, float]:
    """Bytes of its files, and when it was written, seconds since the epoch. Raises OSError."""
    return sum(file.stat().st_size for file in checkpoint.iterdir()), (checkpoint / MANIFEST).stat().st_mtime


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, the oldest first. Interrupted ones are not among them."""
    return [path for path in _in_order(run / CHECKPOINTS) if (path / MANIFEST).exists()]


def _in_order(folder: Path) -> list[Path]:
    there = folder.iterdir() if folder.is_dir() else ()  # not glob, for which what may not be read is empty
    return sorted((path for path in there if _NAME.fullmatch(path.name) or _was_to_be_replaced(path)), key=moment_of)


def _was_to_be_replaced(path: Path) -> bool:
    """Whether this is a checkpoint that gave its name to another, which did not come to have it: a kill was between."""
    return path.suffix == REPLACED and _NAME.fullmatch(path.stem) is not None and not path.with_suffix("").exists()


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `--resume PATH` means: that directory, or the newest of a run's.

    Raises:
        CheckpointError: there is none.
    """
    if (path / MANIFEST).exists():
        return path
    found = list_checkpoints(path)
    if not found:
        raise CheckpointError(f"{path} holds no checkpoint; give a run, or a directory below its checkpoints/")
    return found[-1]


def keep_newest(run: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints of a run; what else people have put there stays. Raises OSError."""
    for path in list_checkpoints(run)[:-count]:
        shutil.rmtree(set_aside(path, REMOVED))


def remove_torn(run: Path) -> None:
    """Remove what interrupted writes and removals have left; what cannot be removed takes room, and does no more.

    A checkpoint that was to be replaced, and was not, gets its name back. Raises OSError.
    """
    folder = run / CHECKPOINTS
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _was_to_be_replaced(path):
            path.rename(path.with_suffix(""))
        elif path.suffix in {PARTIAL, REMOVED, REPLACED} and _NAME.fullmatch(path.stem):
            shutil.rmtree(path, ignore_errors=True)


def undo_later(run: Path, now: tuple[int, int], count: int) -> None:
    """Take the checkpoints that are later than a moment out of a run's history; the newest are kept aside.

    Moved back into `checkpoints/`, one of them can be gone on from. Raises OSError.
    """
    aside = run / UNDONE
    for path in list_checkpoints(run):
        if moment_of(path) > now:
            aside.mkdir(exist_ok=True)
            shutil.rmtree(aside / path.name, ignore_errors=True)
            path.rename(aside / path.name)
    for path in _in_order(aside)[:-count]:
        shutil.rmtree(path)


def set_aside(checkpoint: Path, suffix: str) -> Path:
    """Take its name from a checkpoint that is to go: a removal that is interrupted leaves none that is torn."""
    aside = checkpoint.with_name(checkpoint.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def check_compatible(saved: Config, config: Config, path: Path) -> None:
    """Refuse to resume from a checkpoint under a configuration that it does not fit.

    Args:
        saved: Configuration of the checkpoint, with the task's settings filled in.
        config: Configuration to resume under, with the task's settings filled in.
        path: Checkpoint, for the message.

    Raises:
        CheckpointError: An option of `FIXED` differs; the message names it.
    """
    for name in FIXED:
        before, now = attrgetter(name)(saved), attrgetter(name)(config)
        if before != now and (name != "slots" or sorted(before) != sorted(now)):  # their order is the host's
            raise CheckpointError(
                f"{path} was made with --{name.replace('_', '-')} {_plain(before)}, not {_plain(now)}; a run cannot "
                "change that"
            )


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
