"""Set-up of a run from its configuration. Everything is validated before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import torch

from esper.checkpoint.catalog import list_checkpoints
from esper.checkpoint.manifest import CheckpointError, Manifest, read_manifest
from esper.config import Config, ConfigError, TaskError
from esper.control import RequestQueue
from esper.engine import reporter
from esper.engine.agent_factory import build_agent, build_candidates, proposing_policies
from esper.engine.checkpointer import Checkpointer
from esper.engine.fresh_scores import check_samples
from esper.engine.growth import FRESH_HOSTS, Growth, growth_identity
from esper.engine.growth_director import GrowthDirector
from esper.engine.growth_results import GrowthResults
from esper.engine.host_training import choose_steps
from esper.engine.resume_options import resume_options
from esper.engine.run_control import RankedRequestQueue
from esper.engine.start_point import StartPoint
from esper.engine.trained_policy import policy_label
from esper.engine.trainer import Trainer
from esper.engine.training_state import TrainingState
from esper.engine.unfinished import command_digest
from esper.engine.wide_host import open_wide_pool
from esper.harvest.model import check_is_one_structure
from esper.health.detector import AnomalyDetector
from esper.health.thresholds import Thresholds
from esper.lanes.call_watch import LIMIT_S, OverdueCall
from esper.lanes.device_names import assign_lanes_to_rank, is_auto, is_cpu_lane
from esper.lanes.device_stats import cuda_uuid
from esper.lanes.devices import resolve_devices, resolve_policy_device, torch_device, unusable_gpus
from esper.lanes.errors import FaultError, RunFailedError, StoppedError
from esper.lanes.pool import EnvPool
from esper.lanes.spawn import WorkerSpawner
from esper.process import RankInfo
from esper.ranks import SINGLE_RANK, RankGroup, RankLostError, reduce_on_gpu
from esper.recording.notes import RunNotes, update_notes
from esper.recording.recorder import (
    Recorder,
    RecordingError,
    check_run_directory,
    open_run_directory,
    write_manifest,
)
from esper.recording.run_directory import RunDirectory
from esper.recording.run_lock import RunLock
from esper.recording.runs import make_run_directory
from esper.search.search import PlanSearch
from esper.search.space import PlanSpace
from esper.tasks.prepare import PreparedTask, SavedTask, prepare_task
from esper.tasks.profile import TaskProfile
from esper.tasks.splits import TaskData
from esper.tasks.task import Task
from esper.telemetry import events as ev
from esper.telemetry.hub import EventHub, FirstRankEventHub, OtherRankEventHub
from esper.telemetry.state import Keyframe, Record, RunState

_LOST = "its events and checkpoints are lost; start the run again"
"""Advice after the run directory was deleted."""
_NOT_BEGUN = "the run was stopped while it was set up; nothing was saved"


class Run:
    """A run that is ready to train: its directory exists and its recorder is running.

    Args:
        start: Where the run starts; the same on all ranks.
        records: Receives every record, for a dashboard or console.
        ranks: The ranks of the run, which are connected.
        interactive: Hold the run on a fault and wait for the user. If False, a fault ends the run. Ignored with several
            ranks.
        task: Task to train on; None: the one that the configuration names.
        accept_changed_task: Resume although the code of the user's task has changed since the checkpoint.
        spawner: Starts the workers of CPU lanes; None: a new one.
        growth: Growth of one network, whose results it receives; None for an ordinary run.
        notes: Notes to store with the run; of a resumed run, they replace those that are given.

    Raises:
        ConfigError: This machine cannot satisfy the configuration.
        TaskError: The task cannot be loaded or grown, or its data set is missing or damaged.
        ReadError: The notes on the resumed run cannot be read.
        CheckpointError: The checkpoint is damaged or does not fit the configuration.
        RecordingError: The run directory is not at its path or cannot be written, or another process trains the run.
        RankLostError: Another rank has ended or does not respond.
        StoppedError: A stop was requested before there was anything to save.
    """

    run_directory: RunDirectory | None = None
    """The run directory, held open; None on a machine that does not have it, because rank 0 is on another one."""
    _lock: RunLock | None = None
    """Lock of the run; None on other ranks than 0."""

    def __init__(
        self,
        start: StartPoint,
        control: RequestQueue,
        records: SimpleQueue[Record],
        *,
        ranks: RankGroup = SINGLE_RANK,
        interactive: bool = False,
        task: Task | None = None,
        accept_changed_task: bool = False,
        spawner: WorkerSpawner | None = None,
        growth: Growth | None = None,
        notes: RunNotes | None = None,
    ) -> None:
        rank_info = RankInfo.from_environment()
        config = start.config
        self._identity = growth_identity(config, growth.request) if growth else None
        lanes = assign_lanes_to_rank(resolve_devices(config.devices), rank_info, leave_out=is_auto(config.devices))
        resolve_policy_device(config.policy_device)
        saved = ranks.run_on_rank0(lambda: _read_saved(start))  # only it must see the run
        with ExitStack() as opened:
            opened.callback(start.release)
            self.ranks = ranks = reduce_on_gpu(ranks, config.policy_device)
            _check_gpus(lanes, rank_info, ranks)
            prepared = prepare_task(
                config,
                task,
                SavedTask(str(saved.config["task"]), saved.origin) if saved else None,
                accept_changed=accept_changed_task,
                ranks=ranks,
            )
            task, data, profile, config, origin, defaults = prepared
            if growth:
                config = self._configure_growth(growth, saved, prepared, lanes, control)
            self.pool = EnvPool(task, profile, data, lanes, config, ranks.env_range(config.envs), spawner)
            opened.callback(self.pool.close)
            agent = (
                build_candidates(config, profile)
                if growth
                else build_agent(config, profile.sites, profile.blueprints, ranks, resumes=not start.is_new)
            )
            space = _plan_space(growth, config, profile) if growth else None
            self._command = start.command or command_digest(start.config, notes.name if notes else "")
            self._open_directory(start, config, control)
            lock_warning = ranks.run_on_rank0(lambda: self._open_recording(config, notes, start.lock, opened))
            self.hub.subscribe(records)
            state = TrainingState(config=config, pool=self.pool, agent=agent, hub=self.hub, ranks=ranks, origin=origin)
            self._results = self._direct(growth, space, state, control, data, lanes) if growth and space else None
            self.trainer = Trainer(
                state,
                control=control if ranks.is_single else RankedRequestQueue(control, ranks),
                checkpointer=Checkpointer(self.directory, self.run_directory, config.keep),
                interactive=interactive and ranks.is_single,
            )
            self._restore(start)
            self._emit_run_started(config, defaults)
            self._emit_notices(config, lock_warning if ranks.rank == 0 else None)
            self._opened = opened.pop_all()
            """Resources of the run, closed in reverse order at its end."""

    @property
    def _own_directory(self) -> RunDirectory:
        """The run directory, which rank 0 writes to."""
        assert self.run_directory is not None
        return self.run_directory

    def _configure_growth(
        self,
        growth: Growth,
        saved: Manifest | None,
        prepared: PreparedTask,
        lanes: Sequence[str],
        control: RequestQueue,
    ) -> Config:
        """Check the task of a growth, and return the configuration with its rounds, and with its steps until flat.

        Raises:
            TaskError: The task cannot be grown, or its host cannot be trained.
            ConfigError: The limit of parameters is not valid.
            StoppedError: A stop was requested meanwhile.
        """
        task, data, profile, config, _, _ = prepared
        check_is_one_structure(task)
        check_samples(task.name, data[0])
        growth.request.info(profile.host_parameters)  # checks the limit before anything is written
        config = msgspec.structs.replace(config, rounds=growth.request.expected_rounds(config.envs))
        if not growth.request.until_flat:
            return config
        if saved:
            return msgspec.structs.replace(config, steps=saved.config["steps"])

        def open_pool(steps: int) -> closing[EnvPool]:
            growth.stage = f"training your network for {steps} steps, to choose --steps"
            hosts = msgspec.structs.replace(config, envs=FRESH_HOSTS, steps=steps)
            return closing(EnvPool(task, profile, data, lanes, hosts))

        try:
            steps = choose_steps(config.steps, config.seed, open_pool, lambda: control.stop_requested)
        except FaultError as fault:
            raise TaskError(str(fault)) from fault
        growth.stage = None
        if steps is None:
            raise StoppedError(_NOT_BEGUN)
        return msgspec.structs.replace(config, steps=steps)

    def _begin(self, control: RequestQueue) -> None:
        """Let a stop request wait for the engine from now on. Raises StoppedError if a stop was requested before."""
        control.has_begun = not any(self.ranks.all_gather_object(control.stop_requested))
        if not control.has_begun:
            raise StoppedError(_NOT_BEGUN)
        self.pool.supervisor.seconds_since_stop = control.seconds_since_stop
        self._report_calls()

    def _open_directory(self, start: StartPoint, config: Config, control: RequestQueue) -> None:
        """Begin the run: open its directory, which rank 0 creates for a new run, and the hub of another rank.

        Raises:
            StoppedError: A stop was requested before.
            RecordingError: Rank 0 cannot create or open it.
        """
        self._begin(control)

        def open_on_rank0() -> Path:
            self.run_directory = start.directory or _new_directory(config)
            return self.run_directory.path

        self.directory = self.ranks.run_on_rank0(open_on_rank0)
        if self.ranks.rank > 0:
            self.hub = OtherRankEventHub(self.ranks)
            with suppress(OSError):  # another machine may not have it
                self.run_directory = RunDirectory(self.directory)

    def _report_calls(self) -> None:
        """Report calls of the user's code that do not return. Rank 0 reports those of the ranks that it waits for."""
        supervisor, ranks = self.pool.supervisor, self.ranks  # the hub is opened later

        def report_call(call: OverdueCall, seconds: float | None) -> None:
            if ranks.rank > 0:  # its events reach rank 0 after the step only
                ranks.put_note(supervisor.overdue)
            elif seconds is None:
                self.hub.emit(ev.CallOverdue(**call._asdict(), max_seconds=LIMIT_S))
            else:
                self.hub.emit(ev.CallEnded(env=call.env, seconds=seconds))

        def check_others() -> None:
            for rank, call in ranks.read_notes().items():
                supervisor.check(rank, call)

        supervisor.report = lambda text: self.hub.emit(ev.Logged(severity="warning", text=text))
        supervisor.report_call = report_call
        if ranks.rank == 0:
            ranks.while_waiting = check_others

    def _restore(self, start: StartPoint) -> None:
        """Restore the state of a run that was begun before."""
        if start.checkpoint:
            self.trainer.run_control.restore(start.checkpoint, "command line")
        elif start.directory:  # on rank 0; its events so far stay in the recording as undone events
            self.hub.rewind(Keyframe.from_state(RunState()))

    def _direct(
        self,
        growth: Growth,
        space: PlanSpace,
        state: TrainingState,
        control: RequestQueue,
        data: TaskData,
        lanes: Sequence[str],
    ) -> GrowthResults:
        """Give a growth its director, and return the object that computes its results at the end."""
        config, pool = state.config, self.pool
        task, profile = pool.task, pool.profile

        def make_search() -> PlanSearch:
            return PlanSearch(space, policies=proposing_policies(config), plans=[config.plan], seed=config.seed)

        director = GrowthDirector(growth.request, make_search, state)
        state.director = director

        def open_wide(ratio: float) -> AbstractContextManager[tuple[EnvPool, float]]:
            wide = msgspec.structs.replace(config, envs=FRESH_HOSTS)
            return open_wide_pool(task, profile, data, ratio, lanes, wide)

        return GrowthResults(
            growth,
            director,
            state,
            control,
            task=task,
            splits=data[0],
            run=self._own_directory,
            open_wide=open_wide if task.wide_model else None,
        )

    def _open_recording(
        self, config: Config, notes: RunNotes | None, lock: RunLock | None, opened: ExitStack
    ) -> str | None:
        """Lock the directory of a new run, store notes, open recorder and hub. Return the warning of the lock.

        Raises:
            RecordingError: Another process trains the run, or its directory is not at its path or cannot be written.
            ReadError: The notes on the resumed run cannot be read.
        """
        if lock is None:
            lock = RunLock(self._own_directory)
            opened.callback(lock.release)
        self._lock = lock
        if notes is not None:  # first of all: a sweep finds its runs by their notes
            try:
                update_notes(self._own_directory, notes)
            except OSError as error:
                raise RecordingError(f"cannot write the notes on {self.directory}: {error.strerror}") from error
        recorder = Recorder(self._own_directory, config.sync_seconds)
        opened.callback(recorder.close)
        detector = AnomalyDetector(Thresholds.from_config(config))
        if self.ranks.is_single:
            self.hub = EventHub(recorder, detector)
        else:
            self.hub = FirstRankEventHub(recorder, detector, self.ranks)
        return lock.warning

    def _emit_run_started(self, config: Config, defaults: dict[str, Any]) -> None:
        builtins = msgspec.to_builtins(config)
        lanes = [lane for of_rank in self.ranks.all_gather_object(self.pool.lane_by_env) for lane in of_rank]
        manifest: dict[str, Any] = {"run": self.directory.name, "config": builtins, "versions": reporter.versions()}
        manifest |= {"growth": self._identity} if self._identity else {"command": self._command}
        self.ranks.run_on_rank0(lambda: write_manifest(self._own_directory, manifest))
        director = self.trainer.state.director
        started = reporter.run_started(
            self.directory.name,
            config,
            self.pool,
            self.trainer.state.origin,
            policy="search" if director else policy_label(config.policy),
            lanes=lanes,
            task_defaults=defaults,
            search=director.search_state.info if isinstance(director, GrowthDirector) else None,
        )
        self.hub.emit_global(started)

    def _emit_notices(self, config: Config, lock_warning: str | None) -> None:
        unused = unusable_gpus() if is_auto(config.devices) else {}
        warnings = [f"{gpu} is not used: {reason}" for gpu, reason in unused.items()]
        for text in filter(None, [lock_warning, *warnings]):
            self.hub.emit(ev.Logged(severity="warning", text=text))
        for text in self.pool.profile.warnings:  # the same in all ranks
            self.hub.emit_global(ev.Logged(severity="warning", text=text))
        for text in self.pool.notices:
            self.hub.emit(ev.Logged(severity="info", text=text))
        for lane in self.pool.lanes:
            if len(lane.pids) > 1:  # of a GPU that waits for launches
                text = f"{len(lane.pids)} worker processes train the envs of {lane.name}"
                self.hub.emit(ev.Logged(severity="info", text=text))

    def train(self) -> None:
        """Train until the end or a stop request, then close everything. Errors are recorded as events and raised.

        Sets the number of intra-op threads of the calling thread to 1, as the lanes do: results must not depend on the
        number of cores. The setting belongs to a thread, and another thread may have built the run.

        Raises:
            RunFailedError: A step failed, or the last checkpoint or the last events cannot be written.
            RankLostError: Another rank has ended or does not respond.
        """
        torch.set_num_threads(1)
        try:
            with self._opened:
                if self._lock:
                    self.hub.flush()  # viewers must find the start of the run in the recording
                    self._lock.mark_started()
                self._train_and_report()
        except RunFailedError as error:
            if self.hub.failure and self.hub.failure not in str(error):
                raise RunFailedError(f"{error}; {self.hub.failure}") from error
            raise
        if self.hub.failure:
            is_lost = self.run_directory is not None and self.run_directory.is_deleted
            raise RunFailedError(f"{self.hub.failure}; {_LOST}" if is_lost else self.hub.failure)

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
            text = f"{fault}{self._save_traceback(fault)}"
        except RunFailedError as failure:
            text = str(failure)
        except RankLostError as lost:
            raise RankLostError(f"{lost}; {self._resume_hint()}") from lost
        else:
            self._finish_growth()
            return outcome
        hint = self._resume_hint()
        raise RunFailedError(f"{text}; {hint}" if hint else text)

    def _finish_growth(self) -> None:
        """Compute the results of a growth. Raise RunFailedError, with how to try again, if no network can be built."""
        if self._results is None:
            return
        try:
            self._results.finish()
            return
        except FaultError as fault:
            text = f"{fault}{self._save_traceback(fault)}"
        raise RunFailedError(f"{text}; the same command tries again")

    def _save_traceback(self, fault: FaultError) -> str:
        """Write the traceback of a fault to the run directory, and return a note of its path for the message."""
        if fault.traceback_text is None:
            return ""
        rank = self.ranks.rank
        path = self.directory / (f"traceback-rank-{rank}.txt" if rank else "traceback.txt")
        try:
            # Another machine may not share the file system of rank 0.
            directory = self.run_directory or RunDirectory.make(self.directory)
            (directory.check() / path.name).write_text(fault.traceback_text)
        except OSError as error:
            return f" (its traceback cannot be written to {path}: {error.strerror})"
        return f" (traceback in {path})"

    def _resume_hint(self) -> str:
        """Return how to go on after a failure; empty if there is no way."""
        directory, condition = self.directory, ""
        if self.run_directory is not None:
            if self.run_directory.is_deleted:
                return _LOST
            directory = self.run_directory.held
            try:
                self.run_directory.check()
            except OSError:
                condition = "put the directory back, then "
        try:
            checkpoints = list_checkpoints(directory)
            if self._results is not None:
                return f"{condition}the same command continues the growth" if checkpoints else ""
            if not checkpoints:
                return "no checkpoint was written; start the run again"
            newest = read_manifest(checkpoints[-1])
        except (OSError, CheckpointError) as error:
            return f"list checkpoints to resume from with `esper-sanctum checkpoints {self.directory}`: {error}"
        state = self.trainer.state
        options = resume_options(self.directory, state.origin, state.config.policy)
        if newest.round >= state.config.rounds:
            return f"{condition}its last round is saved, and {options} records its end"
        at = f"step {newest.step + 1}" if newest.step < newest.config["steps"] else "its end"
        return f"{condition}{options} continues at round {newest.round + 1}, {at}"


