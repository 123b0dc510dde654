"""Checkpoint directories: written and read as safetensors and JSON, with an atomic rename.

Tensors are stored as safetensors, everything else as JSON; nothing is pickled. The directory is written under a
temporary name, its manifest (sizes and digests of the other files) last, then fsynced and renamed. An interrupted write
keeps its temporary name and is never used as a checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import safetensors.torch
from torch import Tensor

from esper.common.configuration.config import Config
from esper.common.domain import StepNumber
from esper.common.system.disk import make_subdirectory, replace_synced, sync_directory, write_synced
from esper.common.user_code.references import TaskOrigin
from esper.recordings.checkpoints.catalog import PARTIAL_SUFFIX, REPLACED_SUFFIX, rename_for_removal
from esper.recordings.checkpoints.manifest import (
    CHECKPOINT_FORMAT,
    MANIFEST_FILE,
    STATE_FILE,
    TELEMETRY_FILE,
    TENSORS_FILE,
    CheckpointError,
    FileEntry,
    Manifest,
    config_from_manifest,
    digest,
    read_manifest,
    read_verified_files,
)
from esper.recordings.events.codec import encode_json
from esper.training.checkpoint.state import check_state


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint.

    `state` is stored as the JSON of Python's `json`, in which a measured NaN is written as `NaN`.
    """

    config: Config
    round: int
    """Number of completed rounds."""
    step: int
    """Number of completed steps of the round in progress."""
    state: dict[str, Any]
    tensors: Mapping[str, Tensor]
    telemetry: bytes
    """Keyframe of the telemetry state at this step, one line of JSON."""
    origin: TaskOrigin | None = None
    """Source of the task; None for a built-in one."""

    @property
    def step_number(self) -> StepNumber:
        """1-based round and step of the last completed step."""
        return StepNumber.from_completed(self.round, self.step, self.config.steps)

    @property
    def score(self) -> float | None:
        """Median over the envs of the last validation score; None before the first one."""
        last = [score for episode in self.state["episodes"] for score in episode["view"]["scores"][-1:]]
        return median(last) if last else None


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> int:
    """Write a checkpoint, replacing an existing one of the same name. The directory of its run must exist.

    Returns:
        Size in bytes.

    Raises:
        OSError: The checkpoint cannot be written; an existing one is then unchanged.
    """
    make_subdirectory(directory.parent)
    partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        size = _write_all(partial, checkpoint)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # frees space for the events of the run if the disk is full
        raise
    replaced = rename_for_removal(directory, REPLACED_SUFFIX) if directory.exists() else None
    replace_synced(partial, directory)
    if replaced:
        shutil.rmtree(replaced, ignore_errors=True)  # if this fails, remove_incomplete removes it later
    return size


def _write_all(partial: Path, checkpoint: Checkpoint) -> int:
    """Write all files to a new directory, the manifest last, and return their size in bytes. Raises OSError."""
    partial.mkdir()
    contents = {
        TENSORS_FILE: encode_tensors(checkpoint.tensors),
        STATE_FILE: json.dumps(checkpoint.state).encode(),
        TELEMETRY_FILE: checkpoint.telemetry,
    }
    for name, content in contents.items():
        write_synced(partial / name, content)
    manifest = Manifest(
        format=CHECKPOINT_FORMAT,
        round=checkpoint.round,
        step=checkpoint.step,
        config=msgspec.to_builtins(checkpoint.config),
        files={name: FileEntry(len(content), digest(content)) for name, content in contents.items()},
        task=checkpoint.origin or msgspec.UNSET,
    )
    encoded = msgspec.json.format(encode_json(manifest.with_digest()), indent=1)
    write_synced(partial / MANIFEST_FILE, encoded)
    sync_directory(partial)
    return len(encoded) + sum(map(len, contents.values()))


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors in the safetensors format. Tensors that share memory are stored separately."""
    stored: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, such as weights that are tied by their data.
        stored[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return safetensors.torch.save(stored)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        CheckpointError: A file is missing or does not match the manifest.
    """
    manifest = read_manifest(directory)
    config = config_from_manifest(manifest, directory)
    contents = read_verified_files(directory, manifest)
    try:
        tensors = safetensors.torch.load(contents[TENSORS_FILE])
        state = check_state(json.loads(contents[STATE_FILE]), str(directory / STATE_FILE))
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{directory} is damaged: {error}") from None
    return Checkpoint(config, manifest.round, manifest.step, state, tensors, contents[TELEMETRY_FILE], manifest.origin)
