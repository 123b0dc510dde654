"""The engine in a thread beside a dashboard or console; imports torch only when started."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from esper.attach.protocol import AttachError
from esper.attach.server import AttachServer
from esper.code_places import describe_place, find_in_thread
from esper.control import RequestQueue
from esper.engine.start_checks import SETUP_ERRORS, check_start
from esper.engine.start_point import RunCompleteError, StartPoint
from esper.lanes.printed_lines import PrintedLines
from esper.lanes.spawn import WorkerSpawner
from esper.process import NamedThread, RankInfo, freeze_loaded_objects
from esper.recording.recorder import RecordingError
from esper.telemetry.events import Logged
from esper.telemetry.state import Record

if TYPE_CHECKING:
    from esper.engine.growth import Growth
    from esper.engine.run import Run
    from esper.lanes.call_watch import CallSupervisor
    from esper.ranks import RankGroup
    from esper.recording.notes import RunNotes
    from esper.recording.run_directory import RunDirectory
    from esper.tasks.task import Task


PREPARATION_GRACE_S = 0.8
"""Seconds in which a run that is stopped while it is set up may end by itself."""
JOIN_POLL_S = 0.1


class EngineThread:
    """A thread that sets up and trains a run. It loads torch after `start`, so that the first frame need not wait.

    Args:
        start: Where the run starts, or why it cannot start, which all ranks raise. None: rank 0 decides.
        restart: Decides instead, if torchrun has restarted the ranks of another machine only.
        workers: Lanes whose worker processes are started before torch is imported, so that both import it at once.
        interactive: Hold the run on a fault and wait for the user. If False, a fault ends the run.
        task: Task to train on; None: the one that the configuration names.
        accept_changed_task: Resume although the code of the user's task has changed since the checkpoint.
        growth: Growth of one network, whose results it receives; None for an ordinary run.
        notes: Notes to store with the run; of a resumed run, they replace those that are given.

    Attributes:
        records: Every record of the run, for a dashboard or console.
        control: Queue of requests to the run.
    """

    def __init__(
        self,
        start: StartPoint | Exception | None,
        *,
        restart: Callable[[], StartPoint] | None = None,
        workers: Sequence[str] = (),
        interactive: bool = False,
        task: Task | None = None,
        accept_changed_task: bool = False,
        growth: Growth | None = None,
        notes: RunNotes | None = None,
    ) -> None:
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.control = RequestQueue()
        self.warnings: deque[str] = deque()
        """Sentences for the log of the run, from any thread. Those that are left at its end have not been logged."""
        self._printed = PrintedLines()
        self._subscribers: list[SimpleQueue[Record]] = []
        self.setup_error: Exception | None = None
        """Why the run could not be set up, in one sentence; None if it could."""
        self.complete: str | None = None
        """Why there was nothing to train, in one sentence; None if the run was trained."""
        self.run_error: str | None = None
        """Error that ended the run early: one sentence, or the traceback of a bug; None without one."""
        self.directory: Path | None = None
        """Path of the run directory; None before the run is set up."""
        self.run_directory: RunDirectory | None = None
        """Run directory, held open; None before the run is set up."""
        self._start = start
        self._restart = restart
        self._workers = workers
        self._interactive = interactive
        self._task = task
        self._accept_changed_task = accept_changed_task
        self._growth = growth
        self._notes = notes
        self._supervisor: CallSupervisor | None = None
        """Supervisor of the calls of the user's code; None before the run is set up."""
        self._has_loaded = False
        """True after torch was loaded."""
        self._thread = NamedThread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Load the engine, set up the run and train, all in the thread."""
        self._thread.start()

    def subscribe(self) -> SimpleQueue[Record]:
        """Return a queue of the records from the first step on, after the state before it. Call it before `start`.

        The caller must drain it.
        """
        records: SimpleQueue[Record] = SimpleQueue()
        self._subscribers.append(records)
        return records

    @property
    def fatal_error(self) -> str | None:
        """Message of `setup_error`."""
        return str(self.setup_error) if self.setup_error else None

    @property
    def is_engine_alive(self) -> bool:
        """True while the thread of the engine runs, unless it was given up."""
        return self._thread.is_alive() and not self.has_given_up

    @property
    def is_preparing(self) -> bool:
        """True until the run has something to save: its task is loaded and checked."""
        return not self.control.has_begun

    @property
    def start_stage(self) -> str:
        """Present stage of the start of the run, in words."""
        return self.start_place or ("setting up the run" if self._has_loaded else "loading torch")

    @property
    def start_place(self) -> str | None:
        """Cause of a slow start, in words: trainings before a growth, or a line of the user's code.

        None if neither runs at present.
        """
        if self._growth and self._growth.stage:
            return self._growth.stage
        if (place := find_in_thread(self._thread.ident)) is None:
            return None
        return describe_place(place)

    @property
    def stop_effect(self) -> str | None:
        """Effect of a stop request at present, in words; None if it ends the run after the step, with a checkpoint."""
        if self.is_preparing:
            return "nothing is to be saved while the run is set up"
        return self._supervisor.stop_effect() if self._supervisor else None

    @property
    def has_given_up(self) -> bool:
        """True if the run was stopped while code of the user prepared it, which has not returned in time."""
        seconds = self.control.seconds_since_stop()
        return seconds is not None and seconds > PREPARATION_GRACE_S and self.is_preparing

    @property
    def must_exit(self) -> bool:
        """True if code of the user still runs in a thread of this process, which only `os._exit` can end."""
        has_abandoned = self._supervisor is not None and self._supervisor.abandoned is not None
        return has_abandoned or (self.has_given_up and self._thread.is_alive())

    def join(self) -> None:
        """Wait until the run has ended or was given up; return at once if it was never started."""
        while self.is_engine_alive:
            self._thread.join(JOIN_POLL_S)
        rank_info = RankInfo.from_environment()
        if self._thread.is_alive() and self.has_given_up and rank_info.world_size > 1:  # torchrun then ends the others
            self.run_error = (
                f"esper-sanctum: rank {rank_info.rank} was stopped before the run had begun; nothing was saved"
            )

    def _main(self) -> None:
        with closing(WorkerSpawner()) as spawner, self._printed:
            spawner.start_early(self._workers)
            self._load_and_run(spawner)

    def _load_and_run(self, spawner: WorkerSpawner) -> None:
        try:
            # Imports torch, whose installation may be broken.
            import esper.engine.run  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except Exception as error:  # noqa: BLE001  (the same as below)
            problem = f"the engine cannot be loaded ({type(error).__name__}: {error})"
            advice = "reinstall torch and torchvision in matching versions"
            self.run_error = f"{traceback.format_exc()}esper-sanctum: {problem}; {advice}"
            return
        self._has_loaded = True
        try:
            self._run(spawner)
        except BaseException:  # noqa: BLE001  (the caller prints it)
            self.run_error = traceback.format_exc()

    def _run(self, spawner: WorkerSpawner) -> None:
        from esper.ranks import RankLostError, destroy_ranks, init_ranks

        rank_info = RankInfo.from_environment()
        if self.control.stop_requested and rank_info.world_size == 1:  # other ranks would wait for this one
            return
        try:
            ranks = init_ranks(rank_info)
            self._train(self._agree_on_start(ranks, rank_info), ranks, spawner)
        except RankLostError as error:
            self.run_error = f"esper-sanctum: {error}"
        except SETUP_ERRORS as error:
            self.setup_error = error
        except RunCompleteError as error:
            self.complete = str(error)
        finally:
            if not self.must_exit:  # else threads of gloo still wait for another rank
                destroy_ranks()

    def _agree_on_start(self, ranks: RankGroup, rank_info: RankInfo) -> StartPoint:
        """Return where the run starts. Rank 0 decides, because the others may see another state of the directory.

        Raises:
            RunCompleteError: There is nothing left to do.
            Exception: Why the run cannot start, on all ranks.
        """

        restarted = any(ranks.all_gather_object(rank_info.restarts))  # torchrun counts for each machine

        def decide() -> StartPoint:
            if restarted and not rank_info.restarts and self._restart:
                if isinstance(self._start, StartPoint):
                    self._start.release()  # the decision locks the run that it chooses
                return self._restart()
            assert self._start is not None
            if isinstance(self._start, Exception):
                raise self._start
            return self._start

        start = ranks.run_on_rank0(decide)
        if self._start is None:
            check_start(start.config, rank_info, is_new=start.is_new)
        return start

    def _train(self, start: StartPoint, ranks: RankGroup, spawner: WorkerSpawner) -> None:
        """Set up the run and train it."""
        from esper.engine.run import Run
        from esper.lanes.errors import FaultError, RunFailedError, StoppedError
        from esper.ranks import RankLostError

        try:
            run = Run(
                start,
                self.control,
                self.records,
                ranks=ranks,
                interactive=self._interactive,
                task=self._task,
                accept_changed_task=self._accept_changed_task,
                spawner=spawner,
                growth=self._growth,
                notes=self._notes,
            )
        except StoppedError:
            return
        except (RankLostError, *SETUP_ERRORS):
            raise
        except Exception as error:  # noqa: BLE001  (the caller prints it)
            fault = FaultError.from_exception(error, "set-up of the run")
            self.run_error = fault.traceback_text or f"esper-sanctum: {fault}"
            return
        self.directory, self.run_directory, self._supervisor = run.directory, run.run_directory, run.pool.supervisor
        run.hub.warnings = self.warnings
        run.hub.take_printed = lambda: self._printed.take().for_log()
        for queue in self._subscribers:
            queue.put(run.hub.snapshot())
            run.hub.subscribe(queue)
        freeze_loaded_objects()
        try:
            with self._serve_viewers(run):
                run.train()
        except (RunFailedError, RecordingError) as error:
            self.run_error = f"esper-sanctum: {error}"

    def _serve_viewers(self, run: Run) -> closing[AttachServer] | nullcontext[None]:
        """Accept requests of viewers in other processes. If that fails, log the reason and train without."""
        if RankInfo.from_environment().rank > 0 or not run.run_directory:  # rank 0 receives the requests for all
            return nullcontext()
        try:
            return closing(AttachServer(run.run_directory.held, self.control, lambda: run.hub.failure))
        except AttachError as error:
            run.hub.emit(Logged(severity="warning", text=f"other processes cannot attach to this run: {error}"))
            return nullcontext()
