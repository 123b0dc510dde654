"""Checkpoint manifests: format, digests, and the check that a run can resume from a checkpoint.

Imports no torch, because the command line reads manifests before the engine is loaded.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from esper.common.configuration.config import Config
from esper.common.domain import VERSION
from esper.common.system.disk import UnsafeFileError, read_regular
from esper.common.user_code.references import TaskOrigin
from esper.recordings.events.codec import DECODE_ERRORS, encode_json
from esper.recordings.files.run_manifest import read_run_manifest

CHECKPOINT_FORMAT = 2
MANIFEST_FILE = "manifest.json"
TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "state.json"
TELEMETRY_FILE = "telemetry.json"
MAX_MANIFEST_BYTES = 1 << 20
"""Maximum size of a manifest that is read; those of runs have a few kilobytes."""

IMMUTABLE_OPTIONS = (
    *("task", "policy", "init_policy", "plan", "envs", "steps", "slots", "seed", "context_seed"),
    *("reward", "counterfactual", "amp", "scaler"),
    *("ppo.hidden", "ppo.envs_per_host", "training.host_learning_rate", "training.seed_learning_rate"),
    *("training.batch_size", "training.samples_per_epoch", "training.momentum", "training.weight_decay"),
)
"""Options that a resumed run cannot change, as dotted field names."""


class CheckpointError(Exception):
    """A checkpoint is missing, damaged, of another run or of another format, or does not fit the settings.

    The message is one sentence: which checkpoint, why, and what to do.
    """


class FileEntry(msgspec.Struct, frozen=True):
    """Size in bytes and digest of one file of a checkpoint."""

    bytes: int
    blake2b: str


Count = Annotated[int, msgspec.Meta(ge=0)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `manifest.json`: position and configuration of the run, size and digest of the other files."""

    format: int
    round: Count
    """Number of completed rounds."""
    step: Count
    """Number of completed steps of the round in progress."""
    config: dict[str, Any]
    files: dict[str, FileEntry]
    task: TaskOrigin | msgspec.UnsetType = msgspec.UNSET
    """Source of the task; absent for a built-in one."""
    blake2b: str = ""
    """Digest of all other fields."""

    @property
    def origin(self) -> TaskOrigin | None:
        """Source of the task; None for a built-in one."""
        return None if isinstance(self.task, msgspec.UnsetType) else self.task

    def with_digest(self) -> Manifest:
        """Return a copy that has its own digest, so that damage to the manifest itself is detected."""
        unsigned = msgspec.structs.replace(self, blake2b="")
        return msgspec.structs.replace(self, blake2b=digest(encode_json(unsigned)))


class _AnyManifest(msgspec.Struct):
    """The field that manifests of all versions share."""

    format: int


def digest(content: bytes) -> str:
    """Return the BLAKE2b digest of a file, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Read and verify the manifest of a checkpoint, and no other file.

    Raises:
        CheckpointError: The manifest is missing, damaged, or of another version.
    """
    try:
        content = read_regular(directory / MANIFEST_FILE, limit=MAX_MANIFEST_BYTES)
    except UnsafeFileError as error:
        raise CheckpointError(f"{directory / MANIFEST_FILE} cannot be used: {error.strerror}") from None
    except OSError:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no readable {MANIFEST_FILE}") from None
    try:
        version = msgspec.json.decode(content, type=_AnyManifest).format
        manifest = msgspec.json.decode(content, type=Manifest) if version == CHECKPOINT_FORMAT else None
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{directory / MANIFEST_FILE} is not the manifest of a checkpoint: {error}") from None
    except DECODE_ERRORS:
        raise CheckpointError(f"{directory / MANIFEST_FILE} is damaged: it is not JSON") from None
    if manifest is None:
        raise CheckpointError(
            f"{directory} has checkpoint format {version}; this is esper-sanctum {VERSION}, which reads format "
            f"{CHECKPOINT_FORMAT}{read_run_manifest(directory.resolve().parent.parent).advice}"
        )
    if manifest.with_digest() != manifest:
        raise CheckpointError(f"{directory / MANIFEST_FILE} is damaged: its digest does not match")
    return manifest


def read_verified_files(directory: Path, manifest: Manifest) -> dict[str, bytes]:
    """Read the other files of a checkpoint and verify them against the manifest.

    Returns:
        Contents by file name.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    contents: dict[str, bytes] = {}
    for name in (TENSORS_FILE, STATE_FILE, TELEMETRY_FILE):
        entry = manifest.files.get(name)
        if entry is None:
            raise CheckpointError(f"{directory / MANIFEST_FILE} is damaged: it does not list {name}")
        try:
            contents[name] = read_regular(directory / name, size=entry.bytes)
        except UnsafeFileError as error:
            raise CheckpointError(f"{directory / name} is damaged: {error.strerror}") from None
        except OSError as error:
            raise CheckpointError(f"{directory / name} cannot be read: {error.strerror}") from None
        if entry.blake2b != digest(contents[name]):
            raise CheckpointError(f"{directory / name} is damaged: its digest does not match {MANIFEST_FILE}")
    return contents


def config_from_manifest(manifest: Manifest, directory: Path) -> Config:
    """Return the configuration in the manifest of a checkpoint.

    Raises:
        CheckpointError: This version cannot read the configuration.
    """
    try:
        return msgspec.convert(manifest.config, Config, strict=False)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{directory} has a configuration that this version cannot read: {error}") from None


def check_compatible(saved: Config, config: Config, path: Path) -> None:
    """Check that a run can resume from a checkpoint under a configuration.

    Args:
        saved: Configuration of the checkpoint, with the task's settings filled in.
        config: Configuration to resume under, with the task's settings filled in.
        path: Checkpoint, for the message.

    Raises:
        CheckpointError: An option of `IMMUTABLE_OPTIONS` differs; the message names it.
    """
    for name in IMMUTABLE_OPTIONS:
        before, now = attrgetter(name)(saved), attrgetter(name)(config)
        if before != now and (name != "slots" or sorted(before) != sorted(now)):  # the host defines their order
            raise CheckpointError(
                f"{path} was made with --{name.replace('_', '-')} {_format_value(before)}, not {_format_value(now)}; "
                "this setting cannot change on resume"
            )


def _format_value(value: Any) -> str:
    return " ".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value) or '""'
