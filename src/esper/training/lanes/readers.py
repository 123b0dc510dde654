"""Readers: processes that read ahead, for this process, the batches of the splits that are not in memory.

A thread for each reader sends it a request and waits for the reply. Each thread that trains has a queue of plans in the
order in which its envs will need them, and a few of its batches are always being read or ready.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import cast

import torch

from esper.common.configuration.config import TaskError
from esper.common.system.process import available_cores
from esper.common.user_code.code_places import CodePlace, waiting_for
from esper.networks.seeds.outputs import Nested
from esper.networks.tasks.lazy_split import Batch, Placement, ReadPlan
from esper.networks.tasks.task import TaskSource
from esper.training.lanes.call_watch import POLL_S
from esper.training.lanes.errors import FaultError
from esper.training.lanes.printed_lines import print_for_worker
from esper.training.lanes.reader import PackedTensor, ReaderInit, ReadReply, ReadRequest
from esper.training.lanes.spawn import SpawnedWorker

BATCHES_AHEAD = 2
"""Number of batches for each reader that are being read or ready for each thread that trains."""
MAX_READERS = 8
"""Maximum number of readers of a process."""


def reader_count(processes: int) -> int:
    """Return the number of readers of each process that trains, so that every core has work.

    Args:
        processes: Number of processes of this machine that train.
    """
    return min(MAX_READERS, max(1, available_cores() // processes - 1))


class Readers:
    """The readers of this process. They end with it.

    Args:
        source: Where the readers import the task from; None if it is not in a file.
        data_fd: File descriptor of the data; see `write_worker_data`.
        count: Number of readers.

    Raises:
        OSError: A process cannot be started.
    """

    def __init__(self, source: TaskSource | None, data_fd: int, count: int) -> None:
        self._init = ReaderInit(source, data_fd)
        self._ahead = BATCHES_AHEAD * count
        self._readers = [_Reader(self._init) for _ in range(count)]
        self._idle: SimpleQueue[_Reader] = SimpleQueue()
        for reader in self._readers:
            self._idle.put(reader)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="reader")
        self._queues = threading.local()

    @property
    def pids(self) -> list[int]:
        """Process ids of the readers."""
        return [reader.pid for reader in self._readers]

    def read(self, plan: ReadPlan, placement: Placement) -> Iterator[Batch]:
        """Yield the batches of a plan, and read ahead the plans that the calling thread expects.

        Args:
            placement: Form of the batches, which are on the CPU, for a GPU in pinned memory.

        Raises:
            TaskError: A batch cannot be read.
            FaultError: A reader has ended.
        """
        return self._queue.read(plan, placement)

    def expect(self, plan: ReadPlan, placement: Placement) -> None:
        """Read a plan as soon as the plans before it have been read. The calling thread will ask for it."""
        self._queue.expect(plan, placement)

    @property
    def _queue(self) -> _PlanQueue:
        """The queue of the calling thread."""
        if not hasattr(self._queues, "queue"):
            self._queues.queue = _PlanQueue(self._submit, self._find_place, self._ahead)
        return cast("_PlanQueue", self._queues.queue)

    def _submit(self, request: ReadRequest, *, pinned: bool) -> Future[Batch]:
        return self._threads.submit(self._read, request, pinned=pinned)

    def _read(self, request: ReadRequest, *, pinned: bool) -> Batch:
        reader = self._idle.get()
        try:
            return reader.read(request, pinned=pinned)
        finally:
            self._idle.put(reader)

    def _find_place(self) -> CodePlace | None:
        """Return where the user's code is in a reader that has worked on a batch for long; None without one."""
        return next((place for reader in self._readers if (place := reader.place)), None)

    def close(self) -> None:
        """Kill the processes."""
        for reader in self._readers:
            reader.kill()
        self._threads.shutdown(cancel_futures=True)
        for reader in self._readers:
            reader.close()


