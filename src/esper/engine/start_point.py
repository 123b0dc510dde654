"""Where a run starts: new, again, or from a checkpoint. Importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.checkpoint.catalog import run_directory_of
from esper.config import Config
from esper.engine.growth import read_run_manifest
from esper.recording.recorder import open_run_directory
from esper.recording.run_directory import RunDirectory
from esper.recording.run_lock import RunLock


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
