"""Where a run starts: new, again, or from a checkpoint; and how it is trained. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.common.configuration.config import Config
from esper.recordings.checkpoints.catalog import run_directory_of
from esper.recordings.files.notes import RunNotes
from esper.recordings.files.recorder import open_run_directory
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.files.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from esper.networks.tasks.task import Task
    from esper.training.engine.run_kind import RunKind


class RunCompleteError(Exception):
    """The run that `--resume` names has done all of its rounds. The message is one sentence for the user."""


@dataclass(frozen=True)
class StartPoint:
    """Start of a run.

    Attributes:
        config: Configuration of the run.
        checkpoint: Checkpoint to resume from, in the directory of its run; None: the run starts with its first round.
        lock: Lock of a run that was begun before, held since it was chosen, so that other processes see it as starting
            while torch is loaded, and cannot resume it too. None: a new run, or that of rank 0, on another rank.
        command: Digest of the command that began the run, see `command_digest`; None: that of `config`.
    """

    config: Config
    checkpoint: Path | None = None
    lock: RunLock | None = None
    command: str | None = None

    @classmethod
    def at_checkpoint(cls, config: Config, checkpoint: Path) -> StartPoint:
        """Lock the run of a checkpoint, and return the start from it.

        Raises:
            CheckpointError: The checkpoint was moved out of the directory of its run.
            RecordingError: Another process trains the run, or its directory cannot be opened or written.
        """
        lock = RunLock(open_run_directory(run_directory_of(checkpoint)))
        return cls(config, checkpoint, lock, read_run_manifest(lock.directory.path).command)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, which only rank 0 uses."""
        return {**self.__dict__, "lock": None}

    @property
    def directory(self) -> RunDirectory | None:
        """Directory of a run that was begun before, held open; None as for `lock`."""
        return self.lock.directory if self.lock else None

    def release(self) -> None:
        """Release the lock, if there is one."""
        if self.lock:
            self.lock.release()

    @property
    def is_new(self) -> bool:
        """True unless the run resumes from a checkpoint."""
        return self.checkpoint is None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is trained, besides its configuration.

    Attributes:
        interactive: Hold the run on a fault and wait for the user. If False, a fault ends the run. Ignored with several
            ranks.
        task: Task to train on; None: the one that the configuration names.
        accept_changed_task: Resume although the code of the user's task has changed since the checkpoint.
        load_kind: Returns the kind of the run, once torch is loaded; None: an ordinary run.
        notes: Notes to store with the run; of a resumed run, they replace those that are given.
    """

    interactive: bool = False
    task: Task | None = None
    accept_changed_task: bool = False
    load_kind: Callable[[], RunKind] | None = None
    notes: RunNotes | None = None
