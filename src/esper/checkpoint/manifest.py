"""The manifest of a checkpoint: format, digests, compatibility. Needs no torch.

Imports no torch: the command line asks before the engine is loaded.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from esper.config import Config
from esper.telemetry.codec import encode_json

CHECKPOINT_FORMAT = 5
MANIFEST_FILE = "manifest.json"
TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "state.json"
TELEMETRY_FILE = "telemetry.json"

IMMUTABLE_OPTIONS = (
    *("task", "policy", "envs", "steps", "slots", "seed", "reward", "counterfactual", "amp", "scaler", "ppo.hidden"),
    *("training.host_learning_rate", "training.seed_learning_rate", "training.batch_size"),
    *("training.samples_per_epoch", "training.momentum", "training.weight_decay"),
)
"""Options that a resumed run cannot change, as dotted field names."""


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

    def with_digest(self) -> Manifest:
        """The same with its own digest, so that damage to it is found as well."""
        unsigned = msgspec.structs.replace(self, blake2b="")
        return msgspec.structs.replace(self, blake2b=digest(encode_json(unsigned)))


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
        content = (directory / MANIFEST_FILE).read_bytes()
    except OSError:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no readable {MANIFEST_FILE}") from None
    try:
        version = msgspec.json.decode(content, type=_AnyManifest).format
        manifest = msgspec.json.decode(content, type=Manifest) if version == CHECKPOINT_FORMAT else None
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{directory / MANIFEST_FILE} is not the manifest of a checkpoint: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CheckpointError(f"{directory / MANIFEST_FILE} is damaged: it is not JSON") from None
    if manifest is None:
        raise CheckpointError(f"{directory} has checkpoint format {version}; this version reads {CHECKPOINT_FORMAT}")
    if manifest.with_digest() != manifest:
        raise CheckpointError(f"{directory / MANIFEST_FILE} is damaged: its digest is another")
    return manifest


def read_verified_files(directory: Path, manifest: Manifest) -> dict[str, bytes]:
    """The other files of a checkpoint by name, each as its manifest has it.

    Raises:
        CheckpointError: one is missing or damaged.
    """
    contents: dict[str, bytes] = {}
    for name in (TENSORS_FILE, STATE_FILE, TELEMETRY_FILE):
        try:
            contents[name] = (directory / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{directory / name} cannot be read: {error.strerror}") from None
        if manifest.files.get(name) != FileEntry(len(contents[name]), digest(contents[name])):
            raise CheckpointError(f"{directory / name} is damaged: its digest is not the one in {MANIFEST_FILE}")
    return contents


def read_saved_config(directory: Path) -> Config:
    """The configuration of the run that a checkpoint is of.

    Raises:
        CheckpointError: as `read_manifest`; or it is none that this version knows.
    """
    return config_from_manifest(read_manifest(directory), directory)


def config_from_manifest(manifest: Manifest, directory: Path) -> Config:
    """The configuration in the manifest of a checkpoint.

    Raises:
        CheckpointError: it is none that this version knows.
    """
    try:
        return msgspec.convert(manifest.config, Config, strict=False)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{directory} has a configuration that this version does not know: {error}") from None


def check_compatible(saved: Config, config: Config, path: Path) -> None:
    """Refuse to resume from a checkpoint under a configuration that it does not fit.

    Args:
        saved: Configuration of the checkpoint, with the task's settings filled in.
        config: Configuration to resume under, with the task's settings filled in.
        path: Checkpoint, for the message.

    Raises:
        CheckpointError: An option of `FIXED` differs; the message names it.
    """
    for name in IMMUTABLE_OPTIONS:
        before, now = attrgetter(name)(saved), attrgetter(name)(config)
        if before != now and (name != "slots" or sorted(before) != sorted(now)):  # their order is the host's
            raise CheckpointError(
                f"{path} was made with --{name.replace('_', '-')} {_format_value(before)}, not {_format_value(now)}; "
                "a run cannot change that"
            )


def _format_value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
