"""Runs the engine in a thread beside a dashboard or console; imports torch only when started."""

from __future__ import annotations

import threading
import traceback
from contextlib import closing, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from esper.attach.protocol import AttachError
from esper.attach.server import AttachServer
from esper.config import Config, ConfigError
from esper.control import RequestQueue
from esper.process import RankInfo, freeze_loaded_objects
from esper.telemetry.events import Logged
from esper.telemetry.state import Record

if TYPE_CHECKING:
    from esper.engine.run import Run


class EngineThread:
    """Starts the engine when told to, so that a screen can be painted before torch is loaded.

    Args:
        config: of the run.
        resume: a checkpoint to go on from.
        interactive: whether somebody watches who can say what to do about a fault.
    """

    def __init__(self, config: Config, resume: Path | None, *, interactive: bool = False) -> None:
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.control = RequestQueue()
        self.fatal_error: str | None = None
        """One sentence: why the run could not be set up."""
        self.run_error: str | None = None
        """What ended the run before its time: one sentence, or the traceback of a fault in the program."""
        self.directory: Path | None = None
        """Of the run, once it is set up."""
        self._config = config
        self._resume = resume
        self._interactive = interactive
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Load the engine, set the run up and train."""
        self._thread.start()

    @property
    def is_engine_alive(self) -> bool:
        """Whether the engine's thread is at work."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the run, if it was started."""
        if self.is_engine_alive:
            self._thread.join()

    def _main(self) -> None:
        try:
            import esper.engine.run  # noqa: F401  (and torch with it, which may be broken)
        except Exception as error:  # noqa: BLE001  (the same as below)
            what = f"the engine cannot be loaded ({type(error).__name__}: {error})"
            advice = "torch and torchvision have to be whole, and of one build"
            self.run_error = f"{traceback.format_exc()}esper-sanctum: {what}: {advice}"
            return
        try:
            self._run()
        except BaseException:  # noqa: BLE001  (a thread's last line: what it says is printed by the caller)
            self.run_error = traceback.format_exc()

    def _run(self) -> None:
        from esper.checkpoint.manifest import CheckpointError
        from esper.engine.run import Run
        from esper.lanes.errors import FaultError, RunFailedError
        from esper.ranks import RankLostError
        from esper.recording.recorder import RecordingError
        from esper.tasks import TaskError

        if (
            self.control.stop_requested and RankInfo.from_environment().world_size == 1
        ):  # other ranks would wait for this one
            return
        try:
            run = Run(self._config, self.control, self.records, self._resume, interactive=self._interactive)
        except (ConfigError, TaskError, CheckpointError, RecordingError) as error:
            self.fatal_error = str(error)
            return
        except RankLostError as error:
            self.run_error = f"esper-sanctum: {error}"
            return
        except Exception as error:  # noqa: BLE001  (the caller prints what it says)
            fault = FaultError.from_exception(error, "setting the run up")
            self.run_error = fault.traceback_text or f"esper-sanctum: {fault}"
            return
        self.directory = run.directory
        freeze_loaded_objects()
        try:
            with self._serve_viewers(run):
                run.train()
        except (RankLostError, RunFailedError, RecordingError) as error:
            self.run_error = f"esper-sanctum: {error}"

    def _serve_viewers(self, run: Run) -> closing[AttachServer] | nullcontext[None]:
        """Let viewers in other processes ask as well. A run whom they cannot ask says why, and trains all the same."""
        if RankInfo.from_environment().rank > 0:  # rank 0 hears for all
            return nullcontext()
        try:
            return closing(AttachServer(run.directory, self.control, lambda: run.hub.failure))
        except AttachError as error:
            run.hub.emit(Logged(severity="warning", text=f"this run cannot be controlled from elsewhere: {error}"))
            return nullcontext()
