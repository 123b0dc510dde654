"""Lane: one device and the thread that drives it.

Threads of one interpreter contend for the GIL: on a CPU at every operator, on a GPU at every launch. Every lane after
the first therefore has a worker, a process that trains the envs of the lane's part of a step (`worker.py`). A GPU
that waits for launches has several. The thread of such a lane does the rest: resets, and validations between steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import torch

from esper.common.system.process import name_current_thread
from esper.networks.tasks.splits import TaskData, move_data
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.lanes.call_watch import POLL_S, CallSupervisor
from esper.training.lanes.devices import torch_device
from esper.training.lanes.errors import FaultError
from esper.training.lanes.runner import DeviceResults, EnvRunner, EnvTask, HostResults, PendingResults, with_context
from esper.training.lanes.spawn import WorkerSpawner
from esper.training.lanes.worker import WorkerInit, WorkerProcess

T = TypeVar("T")


class Lane:
    """A device with its thread and its copy of the data.

    Args:
        name: Name such as `cuda:0` or `cpu:1`.
        data: Data of the task, on the device.
        envs: Maximum number of envs of one task.
        width: Maximum number of values that a task returns per env.
        single_stream: Run all envs on one stream of a GPU, one after another.
    """

    def __init__(self, name: str, data: TaskData, envs: int, width: int, *, single_stream: bool) -> None:
        self.name = name
        self.device = torch_device(name)
        self.data = data
        self.cuda_graphs: CudaGraphs | None = None
        """CUDA graphs of the envs that this process trains, set by the pool; None on a CPU."""
        self.supervisor = CallSupervisor()
        """Supervisor of the calls of all lanes, set by the pool."""
        self._worker_graphs: dict[WorkerProcess, int] = {}
        """Number of graphs that each worker has recorded."""
        self._notices: list[str] = []
        self._memory: dict[WorkerProcess, int] = {}
        """Bytes of live tensors of each worker on its GPU, after its last step."""
        self._runner = EnvRunner(name, self.device, envs, width, single_stream=single_stream)
        self.stopwatch = self._runner.stopwatch
        self._workers: list[WorkerProcess] = []
        self._turns: dict[int, int] = {}
        """Number of each env in the order in which the workers first received it, keyed by env index."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lane {name}", initializer=self._enter)

    def _enter(self) -> None:
        """Name the thread of the lane, and prepare it for the device."""
        name_current_thread(f"lane {self.name}")
        self._runner.enter_thread()

    def start_workers(self, count: int, init: WorkerInit, spawner: WorkerSpawner) -> None:
        """Start worker processes that train this lane's part of each step. Raises OSError."""
        for _ in range(count):
            self._workers.append(WorkerProcess(self.name, init, spawner, self.supervisor))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, or of this process without any."""
        return [worker.pid for worker in self._workers] or [os.getpid()]

    @property
    def worker_memory(self) -> int:
        """Bytes of live tensors of the workers on their GPU, after their last step."""
        return sum(self._memory.values())

    @property
    def recorded_graphs(self) -> int | None:
        """Number of CUDA graphs that were recorded for the envs of this lane so far; None on a CPU."""
        if self.cuda_graphs is None:
            return None
        return self.cuda_graphs.recordings + sum(self._worker_graphs.values())

    def take_notices(self) -> list[str]:
        """Return the messages about CUDA graphs that were not returned before."""
        found, self._notices = self._notices, []
        return found + (self.cuda_graphs.take_notices() if self.cuda_graphs else [])

    @property
    def has_workers(self) -> bool:
        """True if worker processes train this lane's part of each step."""
        return bool(self._workers)

    def submit(self, envs: Sequence[Env], task: EnvTask) -> PendingResults:
        """Run a task for envs in the thread of the lane, one env after another.

        The returned function waits for the results. It raises FaultError if the task failed for an env.
        """
        return partial(self._wait, self._thread.submit(with_context, self.name, self._runner.run, envs, task))

    def _wait(self, future: Future[T]) -> T:
        """Return the result of a task of the thread. Raises FaultError, also if the task is abandoned."""
        while not wait([future], POLL_S).done:
            self.supervisor.check(self, self._runner.watch.look())
        self.supervisor.note(self, None)
        return future.result()

    def submit_epochs(
        self, envs: Sequence[Env], prepare: Callable[[Env], None], step: int, *, last: bool
    ) -> PendingResults:
        """Prepare envs, train them for an epoch and validate them, in the workers or in the thread of the lane.

        Returns:
            A function that waits for the results. It raises FaultError if an env failed or a worker has ended.

        Raises:
            FaultError: `prepare` failed for an env.
        """
        if self._workers:
            for env in envs:
                self._runner.run_for_env(env, prepare, env)
            parts = self._split(envs)

            def send(worker: WorkerProcess, part: Sequence[Env]) -> PendingResults:
                with_context(self.name, worker.send, part, step, last=last)
                return partial(self._receive, worker, part, len(parts))

            return start_all(partial(send, worker, part) for worker, part in parts)

        def train_and_validate(env: Env) -> DeviceResults:
            if env is envs[0]:
                expect_reads(envs, step)
            prepare(env)
            return env.run_epoch(step, self.stopwatch, last=last)

        if self.device.type == "cpu":
            # This lane and the engine's thread would contend for the GIL, so it works only while that thread waits.
            def run_now() -> dict[int, HostResults]:
                return self.submit(envs, train_and_validate)()

            return run_now
        launch = self._thread.submit(with_context, self.name, self._runner.launch, envs, train_and_validate)
        launched = self._wait(launch)
        return partial(with_context, self.name, launched)

    def _split(self, envs: Sequence[Env]) -> list[tuple[WorkerProcess, list[Env]]]:
        """Return the workers that have envs, each with its own. A worker keeps the modules of its envs."""
        parts: list[list[Env]] = [[] for _ in self._workers]
        for env in envs:
            parts[self._turns.setdefault(env.index, len(self._turns)) % len(parts)].append(env)
        return [(worker, part) for worker, part in zip(self._workers, parts, strict=True) if part]

    def _receive(self, worker: WorkerProcess, envs: Sequence[Env], workers: int) -> dict[int, HostResults]:
        """Receive the results of a worker. The time of a phase is the mean over the workers of this step."""
        reply = with_context(self.name, worker.receive, envs)
        self._memory[worker] = reply.memory
        self._worker_graphs[worker] = reply.graphs
        self._notices += reply.notices
        for phase, seconds in reply.phases.items():
            self.stopwatch.add(phase, seconds / workers)
        return {env.index: results for env, results in zip(envs, reply.results, strict=True)}

    def close(self) -> None:
        """Wait for the running task unless it was abandoned, then stop the thread and the workers."""
        self._thread.shutdown(wait=self.supervisor.abandoned is None, cancel_futures=True)
        for worker in self._workers:
            worker.close()


