"""Lane: one device and the thread that drives it.

On CPUs, threads would contend for the GIL. Every CPU lane after the first therefore has a worker, a process that trains
the envs of the lane's part of a step (`lanes/worker.py`).

On a GPU the thread only launches kernels. The envs are dealt to a few streams, so that the small kernels of different
envs overlap; the stream of an env orders its steps. One thread launches, so more streams would hardly overlap more, and
each costs an allocator cache and a workspace of cuBLAS. Before each task, the stream of the env waits for the default
stream of the device, on which all other code launches (for example when a checkpoint is saved or restored). After the
task, also if it failed, the default stream waits for the streams of all envs. No tensor that is used on several streams
can be freed meanwhile: the data and the result buffer live as long as the lane, and the tensors of an env are used on
its stream only. So no tensor needs `record_stream`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from esper.envs.env import Env
from esper.envs.stopwatch import CudaPhaseTimer, PhaseTimer
from esper.lanes.devices import torch_device
from esper.lanes.errors import FaultError
from esper.lanes.spawn import WorkerSpawner
from esper.lanes.worker import WorkerInit, WorkerProcess
from esper.process import name_current_thread
from esper.tasks.splits import Splits

P = ParamSpec("P")
T = TypeVar("T")
DeviceResults = list[Tensor]
"""Results of a task for one env: float32 vectors on the device."""
HostResults = list[list[float]]
"""The same vectors on the host."""
EnvTask = Callable[[Env], DeviceResults]
"""A task that is run for an env."""
PendingResults = Callable[[], dict[int, HostResults]]
"""Waits for a submitted task and returns its results, keyed by env index."""


MAX_STREAMS = 4
"""Maximum number of streams of a GPU."""


class ResultBuffer:
    """Result buffer of a lane: one row per env on the device, copied to the host in a single transfer.

    Args:
        device: Device of the lane.
        rows: Maximum number of envs.
        width: Maximum number of values per env.
    """

    def __init__(self, device: torch.device, rows: int, width: int) -> None:
        self._device_RW = torch.zeros(rows, width, device=device)
        pinned = torch.zeros(rows, width, pin_memory=True) if device.type == "cuda" else None
        self._host_RW = self._device_RW if pinned is None else pinned
        self._sizes: dict[int, list[int]] = {}
        """Lengths of the vectors of each env, keyed by env index in the order of the rows."""

    def clear(self) -> None:
        """Remove all rows."""
        self._sizes.clear()

    def append(self, env: int, vectors: Sequence[Tensor]) -> None:
        """Write the vectors of an env to the next row, on the current stream."""
        row = self._device_RW[len(self._sizes)]
        sizes = self._sizes[env] = [len(vector) for vector in vectors]
        torch.cat(list(vectors), out=row[: sum(sizes)])

    def start_copy(self) -> None:
        """Start to copy the rows to the host, on the current stream."""
        if self._host_RW is not self._device_RW:
            rows = len(self._sizes)
            self._host_RW[:rows].copy_(self._device_RW[:rows], non_blocking=True)

    def wait(self) -> dict[int, HostResults]:
        """Return the copied vectors, keyed by env index. This is the only place where the host waits for the GPU."""
        if self._host_RW is not self._device_RW:
            copied = torch.cuda.Event(blocking=True)
            copied.record()
            copied.synchronize()
        # The types of PyTorch do not say what `tolist` returns.
        rows: list[list[float]] = cast("Any", self._host_RW[: len(self._sizes)]).tolist()
        return {env: _split(row, sizes) for (env, sizes), row in zip(self._sizes.items(), rows, strict=True)}


def _split(row: list[float], sizes: Sequence[int]) -> HostResults:
    values = iter(row)
    return [[next(values) for _ in range(size)] for size in sizes]


class Lane:
    """A device with its thread and its copy of the data.

    Args:
        name: Name such as `cuda:0` or `cpu:1`.
        splits: Data of the task, on the device.
        envs: Maximum number of envs of one task.
        width: Maximum number of values that a task returns per env.
        single_stream: Run all envs on one stream of a GPU, one after another.
    """

    def __init__(self, name: str, splits: Splits, envs: int, width: int, *, single_stream: bool) -> None:
        self.name = name
        self.device = torch_device(name)
        self.splits = splits
        self.stopwatch = PhaseTimer()
        self._result_buffer = ResultBuffer(self.device, envs, width)
        self._max_streams = 1 if single_stream else MAX_STREAMS
        self._streams: list[torch.cuda.Stream] = []
        """Streams of the GPU, created when the first envs use them; empty on a CPU."""
        self._stream_by_env: dict[int, torch.cuda.Stream] = {}
        """Stream of each env that has run, keyed by env index."""
        if self.device.type == "cuda":
            self.stopwatch = CudaPhaseTimer()
        self._worker: WorkerProcess | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lane {name}", initializer=self._enter)

    def _enter(self) -> None:
        """Name the thread of the lane, and make the device current in it."""
        name_current_thread(f"lane {self.name}")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def start_worker(self, init: WorkerInit, spawner: WorkerSpawner) -> None:
        """Start a worker process that trains this lane's part of each step. Raises OSError."""
        self._worker = WorkerProcess(self.name, init, spawner)

    @property
    def worker_pid(self) -> int:
        """Process id of the worker, or of this process without one."""
        return self._worker.pid if self._worker else os.getpid()

    @property
    def has_worker(self) -> bool:
        """True if a worker process trains this lane's part of each step."""
        return self._worker is not None

    def submit(self, envs: Sequence[Env], task: EnvTask) -> PendingResults:
        """Run a task for envs in the thread of the lane, one env after another.

        The returned function waits for the results. It raises FaultError if the task failed for an env.
        """
        return self._thread.submit(_with_context, self.name, self._run, envs, task).result

    def submit_epochs(
        self, envs: Sequence[Env], prepare: Callable[[Env], None], round_index: int, step: int, *, last: bool
    ) -> PendingResults:
        """Prepare envs, train them for an epoch and validate them, in the worker or in the thread of the lane.

        Returns:
            A function that waits for the results. It raises FaultError if an env failed or the worker has ended.

        Raises:
            FaultError: `prepare` failed for an env, or the worker has ended.
        """
        worker = self._worker
        if worker is not None:
            for env in envs:
                _with_context(self._describe_env(env), prepare, env)
            _with_context(self.name, worker.send, envs, round_index, step, last=last)
            return lambda: _with_context(self.name, self._receive, worker, envs)

        def train_and_validate(env: Env) -> DeviceResults:
            prepare(env)
            return env.run_epoch(round_index, step, self.stopwatch, last=last)

        return self.submit(envs, train_and_validate)

    def _receive(self, worker: WorkerProcess, envs: Sequence[Env]) -> dict[int, HostResults]:
        reply = worker.receive(envs)
        for phase, seconds in reply.phases.items():
            self.stopwatch.add(phase, seconds)
        return {env.index: results for env, results in zip(envs, reply.results, strict=True)}

    def _describe_env(self, env: Env) -> str:
        return f"env {env.index:02d} on {self.name}"

    def _run(self, envs: Sequence[Env], task: EnvTask) -> dict[int, HostResults]:
        self.stopwatch.begin()
        self._result_buffer.clear()
        try:
            for env in envs:
                with self._stream_of(env):
                    self._result_buffer.append(env.index, _with_context(self._describe_env(env), task, env))
        except Exception as error:
            if not (isinstance(error, FaultError) and error.is_device_lost):
                self._join_streams()  # kernels of other envs may still run, and their weights may be restored next
            raise
        self._join_streams()
        with self.stopwatch("fetch"):
            self._result_buffer.start_copy()
        results = self._result_buffer.wait()
        self.stopwatch.read_cuda_events()
        return results

    def _join_streams(self) -> None:
        """Make the default stream wait for the streams of all envs."""
        for stream in self._streams:
            torch.cuda.default_stream(self.device).wait_stream(stream)

    @contextmanager
    def _stream_of(self, env: Env) -> Generator[None]:
        if self.device.type != "cuda":
            yield
            return
        if env.index not in self._stream_by_env:
            if len(self._streams) < self._max_streams:
                self._streams.append(torch.cuda.Stream(self.device))
            self._stream_by_env[env.index] = self._streams[len(self._stream_by_env) % self._max_streams]
        stream = self._stream_by_env[env.index]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(stream):
            yield

    def close(self) -> None:
        """Wait for the running task, then stop the thread and the worker."""
        self._thread.shutdown(cancel_futures=True)
        if self._worker:
            self._worker.close()


