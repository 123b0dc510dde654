"""Runs tasks for envs on one device, one env after another, in the thread of a lane or in a worker process.

On a GPU it only launches kernels. The envs are dealt to a few streams, so that the small kernels of different envs
overlap; the stream of an env orders its steps. One thread launches, so more streams would hardly overlap more, and each
costs an allocator cache and a workspace of cuBLAS. The next envs can be launched before the results of the last ones
have been waited for, so that the GPU always has work. Before each task, the stream of the env waits for the default
stream of the device, on which all other code launches (for example when a checkpoint is saved or restored). That code
uses an env when the host has waited for its results. So the default stream waits for the streams of the envs only if a
task failed: otherwise, the next envs would wait for the slowest of the last ones.

The results are copied to the host on a stream of their own, which waits for the streams of the envs. No tensor that is
used on several streams can be freed meanwhile: the data and the result buffers live as long as the runner, and the
tensors of an env are used on its stream only, except its results, which live until the host has waited for their copy.
So no tensor needs `record_stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import user_errors
from esper.training.envs.env import Env
from esper.training.envs.stopwatch import CudaPhaseTimer, PhaseTimer
from esper.training.lanes.call_watch import CallWatch
from esper.training.lanes.errors import FaultError

P = ParamSpec("P")
T = TypeVar("T")
DeviceResults = list[Tensor]
"""Results of a task for one env: float32 vectors on the device."""
HostResults = list[list[float]]
"""The same vectors on the host."""
PendingResults = Callable[[], dict[int, HostResults]]
"""Waits for a task of several envs and returns its results, keyed by env index."""
EnvTask = Callable[[Env], DeviceResults]
"""A task that is run for an env."""
MAX_STREAMS = 4
"""Maximum number of streams of a GPU."""


class ResultBuffer:
    """Result buffer of a lane: the vectors of all envs on the device, copied to the host in a single transfer.

    Args:
        size: Maximum number of values of all envs.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self._device_N = torch.zeros(size, device=device)
        pinned = torch.zeros(size, pin_memory=True) if device.type == "cuda" else None
        self._host_N = self._device_N if pinned is None else pinned
        self._copied = torch.cuda.Event(blocking=True) if pinned is not None else None
        self._sizes: dict[int, list[int]] = {}
        """Lengths of the vectors of each env, keyed by env index in the order of the values."""

    def start_copy(self, results: Mapping[int, DeviceResults]) -> None:
        """Copy results to the host, on the current stream.

        Args:
            results: Vectors of each env, keyed by its index.
        """
        self._sizes = {env: list(map(len, vectors)) for env, vectors in results.items()}
        count = sum(map(sum, self._sizes.values()))
        if count:
            torch.cat([vector for vectors in results.values() for vector in vectors], out=self._device_N[:count])
        if self._copied:
            self._host_N[:count].copy_(self._device_N[:count], non_blocking=True)

    def mark_end(self) -> None:
        """Mark the end of all work on the current stream that `wait` waits for."""
        if self._copied:
            self._copied.record()

    def wait(self) -> dict[int, HostResults]:
        """Return the copied vectors, keyed by env index. This is the only place where the host waits for the GPU."""
        if self._copied:
            self._copied.synchronize()
        count = sum(map(sum, self._sizes.values()))
        # PyTorch does not annotate `tolist`.
        values: Iterator[float] = iter(cast("Any", self._host_N[:count]).tolist())
        return {env: [list(islice(values, size)) for size in sizes] for env, sizes in self._sizes.items()}


class EnvRunner:
    """Streams, timer and result buffers of a device.

    Args:
        lane: Name of the lane, for messages.
        envs: Maximum number of envs of one task.
        width: Maximum number of values that a task returns per env.
        single_stream: Run all envs on one stream of a GPU, one after another.
    """

    def __init__(self, lane: str, device: torch.device, envs: int, width: int, *, single_stream: bool) -> None:
        self.device = device
        self.stopwatch = CudaPhaseTimer() if device.type == "cuda" else PhaseTimer()
        self.watch = CallWatch(lane)
        self._lane = lane
        self._size = envs * width
        self._idle_buffers: list[ResultBuffer] = []
        """Buffers whose results have been waited for."""
        self._max_streams = 1 if single_stream else MAX_STREAMS
        self._streams: list[torch.cuda.Stream] = []
        """Streams of the GPU, created when the first envs use them; empty on a CPU."""
        self._stream_by_env: dict[int, torch.cuda.Stream] = {}
        """Stream of each env that has run, keyed by env index."""
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        """Stream of the GPU on which results are copied."""

    def enter_thread(self) -> None:
        """Prepare the calling thread: one intra-op thread, and the device current."""
        torch.set_num_threads(1)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def run(self, envs: Sequence[Env], task: EnvTask) -> dict[int, HostResults]:
        """Run a task for envs, and return the results by env index.

        Raises:
            FaultError: The task failed for an env.
        """
        return self.launch(envs, task)()

    def launch(self, envs: Sequence[Env], task: EnvTask) -> PendingResults:
        """Launch a task for envs. On a CPU, the task has finished when this returns.

        The returned function waits for the GPU. Other launches may be waited for first: their ends were marked on the
        same stream.

        Raises:
            FaultError: The task failed for an env.
        """
        self.stopwatch.begin()
        results: dict[int, DeviceResults] = {}
        try:
            for env in envs:
                with self._stream_of(env):
                    results[env.index] = self.run_for_env(env, task, env)
            with self._copying():
                buffer = self._idle_buffers.pop() if self._idle_buffers else ResultBuffer(self.device, self._size)
                with self.stopwatch("fetch"):
                    buffer.start_copy(results)
                buffer.mark_end()
        except Exception as error:
            self.stopwatch.discard()
            if not (isinstance(error, FaultError) and error.is_device_lost):
                self._join_streams()  # kernels of other envs may still run, and their weights may be restored next
            raise

        def wait() -> dict[int, HostResults]:
            found = buffer.wait()
            results.clear()  # from now on, kernels of the envs may reuse their memory
            self.stopwatch.read_cuda_events()
            self._idle_buffers.append(buffer)
            return found

        return wait

    def run_for_env(self, env: Env, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that works for one env. Its exceptions become a FaultError that names the env and the lane.

        Other envs cannot run on a lost device either, so that fault does not belong to the env.
        """
        where = f"env {env.index:02d} on {self._lane}"
        self.watch.begin(env)
        try:
            return with_context(where, isolated(f"task {env.task.name}")(function), *args, **options)
        except FaultError as fault:
            fault.env = None if fault.is_device_lost else env.index
            raise
        finally:
            self.watch.end()

    def _join_streams(self) -> None:
        """Make the default stream wait for the streams of all envs, and for all copies of results."""
        for stream in (*self._streams, self._copy_stream):
            if stream is not None:
                torch.cuda.default_stream(self.device).wait_stream(stream)

    @contextmanager
    def _copying(self) -> Generator[None]:
        """Context of the copy of results, which waits for all that the envs have launched."""
        if self._copy_stream is None:
            yield
            return
        for stream in self._streams:
            self._copy_stream.wait_stream(stream)
        with torch.cuda.stream(self._copy_stream):
            yield

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


def with_context(where: str, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function; convert its exceptions to FaultError with the place in the message."""
    try:
        return function(*args, **options)
    except FaultError:
        raise
    except user_errors() as error:
        fault = FaultError.from_exception(error, where)
    raise fault
