"""Captures a trainer's state in a checkpoint and restores it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from torch import Tensor

from esper.common.system.ranks import RankGroup
from esper.recordings.checkpoints.catalog import (
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    remove_incomplete,
    run_directory_of,
    set_aside_later,
    size_and_time,
    step_number_of,
)
from esper.recordings.checkpoints.manifest import CheckpointError, check_compatible
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.state.state import Keyframe
from esper.training.checkpoint.files import Checkpoint, encode_tensors, read_checkpoint, write_checkpoint
from esper.training.engine.episode import EpisodeSnapshot, capture_episode, install_episode
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.errors import is_out_of_memory
from esper.training.policy.agent import ALL_ENVS, strip_prefix


class RestoredCheckpoint(NamedTuple):
    """The checkpoint that a run was restored to."""

    checkpoint: Checkpoint
    telemetry: Keyframe
    """Telemetry state at the time of the checkpoint."""
    bytes: int
    """Size on disk."""
    written: float
    """Time of writing, in seconds since the epoch."""


class Checkpointer:
    """Writes and reads the checkpoints of one run. Every method that does raises CheckpointError if it cannot.

    Args:
        run: Path of the run directory.
        run_directory: The directory; None on other ranks than 0, which do not use it.
        keep: Number of checkpoints to keep.
    """

    def __init__(self, run: Path, run_directory: RunDirectory | None, keep: int) -> None:
        self.directory = run
        self._run_directory = run_directory
        self._keep = keep
        self._stash: Checkpoint | None = None

    def is_lost(self, ranks: RankGroup) -> bool:
        """Return True if the run directory was deleted, so that nothing can be saved. All ranks call it together."""
        return ranks.run_on_rank0(lambda: self._run_directory is not None and self._run_directory.is_deleted)

    def save(self, training: TrainingState) -> tuple[Path, int, Checkpoint]:
        """Write a checkpoint of the current state.

        Rank 0 writes for all ranks; a checkpoint does not depend on the number of ranks.

        Returns:
            Path, size in bytes, and content of the checkpoint.
        """
        checkpoint = _checkpoint(training, _gather_state(_capture(training), training.ranks))
        return self._path(checkpoint), training.ranks.run_on_rank0(lambda: self._write(checkpoint)), checkpoint

    def stash(self, training: TrainingState) -> None:
        """Stash a CPU copy of the current state, because a fault leaves the live state inconsistent.

        Single-rank runs only.
        """
        now = _capture(training)
        copies = {name: value.to("cpu", copy=True) for name, value in now.tensors.items()}
        self._stash = _checkpoint(training, now._replace(tensors=copies))

    def save_stash(self) -> tuple[Path, int, Checkpoint] | None:
        """Write the stash, unless there is none or a checkpoint at least as recent exists.

        Returns:
            Path, size in bytes, and content of the checkpoint; None if none was written.
        """
        stash = self._stash
        if stash is None:
            return None
        with _as_checkpoint_error(f"the checkpoints in {self.directory} cannot be listed"):
            if any(step_number_of(path) >= stash.step_number for path in list_checkpoints(self._check())):
                return None
        return self._path(stash), self._write(stash), stash

    def _path(self, checkpoint: Checkpoint) -> Path:
        return checkpoint_path(self.directory, *checkpoint.step_number)

    def _write(self, checkpoint: Checkpoint) -> int:
        with _as_checkpoint_error(f"the checkpoint cannot be written to {self.directory}"):
            directory = self._check()
            remove_incomplete(directory)
            return write_checkpoint(checkpoint_path(directory, *checkpoint.step_number), checkpoint)

    def prune(self, ranks: RankGroup) -> None:
        """Remove all but the newest checkpoints, keeping as many as configured."""
        with _as_checkpoint_error(f"older checkpoints cannot be removed from {self.directory}"):
            ranks.run_on_rank0(lambda: prune_checkpoints(self._check(), self._keep))

    def set_aside_later(self, training: TrainingState) -> None:
        """Move the checkpoints that are later than the current step to `undone/`."""
        now = training.step_number
        with _as_checkpoint_error(f"later checkpoints cannot be set aside in {self.directory}"):
            training.ranks.run_on_rank0(lambda: set_aside_later(self._check(), now, self._keep))

    def restore(self, training: TrainingState, path: Path) -> RestoredCheckpoint:
        """Restore the training state from a checkpoint.

        Raises:
            CheckpointError: The checkpoint is damaged, belongs to another run, does not fit this version of the
                program, or needs more memory than is free; the training state is then unchanged.
        """
        ranks = training.ranks
        saved = ranks.run_on_rank0(lambda: self._read_from_this_run(path))
        with _as_checkpoint_error(f"{path} cannot be read"):
            size, written = ranks.run_on_rank0(lambda: size_and_time(path))
        check_compatible(saved.config, training.config, path)
        before: _TrainerState | None = None
        keyframe: Keyframe | None = None
        misfit: str | None = None
        try:
            now = _capture(training)
            before = now._replace(tensors={name: value.clone() for name, value in now.tensors.items()})
            keyframe = _load(training, saved)
        except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            misfit = "needs more memory" if is_out_of_memory(error) else f"does not fit this version: {error!r}"
        misfits = [found for found in ranks.all_gather_object(misfit) if found]
        if keyframe is None or misfits:
            if before is not None:
                _install(training, before)
            raise CheckpointError(f"{path} cannot be restored: it {misfits[0]}")
        self._stash = None  # it may be from later than the restored checkpoint
        return RestoredCheckpoint(saved, keyframe, size, written)

    def _read_from_this_run(self, path: Path) -> Checkpoint:
        """Read a checkpoint of this run; refuse others, since a viewer may send any path. Raises CheckpointError."""
        with _as_checkpoint_error(f"{path} cannot be read"):
            self._check()
        try:
            run = run_directory_of(path)
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a character that is invalid in paths
            raise CheckpointError(f"{str(path)!r} is not a checkpoint: {error}") from None
        if run != self.directory.resolve():
            raise CheckpointError(f"{path} belongs to {run}, not to this run")
        return read_checkpoint(path)

    def _check(self) -> Path:
        """Return the path for writing files to the run directory. Rank 0 calls it. Raises OSError if it is gone."""
        assert self._run_directory is not None
        return self._run_directory.check()


@contextmanager
def _as_checkpoint_error(problem: str) -> Generator[None]:
    """Raise CheckpointError with the message of the operating system in place of OSError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{problem}: {error.strerror or error}") from error


