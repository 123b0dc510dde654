"""RunFiles: where a run is written, opened when everything else of it is ready."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from esper.common.configuration.config import Config
from esper.common.system.ranks import RankGroup
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import CheckpointError, read_manifest
from esper.recordings.files.notes import RunNotes, update_notes
from esper.recordings.files.recorder import Recorder, RecordingError, open_run_directory
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.files.runs import make_run_directory
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state.hub import EventHub, FirstRankEventHub, OtherRankEventHub
from esper.training.engine.resume_options import resume_options
from esper.training.engine.start_point import StartPoint
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.errors import FaultError

LOST = "its events and checkpoints are lost; start the run again"
"""Advice after the run directory was deleted."""


@dataclass(frozen=True)
class RunFiles:
    """Where a run is written.

    Attributes:
        path: Path of the run directory.
        directory: The run directory, held open; None on a machine that does not have it, because rank 0 is on another
            one.
        lock: Lock of the run; None on other ranks than 0.
        hub: Sends the events to the recorder, or to rank 0.
    """

    path: Path
    directory: RunDirectory | None
    lock: RunLock | None
    hub: EventHub

    @property
    def own_directory(self) -> RunDirectory:
        """The run directory of rank 0, which writes to it."""
        assert self.directory is not None
        return self.directory

    def save_traceback(self, fault: FaultError, rank: int) -> str:
        """Write the traceback of a fault to the run directory, and return a note of its path for the message."""
        if fault.traceback_text is None:
            return ""
        path = self.path / (f"traceback-rank-{rank}.txt" if rank else "traceback.txt")
        try:
            # Another machine may not share the file system of rank 0.
            directory = self.directory or RunDirectory.make(self.path)
            (directory.check() / path.name).write_text(fault.traceback_text)
        except OSError as error:
            return f" (its traceback cannot be written to {path}: {error.strerror})"
        return f" (traceback in {path})"

    def resume_hint(self, state: TrainingState, continuation: str | None) -> str:
        """Return how to go on after a failure; empty if there is no way.

        Args:
            continuation: How to continue a run of its kind, in words; None: from its newest checkpoint.
        """
        directory, condition = self.path, ""
        if self.directory is not None:
            if self.directory.is_deleted:
                return LOST
            directory = self.directory.held
            try:
                self.directory.check()
            except OSError:
                condition = "put the directory back, then "
        try:
            checkpoints = list_checkpoints(directory)
            if continuation is not None:
                return f"{condition}{continuation}" if checkpoints else ""
            if not checkpoints:
                return "no checkpoint was written; start the run again"
            newest = read_manifest(checkpoints[-1])
        except (OSError, CheckpointError) as error:
            return f"list checkpoints to resume from with `esper-sanctum checkpoints {self.path}`: {error}"
        options = resume_options(self.path, state.origin, state.config.policy)
        if newest.round >= state.config.rounds:
            return f"{condition}its last round is saved, and {options} records its end"
        at = f"step {newest.step + 1}" if newest.step < newest.config["steps"] else "its end"
        return f"{condition}{options} continues at round {newest.round + 1}, {at}"


def open_run_files(
    start: StartPoint, config: Config, notes: RunNotes | None, ranks: RankGroup, opened: ExitStack
) -> RunFiles:
    """Open the directory of a run, which rank 0 creates for a new run, with its lock, its notes and its recorder.

    Args:
        opened: Closes the lock and the recorder.

    Raises:
        RecordingError: Another process trains the run, or its directory is not at its path or cannot be written.
        ReadError: The notes on the resumed run cannot be read.
    """
    found: list[RunFiles] = []

    def open_on_rank0() -> Path:
        directory = start.directory or _new_directory(config)
        found.append(_open_on_rank0(directory, start.lock, config, notes, ranks, opened))
        return directory.path

    path = ranks.run_on_rank0(open_on_rank0)
    if found:
        return found[0]
    directory = None
    with suppress(OSError):  # another machine may not have it
        directory = RunDirectory(path)
    return RunFiles(path, directory, None, OtherRankEventHub(ranks))


def _open_on_rank0(
    directory: RunDirectory,
    lock: RunLock | None,
    config: Config,
    notes: RunNotes | None,
    ranks: RankGroup,
    opened: ExitStack,
) -> RunFiles:
    if lock is None:
        lock = RunLock(directory)
        opened.callback(lock.release)
    if notes is not None:  # first of all: a sweep finds its runs by their notes
        try:
            update_notes(directory, notes)
        except OSError as error:
            raise RecordingError(f"cannot write the notes on {directory.path}: {error.strerror}") from error
    recorder = Recorder(directory, config.sync_seconds)
    opened.callback(recorder.close)
    detector = AnomalyDetector(Thresholds.from_config(config))
    hub = EventHub(recorder, detector) if ranks.is_single else FirstRankEventHub(recorder, detector, ranks)
    return RunFiles(directory.path, directory, lock, hub)


def _new_directory(config: Config) -> RunDirectory:
    """Create the directory of a new run. Raises RecordingError."""
    try:
        path = make_run_directory(config.task, datetime.now(), Path(config.telemetry_dir))
    except OSError as error:
        raise RecordingError(f"cannot record to {config.telemetry_dir}: {error.strerror}") from error
    return open_run_directory(path)
