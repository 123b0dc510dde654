"""Pool: all envs of this process, assigned to lanes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from esper.common.configuration.config import Config, ConfigError
from esper.common.formatting import format_bytes
from esper.common.seeding import EpisodeKey
from esper.networks.seeds.lifecycle import StageTransition
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import list_tensors
from esper.networks.tasks.contexts import find_round
from esper.networks.tasks.family import TaskFamily, structures_of
from esper.networks.tasks.optimizers import Optimizer, optimizer_name
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.registry import is_built_in
from esper.networks.tasks.splits import Split, TaskData, is_lazy, lazy_of, take, with_readers
from esper.networks.tasks.task import Task
from esper.training.envs.env import Env
from esper.training.envs.epoch_result import EpochResult, Validation, max_result_width
from esper.training.envs.hosts import HostFactory
from esper.training.envs.precision import LossScaler, make_scaler_factory, resolve_amp, set_float32_precision
from esper.training.envs.recipe_check import check_recipe
from esper.training.lanes.call_watch import CallSupervisor
from esper.training.lanes.dealing import deal_envs
from esper.training.lanes.device_names import is_cpu_lane, lanes_with_worker
from esper.training.lanes.devices import device_kind
from esper.training.lanes.errors import FaultError
from esper.training.lanes.gpu_workers import MIN_LAUNCHING, fitting_workers, useful_workers
from esper.training.lanes.lane import Lane, PendingResults, open_lanes, start_all
from esper.training.lanes.measurements import check_graphs, measure_epoch, measure_launching
from esper.training.lanes.readers import Readers, reader_count
from esper.training.lanes.runner import DeviceResults
from esper.training.lanes.spawn import WorkerSpawner
from esper.training.lanes.worker import WorkerInit, write_worker_data
from esper.training.policy.actions import Action

T = TypeVar("T")


@dataclass(frozen=True)
class EnvEpoch:
    """Transitions and results of one env in one step, before its slots tick."""

    moves: list[StageTransition]
    measured: EpochResult


MAX_GRAPH_EPOCH = 2 << 30
"""Maximum number of bytes of an epoch that is read when it is needed and copied into the buffers of graphs."""

PendingEpochs = Callable[[], dict[Env, EnvEpoch]]
"""Waits for the epochs of some envs and returns their results. Raises FaultError."""


class EnvPool:
    """Envs on lanes: dealt round-robin to lanes of one kind, and by measured speed to lanes of different kinds.

    CPU lanes are interchangeable: the envs of a step are distributed again to balance the load.

    Args:
        data: Data of the task, on the CPU.
        env_range: Indices of the envs of this process; None for all envs of the run.
        spawner: Starts the workers; it may have started some early. None: a new one.

    Attributes:
        envs: Envs of this process, in the order of their indices.
        lane_indices: Index of the lane of each env, in the same order.
        supervisor: Supervisor of the calls of the user's code.
        is_family: True if the task is a family, whose envs draw a context in each round.
        notices: Messages for the log about the use of CUDA graphs.

    Raises:
        ConfigError: Worker processes cannot be started, or cannot import the task.
        TaskError: An optimizer or the schedule of the task cannot be used.
    """

    def __init__(
        self,
        task: Task,
        profile: TaskProfile,
        data: TaskData,
        lanes: Sequence[str],
        config: Config,
        env_range: range | None = None,
        spawner: WorkerSpawner | None = None,
    ) -> None:
        env_range = range(config.envs) if env_range is None else env_range
        self._range = env_range
        self.task, self.profile = task, profile
        self.is_family = isinstance(task, TaskFamily)
        # Envs with a shared loss scale depend on each other in every batch, so on a GPU they run on one stream.
        single_stream = config.shares_loss_scale
        width = max_result_width(len(profile.sites), len(task.metrics))
        check_recipe(task, profile, data, config.steps)
        self._spawner, self._config = spawner or WorkerSpawner(), config
        self._readers, data = self._open_readers(data, len(lanes))
        set_float32_precision(config.amp)
        self.lanes = open_lanes(
            lanes[: len(env_range)],
            data,
            len(env_range),
            width,
            dtype_on=partial(resolve_amp, config.amp, float32_defaults=task.float32_defaults),
            channels_last=profile.channels_last,
            single_stream=single_stream,
        )
        cpu_lanes = [lane for lane in self.lanes if lane.device.type == "cpu"]
        self.interchangeable_lanes = cpu_lanes if len(cpu_lanes) > 1 and not single_stream else []
        """Lanes that may train the envs of each other."""
        self._surplus: dict[Lane, float] = {}
        """Seconds of work that each interchangeable lane was given beyond the least loaded one."""
        self._own_seconds: deque[float] = deque([0.0, 0.0], maxlen=2)
        """Seconds that this thread worked between two waits for results, in the last two of these times."""
        self._waited_until = time.perf_counter()
        self.supervisor = CallSupervisor()
        self._hosts_on = {
            device: HostFactory(task, profile, device, config.seed) for device in {lane.device for lane in self.lanes}
        }
        for lane in self.lanes:
            lane.cuda_graphs, lane.supervisor = self._hosts_on[lane.device].cuda_graphs, self.supervisor
        self.notices: list[str] = []
        self._recorded = self._check_graphs()
        kinds = [device_kind(lane.device) for lane in self.lanes]
        is_mixed = len(set(kinds)) > 1
        by_kind = dict(zip(kinds, self.lanes, strict=True)) if is_mixed else {}
        speeds = {kind: 1 / measure_epoch(self._env_to_measure(lane), lane) for kind, lane in by_kind.items()}
        self._open_workers(data, several_on_gpus=not (is_mixed or single_stream))
        for hosts in self._hosts_on.values():
            if hosts.cuda_graphs:
                hosts.cuda_graphs.clear()
        self.lane_indices = deal_envs([index // config.envs_per_host for index in env_range], kinds, speeds)
        scaler_on = {lane: make_scaler_factory(config.amp, config.scaler, lane.device) for lane in self.lanes}
        self.envs = [
            self._make_env(index, self.lanes[lane], scaler_on[self.lanes[lane]]())
            for index, lane in zip(env_range, self.lane_indices, strict=True)
        ]

    def _open_readers(self, data: TaskData, lanes: int) -> tuple[Readers | None, TaskData]:
        """Start the readers of this process, if some data are not in memory; return the data that they read.

        Closes the spawner and raises ConfigError if they cannot be started.
        """
        if not is_lazy(data):
            return None, data
        try:
            write_worker_data(data, self._spawner.data_file, is_family=self.is_family)
            readers = Readers(self.task.source, self._spawner.data_file.fileno(), reader_count(lanes))
            return readers, with_readers(data, readers)
        except OSError as error:
            self._spawner.close()
            raise ConfigError(f"the processes that read the data cannot be started: {error.strerror}") from error

    def _make_env(self, index: int, lane: Lane, scaler: LossScaler | None) -> Env:
        return Env(index, self._hosts_on[lane.device], lane.data, self._config, scaler)

    def _env_to_measure(self, lane: Lane, structure: int | None = None) -> Env:
        """Return an env that shares nothing that it changes, not even a loss scale.

        Args:
            structure: Index of the structure of its host, if a round with it can be found; None: any.
        """
        env = self._make_env(self._range.start, lane, make_scaler_factory(self._config.amp, "env", lane.device)())
        if structure not in (None, env.context.structure):
            config, host = self._config, self._range.start // self._config.envs_per_host
            found = find_round(self.task, config.context_seed or config.seed, host, structure)
            env.enter(env.key._replace(round=found or 0))
        return env

    def _check_graphs(self) -> frozenset[int]:
        """Return the structures whose kernels are recorded in CUDA graphs, after dry runs on a GPU of each kind."""
        gpus = {device_kind(lane.device): lane for lane in reversed(self.lanes) if lane.cuda_graphs}.values()
        tasks = structures_of(self.task) if gpus else ()
        agreeing = {index for index in range(len(tasks)) if all(self._is_recordable(index, lane) for lane in gpus)}
        for hosts in self._hosts_on.values():
            if hosts.cuda_graphs:
                hosts.cuda_graphs.structures |= agreeing
        return frozenset(agreeing)

    def _is_recordable(self, structure: int, lane: Lane) -> bool:
        """Return True if a dry run on a GPU agrees with launched kernels. If not, a notice says why."""
        task = structures_of(self.task)[structure]
        for spec in (task.optimizer, task.seed_optimizer):
            if isinstance(spec, Optimizer):
                problem = f"{optimizer_name(spec)} is not recorded in graphs"
                self.notices.append(f"the kernels of {task.name} are launched one by one: {problem}")
                return False
        if (size := _epoch_bytes(task, lane.data[structure].train)) > MAX_GRAPH_EPOCH:
            problem = f"an epoch has {format_bytes(size)} of samples that are read when they are needed"
            self.notices.append(f"the kernels of {task.name} are launched one by one: {problem}; see samples_per_epoch")
            return False
        env = self._env_to_measure(lane, structure) if task.cuda_graphs != "off" else None
        if env is None or lane.cuda_graphs is None or env.context.structure != structure:
            return False
        try:
            problem = check_graphs(env, lane, lane.cuda_graphs)
        except FaultError:  # the first step reports the same fault
            return False
        if problem is not None:
            self.notices.append(f"the kernels of {task.name} are launched one by one: {problem}")
        return problem is None

    def _open_workers(self, data: TaskData, *, several_on_gpus: bool) -> None:
        """Start the workers of the lanes. Closes the pool and raises ConfigError if they cannot be started."""
        try:
            workers = self._required_workers() | (self._gpu_workers() if several_on_gpus else {})
            self._start_workers(workers, data)
        except ConfigError:
            self.close()
            raise

    def _required_workers(self) -> dict[Lane, int]:
        """Return the number of workers of each lane, without those that only keep a GPU busy. Raises ConfigError."""
        names = lanes_with_worker([lane.name for lane in self.lanes])
        if not can_be_imported(self.task):  # GPUs do without a worker
            names = [name for name in names if is_cpu_lane(name)]
            if names:
                raise ConfigError(
                    f"the task {self.task.name} is not in a file, so the worker processes of {', '.join(names)} cannot "
                    f"import it; use --devices {self.lanes[0].name}"
                )
        return {lane: int(lane.name in names) for lane in self.lanes}

    def _gpu_workers(self) -> dict[Lane, int]:
        """Return the number of workers of each GPU that waits for Python and can have several.

        Without CUDA graphs, Python launches every kernel, and several processes launch more.
        """
        gpus = [lane for lane in self.lanes if lane.device.type == "cuda"]
        launched = set(range(len(structures_of(self.task)))) - self._recorded
        useful = useful_workers(len(self._range) // len(self.lanes), len(gpus)) if gpus and launched else 0
        if not useful or not can_be_imported(self.task):
            return {}
        try:
            launching = measure_launching(self._env_to_measure(gpus[0], min(launched)), gpus[0])
        except FaultError:  # the first step reports the same fault
            return {}
        if launching < MIN_LAUNCHING:
            return {}
        fitting = {lane: fitting_workers(lane.device, useful) for lane in gpus}
        return {lane: count for lane, count in fitting.items() if count}

    def _start_workers(self, workers: Mapping[Lane, int], data: TaskData) -> None:
        with_workers = [lane for lane in self.lanes if workers[lane]]
        if not with_workers:
            return
        # As the CPU lanes use them: these workers need no copy of their own.
        ready = next((lane.data for lane in with_workers if is_cpu_lane(lane.name)), data)
        try:
            if self._readers is None:
                write_worker_data(ready, self._spawner.data_file, is_family=self.is_family)
            fd = self._spawner.data_file.fileno()
            readers = reader_count(len(self.lanes)) if self._readers else 0
            init = WorkerInit(self.task.source or self.task, self.profile, self._config, fd, self._recorded, readers)
            for lane in with_workers:
                lane.start_workers(workers[lane], init, self._spawner)
        except OSError as error:
            names = ", ".join(lane.name for lane in with_workers)
            first = self.lanes[0]
            advice = "end other programs" if workers[first] else f"--devices {first.name} needs no worker"
            raise ConfigError(
                f"the worker processes of {names} cannot be started: {error.strerror}; {advice}"
            ) from error

    def _lane_of(self, env: int) -> Lane:
        return self.lanes[self.lane_indices[self._range.index(env)]]

    @property
    def shares_loss_scale(self) -> bool:
        """True if the envs of a lane share a loss scale, so that the order of their epochs matters."""
        return self._config.shares_loss_scale

    @property
    def lane_by_env(self) -> list[str]:
        """Name of the lane of each env, in the order of `envs`."""
        return [self._lane_of(env.index).name for env in self.envs]

    def group_by_lane(self, values: Iterable[T]) -> list[list[T]]:
        """Return the values of the envs, given in the order of `envs`, as a list per lane."""
        found: list[list[T]] = [[] for _ in self.lanes]
        for lane, value in zip(self.lane_indices, values, strict=True):
            found[lane].append(value)
        return found

    def reset(self, round_index: int) -> list[Validation]:
        """Give every env the fresh host of a round. Return validation loss and score of each before any training."""
        return self.begin(self.keys_of(round_index))

    def keys_of(self, round_index: int, width: float = 1.0) -> dict[Env, EpisodeKey]:
        """Return the key of the episode of every env in a round of a run, with hosts of a width."""
        return {env: env.key._replace(round=round_index, width=width) for env in self.envs}

    def begin(self, keys: Mapping[Env, EpisodeKey]) -> list[Validation]:
        """Give envs the fresh hosts of their next episodes. Return validation loss and score of each, in this order."""

        def start(lane: Lane, envs: Sequence[Env]) -> PendingResults:
            def work(env: Env) -> DeviceResults:
                with lane.stopwatch("reset"):
                    env.reset(keys[env])
                    return _validate_seeded(env)

            return lane.submit(envs, work)

        found = self._start_on_lanes(list(keys), start)()
        return [Validation.of(found[env.index][0]) for env in keys]

    def reset_loss_scales(self) -> None:
        """Give every env the initial loss scale."""
        for env in self.envs:
            if env.scaler:
                env.scaler.reset()

    def step(self, actions: Sequence[Action | None], step: int) -> list[EnvEpoch | None]:
        """Apply a decision to each env, train it for an epoch and validate it; None for one whose action is None."""
        decided = {env: action for env, action in zip(self.envs, actions, strict=True) if action is not None}
        found = self.start_step(decided, step)()
        return [found.get(env) for env in self.envs]

    def start_step(self, actions: Mapping[Env, Action], step: int) -> PendingEpochs:
        """Apply a decision to each of some envs, and start to train them for an epoch and to validate them.

        Other envs may be in the middle of a step. Results must be waited for in the order of the starts.
        """
        moves: dict[Env, list[StageTransition]] = {}

        def apply(env: Env) -> None:
            moves[env] = env.apply_action(actions[env], step)

        def start(lane: Lane, envs: Sequence[Env]) -> PendingResults:
            return lane.submit_epochs(envs, apply, step, last=step == self._config.steps - 1)

        load = self._loads()
        pending = self._start_on_lanes(list(actions), start, load)
        self._note_loads(load, actions)

        def wait() -> dict[Env, EnvEpoch]:
            self._own_seconds.append(time.perf_counter() - self._waited_until)
            found = pending()
            self._waited_until = time.perf_counter()
            epochs: dict[Env, EnvEpoch] = {}
            for env in actions:
                trained, validated = found[env.index]  # as `Env.run_epoch` returns them
                epochs[env] = EnvEpoch(moves[env], env.unpack_results(trained, validated))
            return epochs

        return wait

    def validate(self, envs: Sequence[Env]) -> list[Validation]:
        """Return validation loss and score of some envs in their current state."""
        found = self._start_on_lanes(envs, lambda lane, part: lane.submit(part, _validate_seeded))()
        return [Validation.of(found[env.index][0]) for env in envs]

    def test_scores(self) -> list[float]:
        """Return the score of every env on the test split. For `evaluate` only."""

        def work(env: Env) -> DeviceResults:
            with env.seeded("test"):
                return [env.sample_scores(env.splits.test).mean(dim=0, keepdim=True)]

        found = self._start_on_lanes(self.envs, lambda lane, envs: lane.submit(envs, work))()
        return [score for ((score,),) in (found[env.index] for env in self.envs)]

    def close(self) -> None:
        """Stop the threads and workers of the lanes, and close the spawner."""
        for lane in self.lanes:
            lane.close()
        if self._readers is not None:
            self._readers.close()
        self._spawner.close()

    def _start_on_lanes(
        self,
        envs: Sequence[Env],
        start: Callable[[Lane, Sequence[Env]], PendingResults],
        load: dict[Lane, float] | None = None,
    ) -> PendingResults:
        """Start work on every lane for its part of the envs.

        The returned function waits for all lanes. It raises FaultError if a lane failed; no lane runs this work then.

        Args:
            load: Seconds of work that each interchangeable lane has already; the work is added.
        """
        load = dict.fromkeys(self.interchangeable_lanes, 0.0) if load is None else load
        # Send to the workers before a thread runs, and receive after it has finished: threads of one interpreter slow
        # each other down.
        parts = sorted(self._assign_envs(envs, load), key=lambda assigned: not assigned[0].has_workers)
        return start_all(partial(start, lane, part) for lane, part in parts)

    def _assign_envs(self, envs: Sequence[Env], load: dict[Lane, float]) -> list[tuple[Lane, list[Env]]]:
        """Assign envs to lanes.

        Envs of interchangeable lanes go, longest last epoch first, to the least loaded lane, preferring their own (LPT;
        Graham, 1969, "Bounds on multiprocessing timing anomalies"). All other envs go to their own lane.
        """
        parts: dict[Lane, list[Env]] = {lane: [] for lane in self.lanes}
        shared: list[Env] = []
        for env in envs:
            own = self._lane_of(env.index)
            (shared if own in load else parts[own]).append(env)
        for env in sorted(shared, key=lambda env: -env.epoch_seconds):
            own = self._lane_of(env.index)
            lane = min(load, key=lambda lane: (load[lane], lane is not own))
            load[lane] += env.epoch_seconds
            parts[lane].append(env)
        return [(lane, part) for lane, part in parts.items() if part]

    def _loads(self) -> dict[Lane, float]:
        """Return the load of each interchangeable lane before a group of envs is started, in seconds of work.

        The load is the surplus from earlier groups, plus, for a lane without a worker, the seconds that this thread
        needs for its own work.
        """
        own = min(self._own_seconds)  # once in a while, this thread also updates the policy or writes a checkpoint
        return {
            lane: self._surplus.get(lane, 0.0) + (0.0 if lane.has_workers else own)
            for lane in self.interchangeable_lanes
        }

    def _note_loads(self, load: Mapping[Lane, float], envs: Iterable[Env]) -> None:
        """Store the surplus of each lane over the least loaded one, at most the mean load per lane of these envs."""
        minimum = min(load.values(), default=0.0)
        limit = sum(env.epoch_seconds for env in envs) / max(len(load), 1)
        self._surplus = {lane: min(seconds - minimum, limit) for lane, seconds in load.items()}


def _epoch_bytes(task: Task, split: Split) -> int:
    """Return the bytes of the samples of an epoch, which graphs read from buffers; 0 if they are in memory anyway."""
    if lazy_of(split) is None:
        return 0
    return sum(tensor.nbytes for tensor in list_tensors(take(split, torch.zeros(1, dtype=torch.int64)))) * (
        task.count_epoch_samples(count_samples(split[0]))
    )


def can_be_imported(task: Task) -> bool:
    """Return True if worker processes can import a task: a built-in one, or the user's code in a file."""
    return task.source is not None or is_built_in(task.name)


def _validate_seeded(env: Env) -> DeviceResults:
    """Validate an env outside a step, with the same random numbers each time in a round."""
    with env.seeded("first validation"):
        return [env.validate(last=False)]
