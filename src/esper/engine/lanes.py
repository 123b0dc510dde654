"""A lane: one device, and the one thread that drives it. Lanes run side by side; the envs of a lane take turns.

On a CPU a thread would wait for the Python of the others: a CPU lane beside another one has a worker, a process that
trains its envs, and its thread only sends them there (`engine/worker.py`).

On a GPU the thread only launches: each env has a stream of its own, so that the small kernels of one run beside those
of another. An env's steps are ordered by its stream. Before it goes on, it waits for the device's default stream, on
which everybody else launches (a checkpoint that is read or restored); at the end of a step that stream waits for all
envs. Nothing crosses from one stream to another that could be freed under way: the data and the outbox live as long as
the lane, and an env's tensors belong to its stream alone. So no tensor needs `record_stream`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from esper.engine.devices import torch_device
from esper.engine.env import Env
from esper.engine.precision import resolve_amp
from esper.engine.stopwatch import CudaStopwatch, Stopwatch
from esper.engine.worker import Contract, Worker
from esper.tasks.task import Splits

Vectors = list[Tensor]
"""What an env leaves of its work: some float32 vectors on the device."""
Later = Callable[[], Vectors]
"""The same of work that a worker does: waits for it."""
Work = Callable[[], Vectors | Later]
"""What an env does."""
Numbers = list[list[float]]
"""The same vectors on the host."""


class Outbox:
    """Where the envs of a lane leave their numbers: a row for each, and one copy of all rows to the host.

    Args:
        device: of the lane.
        rows: number of envs.
        width: of a row: most numbers that an env leaves.
    """

    def __init__(self, device: torch.device, rows: int, width: int) -> None:
        self._device_RW = torch.zeros(rows, width, device=device)
        pinned = torch.zeros(rows, width, pin_memory=True) if device.type == "cuda" else None
        self._host_RW = self._device_RW if pinned is None else pinned
        self._sizes: list[list[int]] = [[] for _ in range(rows)]

    def put(self, row: int, vectors: Sequence[Tensor]) -> None:
        """Write the vectors of an env, on the current stream; there are none of one that sits out."""
        self._sizes[row] = [len(vector) for vector in vectors]
        if vectors:
            torch.cat(list(vectors), out=self._device_RW[row, : sum(self._sizes[row])])

    def fetch(self) -> list[Numbers]:
        """Everything that was put; the host waits here for the current stream, and nowhere else."""
        if self._host_RW is not self._device_RW:
            self._host_RW.copy_(self._device_RW, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)
            copied.record()
            copied.synchronize()
        return [_split(row, sizes) for row, sizes in zip(self._host_RW.tolist(), self._sizes, strict=True)]


def _split(row: list[float], sizes: Sequence[int]) -> Numbers:
    numbers = iter(row)
    return [[next(numbers) for _ in range(size)] for size in sizes]


class Lane:
    """A device with its thread and its copy of the data.

    Args:
        name: such as `cuda:0` or `cpu:1`.
        splits: the task's data, on its device.
        envs: how many live here.
        width: most numbers that one of them leaves in a step.
        one_stream: whether all of them must take turns on a GPU too.
    """

    def __init__(self, name: str, splits: Splits, envs: int, width: int, *, one_stream: bool) -> None:
        self.name = name
        self.device = torch_device(name)
        self.splits = splits
        self.stopwatch = Stopwatch()
        self._outbox = Outbox(self.device, envs, width)
        self._streams: list[torch.cuda.Stream] = []
        """For each env its own; none on a CPU, where the thread does the work itself."""
        if self.device.type == "cuda":
            self.stopwatch = CudaStopwatch()
            streams = [torch.cuda.Stream(self.device) for _ in range(1 if one_stream else envs)]
            self._streams = streams * envs if one_stream else streams
        self._worker: Worker | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lane {name}", initializer=self._enter)

    def _enter(self) -> None:
        """On the thread, before anything else: what is current there is of this device."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def hire(self, contract: Contract) -> None:
        """Have the epochs of this lane's envs trained by a process of its own."""
        self._worker = Worker(self.name, contract)

    @property
    def process(self) -> int:
        """Number of the process that works for the lane."""
        return self._worker.pid if self._worker else os.getpid()

    def epoch(self, env: Env, round_index: int, step: int, *, last: bool) -> Vectors | Later:
        """Train an env and validate it. On the lane's thread.

        Raises:
            FaultError: the worker has ended.
        """
        if self._worker:
            self._worker.send(env, round_index, step, last=last)
            return partial(self._receive, self._worker, env)
        return env.epoch(round_index, step, self.stopwatch, last=last)

    def _receive(self, worker: Worker, env: Env) -> Vectors:
        answer = worker.receive(env)
        for phase, seconds in answer.seconds.items():
            self.stopwatch.add(phase, seconds)
        return [torch.tensor(numbers) for numbers in answer.numbers]

    def submit(self, work: Sequence[Work]) -> Future[list[Numbers]]:
        """Have the lane's thread do the work of every env, after what it was given before; what each of them left."""
        return self._thread.submit(self._run, work)

    def _run(self, work: Sequence[Work]) -> list[Numbers]:
        self.stopwatch.begin()
        try:
            self._do(work)
        except Exception:
            if self._worker:
                self._worker.close()  # and with it what it was sent and has not answered
            raise
        for stream in self._streams:
            torch.cuda.default_stream(self.device).wait_stream(stream)
        with self.stopwatch("fetch"):
            numbers = self._outbox.fetch()
        self.stopwatch.settle()
        return numbers

    def _do(self, work: Sequence[Work]) -> None:
        """Everything is sent to the worker before anything is waited for, so that it never waits itself."""
        later: dict[int, Later] = {}
        for env, do in enumerate(work):
            with self._stream_of(env):
                left = do()
                if callable(left):
                    later[env] = left
                else:
                    self._outbox.put(env, left)
        for env, wait in later.items():
            self._outbox.put(env, wait())

    @contextmanager
    def _stream_of(self, env: int) -> Iterator[None]:
        if not self._streams:
            yield
            return
        stream = self._streams[env]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(stream):
            yield

    def close(self) -> None:
        """Wait for the thread and end it, and the worker."""
        self._thread.shutdown(cancel_futures=True)
        if self._worker:
            self._worker.close()


def open_lanes(
    names: Sequence[str], splits: Splits, envs: int, width: int, *, amp: str, one_stream: bool
) -> list[Lane]:
    """Build the lanes of a run. Those of one device share its copy of the data.

    Operators on these small tensors lose more by sharing an intra-op thread pool than they gain: the parallelism is in
    the lanes, so every operator runs on its lane's own thread.

    Args:
        names: of the lanes; no more than there are envs.
        splits: the task's data, on the CPU.
        envs: of the run, dealt round-robin.
        width: most numbers that an env leaves in a step.
        amp: mixed precision of the run: training pictures have its dtype.
        one_stream: whether the envs of a GPU must take turns.
    """
    torch.set_num_threads(1)
    resident = {
        device: splits.to(device, resolve_amp(amp, device)) for device in {torch_device(name) for name in names}
    }
    return [
        Lane(name, resident[torch_device(name)], len(range(index, envs, len(names))), width, one_stream=one_stream)
        for index, name in enumerate(names)
    ]