def _check_gpus(lanes: Sequence[str], rank_info: RankInfo, ranks: RankGroup) -> None:
    """Check that no two ranks use the same GPU. Raises ConfigError on all ranks."""
    own = [f"{rank_info.node_rank}/{cuda_uuid(torch_device(lane))}" for lane in lanes if not is_cpu_lane(lane)]
    ranks_by_gpu: dict[str, list[int]] = {}
    for rank, gpus in enumerate(ranks.all_gather_object(own)):
        for gpu in gpus:
            ranks_by_gpu.setdefault(gpu, []).append(rank)
    for sharing in ranks_by_gpu.values():
        if len(sharing) > 1:
            raise ConfigError(
                f"ranks {' and '.join(map(str, sharing))} would use the same GPU; set CUDA_VISIBLE_DEVICES to another "
                "GPU for each rank, or to all GPUs for every rank"
            )


def _plan_space(growth: Growth, config: Config, profile: TaskProfile) -> PlanSpace:
    """Return the plans that a growth can try. Raises ConfigError if the plan of the user is larger than they may be."""
    limit = growth.request.info(profile.host_parameters).max_parameters
    space = PlanSpace(profile.sites, config.steps, profile.host_parameters, limit)
    if not space.fits(config.plan):
        raise ConfigError(
            f"--plan has {space.parameter_ratio(config.plan):.3g} times the parameters of your network, more than "
            f"--max-parameters {growth.request.max_parameters}; change one of them"
        )
    return space


def _read_saved(start: StartPoint) -> Manifest | None:
    """Return the manifest of the checkpoint that a run resumes from; None without one.

    Raises:
        CheckpointError: It is damaged.
        RecordingError: The directory is not at its path any more.
    """
    if start.directory:
        check_run_directory(start.directory)
    return read_manifest(start.checkpoint) if start.checkpoint else None


def _new_directory(config: Config) -> RunDirectory:
    """Create the directory of a new run. Raises RecordingError."""
    try:
        path = make_run_directory(config.task, datetime.now(), Path(config.telemetry_dir))
    except OSError as error:
        raise RecordingError(f"cannot record to {config.telemetry_dir}: {error.strerror}") from error
    return open_run_directory(path)
