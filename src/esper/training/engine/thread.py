"""The engine in a thread beside a dashboard or console; imports torch only when started."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from esper.common.control import RequestQueue
from esper.common.system.process import NamedThread, RankInfo, freeze_loaded_objects
from esper.common.user_code.code_places import describe_place, find_in_thread
from esper.recordings.attach.protocol import AttachError
from esper.recordings.attach.server import AttachServer
from esper.recordings.events import Logged
from esper.recordings.state.state import Record
from esper.training.engine.ending import NOT_BEGUN, TRAINED, Ending, EngineLoadError, ending_of
from esper.training.engine.start_checks import check_start
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.lanes.printed_lines import PrintedLines
from esper.training.lanes.spawn import WorkerSpawner

if TYPE_CHECKING:
    from esper.common.system.ranks import RankGroup
    from esper.recordings.files.run_directory import RunDirectory
    from esper.training.engine.run import Run
    from esper.training.engine.run_files import RunFiles
    from esper.training.engine.run_kind import RunKind
    from esper.training.lanes.call_watch import CallSupervisor


PREPARATION_GRACE_S = 0.8
"""Seconds in which a run that is stopped while it is set up may end by itself."""
JOIN_POLL_S = 0.1


class EngineThread:
    """A thread that sets up and trains a run. It loads torch after `start`, so that the first frame need not wait.

    Args:
        start: Where the run starts, or why it cannot start, which all ranks raise. None: rank 0 decides.
        restart: Decides instead, if torchrun has restarted the ranks of another machine only.
        workers: Lanes whose worker processes are started before torch is imported, so that both import it at once.
        options: How the run is trained.

    Attributes:
        records: Every record of the run, for a dashboard or console.
        control: Queue of requests to the run.
    """

    def __init__(
        self,
        start: StartPoint | Exception | None,
        options: RunOptions | None = None,
        *,
        restart: Callable[[], StartPoint] | None = None,
        workers: Sequence[str] = (),
    ) -> None:
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.control = RequestQueue()
        self.warnings: deque[str] = deque()
        """Sentences for the log of the run, from any thread. Those that are left at its end have not been logged."""
        self._printed = PrintedLines()
        self._subscribers: list[SimpleQueue[Record]] = []
        self.ending: Ending | None = None
        """How the engine ended; None before its end."""
        self.files: RunFiles | None = None
        """Where the run is written; None before the run is set up."""
        self._start = start
        self._options = options or RunOptions()
        self._restart = restart
        self._workers = workers
        self._supervisor: CallSupervisor | None = None
        """Supervisor of the calls of the user's code; None before the run is set up."""
        self._kind: RunKind | None = None
        """Kind of the run; None before torch is loaded."""
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
    def directory(self) -> Path | None:
        """Path of the run directory; None before the run is set up."""
        return self.files.path if self.files else None

    @property
    def run_directory(self) -> RunDirectory | None:
        """Run directory, held open; None before the run is set up."""
        return self.files.directory if self.files else None

    @property
    def fatal_error(self) -> str | None:
        """Why the run could not be set up, in one sentence; None if it could."""
        return self.ending.text if self.ending and self.ending.kind == "refused" else None

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
        return self.start_place or ("setting up the run" if self._kind else "loading torch")

    @property
    def start_place(self) -> str | None:
        """Cause of a slow start, in words: trainings before a growth, or a line of the user's code.

        None if neither runs at present.
        """
        if self._kind and self._kind.stage:
            return self._kind.stage
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
        if self._thread.is_alive():
            self.ending = _given_up(RankInfo.from_environment())

    def _main(self) -> None:
        with closing(WorkerSpawner()) as spawner, self._printed:
            spawner.start_early(self._workers)
            try:
                self._run(spawner)
                self.ending = TRAINED
            except BaseException as error:  # noqa: BLE001  (the caller prints it)
                self.ending = ending_of(error, is_set_up=self.files is not None)

    def _run(self, spawner: WorkerSpawner) -> None:
        """Load torch, connect the ranks, set up the run and train it. Raises every error that ends the run."""
        try:
            from esper.common.system.ranks import destroy_ranks, init_ranks
            from esper.training.engine.run_kind import RunKind
            from esper.training.engine.setup import set_up_run
            from esper.training.lanes.errors import StoppedError
        except Exception as error:  # the installation of torch may be broken
            problem = f"the engine cannot be loaded ({type(error).__name__}: {error})"
            raise EngineLoadError(f"{problem}; reinstall torch and torchvision in matching versions") from error

        self._kind = kind = self._options.load_kind() if self._options.load_kind else RunKind()
        rank_info = RankInfo.from_environment()
        if self.control.stop_requested and rank_info.world_size == 1:  # other ranks would wait for this one
            raise StoppedError
        try:
            ranks = init_ranks(rank_info)
            start = self._agree_on_start(ranks, rank_info)
            run = set_up_run(start, self.control, self.records, self._options, kind, ranks=ranks, spawner=spawner)
            self.files, self._supervisor = run.files, run.pool.supervisor
            self._connect(run)
            freeze_loaded_objects()
            with self._serve_viewers(run):
                run.train()
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

    def _connect(self, run: Run) -> None:
        """Let the run log warnings and the output of the user's code, and send its records to the subscribers."""
        run.hub.warnings = self.warnings
        run.hub.take_printed = lambda: self._printed.take().for_log()
        for queue in self._subscribers:
            queue.put(run.hub.snapshot())
            run.hub.subscribe(queue)

    def _serve_viewers(self, run: Run) -> closing[AttachServer] | nullcontext[None]:
        """Accept requests of viewers in other processes. If that fails, log the reason and train without."""
        if RankInfo.from_environment().rank > 0:  # rank 0 receives the requests for all
            return nullcontext()
        try:
            return closing(AttachServer(run.files.own_directory.held, self.control, lambda: run.hub.failure))
        except AttachError as error:
            run.hub.emit(Logged(severity="warning", text=f"other processes cannot attach to this run: {error}"))
            return nullcontext()


def _given_up(rank_info: RankInfo) -> Ending:
    """Return the end of a run that was stopped while code of the user prepared it, which has not returned."""
    if rank_info.world_size == 1:
        return NOT_BEGUN
    # Torchrun ends the other ranks after a failure only.
    return Ending(
        "failed", f"esper-sanctum: rank {rank_info.rank} was stopped before the run had begun; nothing was saved"
    )
