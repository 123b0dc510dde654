"""Lane: one device and the thread that drives it.

On a CPU a thread would wait for the Python of the others: a CPU lane beside another one has a worker, a process that
trains the envs of its part of a step (`engine/worker.py`).

On a GPU the thread only launches: each env has a stream of its own, so that the small kernels of one run beside those
of another. An env's steps are ordered by its stream. Before it goes on, it waits for the device's default stream, on
which everybody else launches (a checkpoint that is read or restored); at the end of a step, and where one failed, that
stream waits for all envs. Nothing crosses from one stream to another that could be freed under way: the data and the
outbox live as long as the lane, and an env's tensors belong to its stream alone. So no tensor needs `record_stream`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from esper.envs.env import Env
from esper.envs.precision import resolve_amp
from esper.envs.stopwatch import CudaPhaseTimer, PhaseTimer
from esper.lanes.devices import torch_device
from esper.lanes.errors import FaultError
from esper.lanes.worker import WorkerInit, WorkerProcess
from esper.tasks.task import Splits

P = ParamSpec("P")
T = TypeVar("T")
DeviceResults = list[Tensor]
"""What an env leaves of its work: some float32 vectors on the device."""
HostResults = list[list[float]]
"""The same vectors on the host."""
EnvTask = Callable[[Env], DeviceResults]
"""What is done with an env."""
PendingResults = Callable[[], dict[int, HostResults]]
"""Waits for what was begun: the numbers of each env, by its index."""


class ResultBuffer:
    """Where the envs of a lane leave their numbers: a row for each, and one copy of these rows to the host.

    Args:
        device: of the lane.
        rows: most envs that there are to be.
        width: of a row: most numbers that an env leaves.
    """

    def __init__(self, device: torch.device, rows: int, width: int) -> None:
        self._device_RW = torch.zeros(rows, width, device=device)
        pinned = torch.zeros(rows, width, pin_memory=True) if device.type == "cuda" else None
        self._host_RW = self._device_RW if pinned is None else pinned
        self._sizes: dict[int, list[int]] = {}
        """Of the vectors of each env, in the order of the rows."""

    def clear(self) -> None:
        """Begin with the first row again."""
        self._sizes.clear()

    def append(self, env: int, vectors: Sequence[Tensor]) -> None:
        """Write the vectors of an env, on the current stream."""
        row = self._device_RW[len(self._sizes)]
        sizes = self._sizes[env] = [len(vector) for vector in vectors]
        torch.cat(list(vectors), out=row[: sum(sizes)])

    def start_copy(self) -> None:
        """Copy what was put to the host, on the current stream."""
        if self._host_RW is not self._device_RW:
            rows = len(self._sizes)
            self._host_RW[:rows].copy_(self._device_RW[:rows], non_blocking=True)

    def wait(self) -> dict[int, HostResults]:
        """What was sent, by env; the host waits here for the current stream, and nowhere else."""
        if self._host_RW is not self._device_RW:
            copied = torch.cuda.Event(blocking=True)
            copied.record()
            copied.synchronize()
        filled = zip(self._sizes.items(), self._host_RW[: len(self._sizes)].tolist(), strict=True)
        return {env: _split(row, sizes) for (env, sizes), row in filled}


def _split(row: list[float], sizes: Sequence[int]) -> HostResults:
    numbers = iter(row)
    return [[next(numbers) for _ in range(size)] for size in sizes]


class Lane:
    """A device with its thread and its copy of the data.

    Args:
        name: such as `cuda:0` or `cpu:1`.
        splits: the task's data, on its device.
        envs: most that it is given at a time.
        width: most numbers that one of them leaves in a step.
        single_stream: whether all of them must take turns on a GPU too.
    """

    def __init__(self, name: str, splits: Splits, envs: int, width: int, *, single_stream: bool) -> None:
        self.name = name
        self.device = torch_device(name)
        self.splits = splits
        self.stopwatch = PhaseTimer()
        self._result_buffer = ResultBuffer(self.device, envs, width)
        self._single_stream = single_stream
        self._streams: dict[int, torch.cuda.Stream] = {}
        """For each env its own; none on a CPU, where the thread does the work itself."""
        if self.device.type == "cuda":
            self.stopwatch = CudaPhaseTimer()
        self._worker: WorkerProcess | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lane {name}", initializer=self._enter)

    def _enter(self) -> None:
        """On the thread, before anything else: what is current there is of this device."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def start_worker(self, contract: WorkerInit) -> None:
        """Have a process of its own train what is this lane's part of a step."""
        self._worker = WorkerProcess(self.name, contract)

    @property
    def worker_pid(self) -> int:
        """Number of the process that works for the lane."""
        return self._worker.pid if self._worker else os.getpid()

    @property
    def has_worker(self) -> bool:
        """Whether a process of its own trains its part of a step."""
        return self._worker is not None

    def submit(self, envs: Sequence[Env], work: EnvTask) -> PendingResults:
        """Have the lane's thread do something with envs, one after another.

        What is returned raises FaultError if it fails for one of them.
        """
        return self._thread.submit(_with_context, self.name, self._run, envs, work).result

    def submit_epochs(
        self, envs: Sequence[Env], prepare: Callable[[Env], None], round_index: int, step: int, *, last: bool
    ) -> PendingResults:
        """Have envs prepared for an epoch, trained and validated: by the worker, or else by the lane's thread.

        Raises, or has what is returned raise:
            FaultError: it failed for one of them, or the worker has ended.
        """
        worker = self._worker
        if worker is not None:
            for env in envs:
                _with_context(self._describe_env(env), prepare, env)
            _with_context(self.name, worker.send, envs, round_index, step, last=last)
            return lambda: _with_context(self.name, self._receive, worker, envs)

        def work(env: Env) -> DeviceResults:
            prepare(env)
            return env.run_epoch(round_index, step, self.stopwatch, last=last)

        return self.submit(envs, work)

    def _receive(self, worker: WorkerProcess, envs: Sequence[Env]) -> dict[int, HostResults]:
        answer = worker.receive(envs)
        for phase, seconds in answer.phases.items():
            self.stopwatch.add(phase, seconds)
        return {env.index: numbers for env, numbers in zip(envs, answer.results, strict=True)}

    def _describe_env(self, env: Env) -> str:
        return f"env {env.index:02d} on {self.name}"

    def _run(self, envs: Sequence[Env], work: EnvTask) -> dict[int, HostResults]:
        self.stopwatch.begin()
        self._result_buffer.clear()
        try:
            for env in envs:
                with self._stream_of(env):
                    self._result_buffer.append(env.index, _with_context(self._describe_env(env), work, env))
        finally:  # also where one failed: the others' work is under way, and their weights may be restored next
            for stream in self._streams.values():
                torch.cuda.default_stream(self.device).wait_stream(stream)
        with self.stopwatch("fetch"):
            self._result_buffer.start_copy()
        numbers = self._result_buffer.wait()
        self.stopwatch.read_cuda_events()
        return numbers

    @contextmanager
    def _stream_of(self, env: Env) -> Iterator[None]:
        if self.device.type != "cuda":
            yield
            return
        key = 0 if self._single_stream else env.index
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream(self.device)
        stream = self._streams[key]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(stream):
            yield

    def close(self) -> None:
        """Wait for the thread and end it, and the worker."""
        self._thread.shutdown(cancel_futures=True)
        if self._worker:
            self._worker.close()


def _with_context(where: str, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Work whose faults say where they happened."""
    try:
        return work(*args, **options)
    except FaultError:
        raise
    except Exception as error:  # noqa: BLE001 (it is raised below, as a FaultError)
        fault = FaultError.from_exception(error, where)
    raise fault


def open_lanes(
    names: Sequence[str], splits: Splits, envs: int, width: int, *, amp: str, single_stream: bool
) -> list[Lane]:
    """Build the lanes of a run. Those of one device share its copy of the data.

    Operators on these small tensors lose more by sharing an intra-op thread pool than they gain: the parallelism is in
    the lanes, so every operator runs on its lane's own thread.

    Args:
        names: of the lanes; no more than there are envs.
        splits: the task's data, on the CPU.
        envs: of the run.
        width: most numbers that an env leaves in a step.
        amp: mixed precision of the run: training pictures have its dtype.
        single_stream: whether the envs of a GPU must take turns.
    """
    torch.set_num_threads(1)
    resident = {
        device: splits.to(device, resolve_amp(amp, device)) for device in {torch_device(name) for name in names}
    }
    return [Lane(name, resident[torch_device(name)], envs, width, single_stream=single_stream) for name in names]