class _Reader:
    """Handle of a reader process."""

    def __init__(self, init: ReaderInit) -> None:
        self._init = init
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        self._process = SpawnedWorker("reader", self._init.data_fd, "reader")
        with contextlib.suppress(ConnectionError):  # the process has ended: the next `read` reports how
            self._process.channel.send(self._init)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.process.pid

    @property
    def place(self) -> CodePlace | None:
        """Place of the user's code in a batch that takes long; None if it is not known."""
        return self._process.channel.note

    def read(self, request: ReadRequest, *, pinned: bool) -> Batch:
        """Return a batch. Start a new process if the last one has ended.

        Raises:
            TaskError: The batch cannot be read.
            FaultError: The process has ended, or a new one cannot be started.
        """
        fault = None
        try:
            if not self._process.is_open and not self._is_closed:
                self._start()
            self._process.channel.send(request)
            reply: ReadReply = self._process.channel.receive()
        except (EOFError, OSError) as error:
            fault = self._died(request, error)
        else:
            print_for_worker(reply.printed)
            if reply.problem:
                raise TaskError(reply.problem)
            return _unpacked(reply.packed, pinned=pinned)
        raise fault

    def _died(self, request: ReadRequest, error: Exception) -> FaultError:
        if self._is_closed or not self._process.is_open:
            return FaultError(f"the readers of the split {request.split[1]!r} cannot be started: {error}")
        how, output = self._process.describe_end(error)
        self._process.close()
        batch = f"a batch with item {request.indices[0]} of the split {request.split[1]!r}"
        return FaultError(f"the process that read {batch} {how}", output)

    def kill(self) -> None:
        """Kill the process for good, which ends `read`."""
        self._is_closed = True
        self._process.process.kill()

    def close(self) -> None:
        """Close the channel of the killed process."""
        self._process.close()


def _unpacked(packed: Nested, *, pinned: bool) -> Batch:
    def unpack(value: Nested) -> Nested:
        if isinstance(value, PackedTensor):
            tensor = value.unpack()
            return tensor.pin_memory() if pinned else tensor
        if isinstance(value, dict):
            return {key: unpack(part) for key, part in cast("dict[str, Nested]", value).items()}
        raise AssertionError(value)

    inputs, targets = packed
    return unpack(inputs), unpack(targets)


class _PlanQueue:
    """The plans that one thread reads or expects, in their order.

    Args:
        submit: Starts to read a batch.
        find_place: Returns where the user's code is that a batch waits for.
        ahead: Number of batches that are being read or ready.
    """

    def __init__(
        self, submit: Callable[..., Future[Batch]], find_place: Callable[[], CodePlace | None], ahead: int
    ) -> None:
        self._submit = submit
        self._find_place = find_place
        self._ahead = ahead
        self._plans: deque[_PlannedReads] = deque()
        """The plan that is being read, and those that are expected."""

    def expect(self, plan: ReadPlan, placement: Placement) -> None:
        """Add a plan."""
        self._plans.append(_PlannedReads(plan, placement))

    def read(self, plan: ReadPlan, placement: Placement) -> Iterator[Batch]:
        """Yield the batches of a plan. Plans before it are dropped: all plans if it was not expected."""
        while self._plans and (self._plans[0].is_taken or self._plans[0].plan != plan):
            self._plans.popleft().cancel()
        if not self._plans:
            self.expect(plan, placement)
        reads = self._plans[0]
        reads.is_taken = True
        while True:
            self._start()
            if not reads.started:
                return
            yield self._result(reads.started.popleft())

    def _start(self) -> None:
        """Start to read batches, until as many as allowed are being read or ready."""
        started = sum(len(reads.started) for reads in self._plans)
        for reads in self._plans:
            while started < self._ahead and (request := reads.next_request()) is not None:
                reads.started.append(self._submit(request, pinned=reads.pinned))
                started += 1

    def _result(self, future: Future[Batch]) -> Batch:
        with waiting_for(self._find_place):
            while not wait([future], POLL_S).done:
                pass
        try:
            return future.result()
        except CancelledError:
            fault = FaultError("the readers were stopped")
        raise fault


class _PlannedReads:
    """A plan, and the batches of it that are being read or ready."""

    def __init__(self, plan: ReadPlan, placement: Placement) -> None:
        self.plan = plan
        self.pinned = placement.device.type == "cuda"
        self._form = placement._replace(device=torch.device("cpu"))
        self.is_taken = False
        self.started: deque[Future[Batch]] = deque()
        self._batches: Iterator[Sequence[int]] | None = None

    def next_request(self) -> ReadRequest | None:
        """Return the next batch to read; None if all were started."""
        if self._batches is None:
            self._batches = iter(self.plan.batches())
        indices = next(self._batches, None)
        return None if indices is None else ReadRequest(self.plan.split, self.plan.seeds, indices, self._form)

    def cancel(self) -> None:
        """Read no further batches."""
        for future in self.started:
            future.cancel()
