"""Run: a run that is ready to train, and its end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from esper.common.system.ranks import RankLostError
from esper.recordings import events as ev
from esper.recordings.files.recorder import RecordingError
from esper.training.engine.run_files import LOST, RunFiles
from esper.training.engine.run_kind import RunKind
from esper.training.engine.trainer import Trainer
from esper.training.lanes.errors import FaultError, RunFailedError


class Run:
    """A run that is ready to train: its directory exists and its recorder is running. `set_up_run` makes it.

    Args:
        files: Where the run is written.
        kind: Computes its results at the end.
        opened: Resources of the run, which are closed in reverse order at its end.
    """

    def __init__(self, trainer: Trainer, files: RunFiles, kind: RunKind, opened: ExitStack) -> None:
        self.trainer = trainer
        self.files = files
        self.hub = files.hub
        self.pool = trainer.state.pool
        self._kind = kind
        self._opened = opened

    @property
    def directory(self) -> Path:
        """Path of the run directory."""
        return self.files.path

    def train(self) -> None:
        """Train until the end or a stop request, then close everything. Errors are recorded as events and raised.

        Sets the number of intra-op threads of the calling thread to 1, as the lanes do: results must not depend on the
        number of cores. The setting belongs to a thread, and another thread may have built the run.

        Raises:
            RunFailedError: A step failed, or the last checkpoint or the last events cannot be written.
            RecordingError: The recording cannot be continued after a checkpoint was restored.
            RankLostError: Another rank has ended or does not respond.
        """
        torch.set_num_threads(1)
        try:
            with self._opened:
                if self.files.lock:
                    self.hub.flush()  # viewers must find the start of the run in the recording
                    self.files.lock.mark_started()
                self._train_and_report()
        except RunFailedError as error:
            if self.hub.failure and self.hub.failure not in str(error):
                raise RunFailedError(f"{error}; {self.hub.failure}") from error
            raise
        if self.hub.failure:
            is_lost = self.files.directory is not None and self.files.directory.is_deleted
            raise RunFailedError(f"{self.hub.failure}; {LOST}" if is_lost else self.hub.failure)

    def _train_and_report(self) -> None:
        try:
            outcome = self._train()
            self.hub.emit_global(ev.RunEnded(outcome=outcome))
        except BaseException as error:
            is_described = isinstance(error, RankLostError | RunFailedError | RecordingError)
            self.hub.emit(
                ev.RunEnded(outcome="failed", reason=str(error) if is_described else f"{type(error).__name__}: {error}")
            )
            raise

    def _train(self) -> str:
        """Train, and return how the run ended. Raise RunFailedError, with how to go on, if it failed."""
        try:
            outcome = self.trainer.run()
        except FaultError as fault:
            text = self._describe(fault)
        except RunFailedError as failure:
            text = str(failure)
        except RankLostError as lost:
            raise RankLostError(f"{lost}; {self._resume_hint()}") from lost
        else:
            self._finish()
            return outcome
        hint = self._resume_hint()
        raise RunFailedError(f"{text}; {hint}" if hint else text)

    def _finish(self) -> None:
        """Compute the results of the run. Raise RunFailedError, with how to try again, if they cannot be computed."""
        try:
            self._kind.finish()
            return
        except FaultError as fault:
            text = self._describe(fault)
        raise RunFailedError(f"{text}; the same command tries again")

    def _describe(self, fault: FaultError) -> str:
        """Save the traceback of a fault, and return the message with its path."""
        return f"{fault}{self.files.save_traceback(fault, self.trainer.state.ranks.rank)}"

    def _resume_hint(self) -> str:
        return self.files.resume_hint(self.trainer.state, self._kind.continuation)