def _with_context(where: str, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function; convert its exceptions to FaultError with the place in the message."""
    try:
        return function(*args, **options)
    except FaultError:
        raise
    except Exception as error:  # noqa: BLE001 (raised below as a FaultError)
        fault = FaultError.from_exception(error, where)
    raise fault


def open_lanes(
    names: Sequence[str],
    splits: Splits,
    envs: int,
    width: int,
    *,
    dtype_on: Callable[[torch.device], torch.dtype | None],
    channels_last: bool,
    single_stream: bool,
) -> list[Lane]:
    """Build the lanes of a run. Lanes of the same device share one copy of the data.

    Sets the number of intra-op threads to 1: for these small tensors, synchronising an intra-op thread pool costs more
    than it gains. The lanes themselves run in parallel.

    Args:
        names: Names of the lanes, at most one per env.
        splits: Data of the task, on the CPU.
        envs: Number of envs.
        width: Maximum number of values that a task returns per env.
        dtype_on: Returns the dtype of autocast on a device, in which the training pictures are stored.
        channels_last: Store pictures in the channels-last memory format.
        single_stream: Run all envs of a GPU on one stream, one after another.
    """
    torch.set_num_threads(1)
    splits_by_device = {
        device: splits.to(device, dtype_on(device), channels_last=channels_last)
        for device in {torch_device(name) for name in names}
    }
    return [
        Lane(name, splits_by_device[torch_device(name)], envs, width, single_stream=single_stream) for name in names
    ]