def _checkpoint(training: TrainingState, now: _TrainerState) -> Checkpoint:
    """Return the checkpoint of a state. It holds the tensors of `now` themselves, not copies."""
    training.hub.collect()  # the snapshot has all events so far: a resumed run discards those that follow it
    return Checkpoint(
        config=training.config,
        round=now.round,
        step=now.step,
        state=now.state,
        tensors=now.tensors,
        telemetry=training.ranks.run_on_rank0(lambda: encode_json(training.hub.snapshot())),
        origin=training.origin,
    )


class _TrainerState(NamedTuple):
    """Position of a run and all state that its next step depends on."""

    round: int
    step: int
    state: dict[str, Any]
    tensors: Mapping[str, Tensor]


def _capture(training: TrainingState) -> _TrainerState:
    """Return the state of this rank. The tensors are the live ones: the next step changes them."""
    tensors = {f"agent.{name}": value for name, value in training.agent.state_tensors(training.ranks).items()}
    state: dict[str, Any] = {"agent": training.agent.state_dict(), "episodes": [], "scalers": {}}
    for episode in training.episodes:
        index, snapshot = episode.env.index, capture_episode(episode)
        tensors |= {f"env.{index}.{name}": value for name, value in snapshot.tensors.items()}
        state["episodes"].append(snapshot.state)
        if snapshot.scaler:
            state["scalers"][str(index)] = snapshot.scaler
    if directed := training.director.state_dict():
        state["growth"] = directed
        tensors |= {f"growth.{name}": value for name, value in training.director.state_tensors().items()}
    return _TrainerState(training.round, training.step, state, tensors)


def _load(training: TrainingState, saved: Checkpoint) -> Keyframe:
    """Set the state of this rank from a checkpoint. Return the telemetry state saved with it."""
    keyframe = make_decoder(Keyframe).decode(saved.telemetry)
    keyframe.decode_state()
    _install(training, _TrainerState(saved.round, saved.step, _local_state(saved.state, training.ranks), saved.tensors))
    return keyframe


def _gather_state(local: _TrainerState, ranks: RankGroup) -> _TrainerState:
    """Merge the states of all ranks into that of a single rank with all envs. Local tensors are the live ones."""
    own = {name: value for name, value in local.tensors.items() if name.startswith(("env.", "growth."))}
    encoded = b"" if ranks.is_single else encode_tensors(own)  # to pickle each tensor takes five times as long
    parts = ranks.all_gather_object((encoded, local.state))
    tensors = dict(local.tensors)
    for rank, (of_rank, _) in enumerate(parts):
        if rank != ranks.rank:
            tensors |= safetensors.torch.load(of_rank)
    state: dict[str, Any] = {}
    for key, value in local.state.items():
        values = [part[key] for _, part in parts]
        if isinstance(value, list):
            state[key] = ranks.in_env_order(values)
        else:
            state[key] = {env: item for value_of_rank in values for env, item in value_of_rank.items()}
    return local._replace(state=state, tensors=tensors)


def _local_state(state: Mapping[str, Any], ranks: RankGroup) -> dict[str, Any]:
    """Return the part of a state that belongs to the envs of this rank.

    Values are lists, or keyed by env index or `ALL_ENVS`.
    """
    owned = ranks.env_range(len(state["episodes"]))
    return {
        key: [value[env] for env in owned]
        if isinstance(value, list)
        else {env: item for env, item in value.items() if env == ALL_ENVS or int(env) in owned}
        for key, value in state.items()
    }


def _install(training: TrainingState, position: _TrainerState) -> None:
    training.round, training.step = position.round, position.step
    training.director.load_state_dict(position.state.get("growth", {}), strip_prefix("growth.", position.tensors))
    training.agent.load_state_dict(
        position.state["agent"], strip_prefix("agent.", position.tensors), training.decision_uniforms()
    )
    for episode, state in zip(training.episodes, position.state["episodes"], strict=True):
        index = episode.env.index
        scaler = position.state["scalers"][str(index)] if episode.env.scaler else None
        install_episode(episode, EpisodeSnapshot(state, strip_prefix(f"env.{index}.", position.tensors), scaler))