def expect_reads(envs: Sequence[Env], step: int) -> None:
    """Let the readers read ahead what envs need that train one after another in the calling thread."""
    for env in envs:
        env.expect_reads(step)


def start_all(starts: Iterable[Callable[[], PendingResults]]) -> PendingResults:
    """Start work on several devices or in several processes. A part that cannot be started does not stop the others.

    Args:
        starts: Start the parts of the work. They may raise FaultError.

    Returns:
        A function that waits for all parts, for the last one first, and returns all results by env index. It raises
        FaultError if a part failed; no part is running any more then.
    """
    pending: list[PendingResults] = []
    faults: list[FaultError] = []
    for start in starts:
        try:
            pending.append(start())
        except FaultError as fault:
            faults.append(fault)

    def wait() -> dict[int, HostResults]:
        found: dict[int, HostResults] = {}
        for finish in reversed(pending):
            try:
                found |= finish()
            except FaultError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return found

    return wait


def open_lanes(
    names: Sequence[str],
    data: TaskData,
    envs: int,
    width: int,
    *,
    dtype_on: Callable[[torch.device], torch.dtype | None],
    channels_last: bool,
    single_stream: bool,
) -> list[Lane]:
    """Build the lanes of a run. Lanes of the same device share one copy of the data.

    Sets the number of intra-op threads of the calling thread to 1: for these small tensors, synchronising an intra-op
    thread pool costs more than it gains. The lanes themselves run in parallel.

    Args:
        names: Names of the lanes, at most one per env.
        data: Data of the task, on the CPU.
        width: Maximum number of values that a task returns per env.
        dtype_on: Returns the dtype of autocast on a device, in which the training pictures are stored.
        channels_last: Store pictures in the channels-last memory format.
        single_stream: Run all envs of a GPU on one stream, one after another.
    """
    torch.set_num_threads(1)
    data_on = {
        device: move_data(data, device, dtype_on(device), channels_last=channels_last)
        for device in {torch_device(name) for name in names}
    }
    return [Lane(name, data_on[torch_device(name)], envs, width, single_stream=single_stream) for name in names]
