"""Checks that accesses of different streams to the same memory are ordered, for fake GPUs.

It finds the same errors as `torch.cuda._sanitizer` on a GPU, with the same clocks and parsing of schemas. It also finds
memory that is reused on its stream while another stream may still use it, which `Tensor.record_stream` prevents.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.cuda._sanitizer import FACTORY_FUNCTION_REGEX, ArgumentHandler, StreamSynchronizations
from torch.multiprocessing.reductions import StorageWeakRef


class Launch(NamedTuple):
    """A kernel launch; numbers ascend over all streams."""

    stream: int
    number: int
    kernel: str


class Part(NamedTuple):
    """Byte range of an allocation that a view may touch, with an exclusive end."""

    allocation: int
    start: int
    end: int


class Accesses:
    """Accesses to a part of an allocation."""

    def __init__(self, first: Launch) -> None:
        self.write = first
        """The last write."""
        self.reads: dict[int, Launch] = {}
        """The last read of each stream since that write."""


class Allocation:
    """Memory of a tensor and its views.

    Args:
        storage: The memory.
        first: First write, on the stream that the allocation belongs to.
    """

    def __init__(self, storage: torch.UntypedStorage, first: Launch) -> None:
        self.storage = StorageWeakRef(storage)
        self.first = first
        self.parts: dict[Part, Accesses] = {}
        self.guests: dict[int, Launch] = {}
        """The last use by each stream other than its own."""


class Touched(ArgumentHandler):
    """Memory that a kernel reads and writes, identified by storage, because fake tensors have no address."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[Part] = set()
        self.written: set[Part] = set()
        self.storages: dict[int, torch.UntypedStorage] = {}

    def _handle_argument(
        self, value: Any, is_write: bool, metadata_only: bool, name: str | None = None, is_output: bool = False
    ) -> None:
        if isinstance(value, Tensor) and value.device.type == "cuda" and (is_write or not metadata_only):
            storage = value.untyped_storage()
            self.storages[storage._cdata] = storage
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            start = int(value.storage_offset())
            part = Part(storage._cdata, start * value.itemsize, (start + last + 1) * value.itemsize)
            (self.written if is_write else self.read).add(part)


class StreamOrder:
    """Kernels launched on each stream, and the kernels that each has waited for."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._clocks = StreamSynchronizations()
        self._allocations: dict[int, Allocation] = {}
        self.last: dict[int, int] = {}
        """Number of the last launch on each stream."""

    def launch(self, stream: int, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Launch a kernel on a stream.

        Raises:
            AssertionError: Another stream may still use memory that the kernel touches.
        """
        now = Launch(stream, next(self._numbers), str(func))
        self._clocks.update_seq_num(stream, now.number)
        self.last[stream] = now.number
        touched = Touched()
        shape_only = bool(FACTORY_FUNCTION_REGEX.match(func._schema.name))
        touched.parse_inputs(func._schema, args, kwargs, is_factory=shape_only)
        touched.parse_outputs(func._schema, result, is_factory=False)
        for key, storage in touched.storages.items():
            if key not in self._allocations:
                self._check_reuse(now)
                self._allocations[key] = Allocation(storage, now)
            elif stream != self._allocations[key].first.stream:
                self._allocations[key].guests[stream] = now
        for part in touched.read | touched.written:
            self._access(now, part, written=part in touched.written)

    def _access(self, now: Launch, part: Part, *, written: bool) -> None:
        allocation = self._allocations[part.allocation]
        own_accesses = allocation.parts.setdefault(part, Accesses(allocation.first))
        for (_, start, end), accesses in allocation.parts.items():
            if start < part.end and part.start < end:
                for before in (accesses.write, *(accesses.reads.values() if written else ())):
                    assert self._is_done(now.stream, before), f"{now} is not ordered after {before}"
        if written:
            own_accesses.write, own_accesses.reads = now, {}
        else:
            own_accesses.reads[now.stream] = now

    def _check_reuse(self, now: Launch) -> None:
        """The kernel allocates: it may get any freed memory of its stream."""
        for key, allocation in list(self._allocations.items()):
            if allocation.first.stream == now.stream and allocation.storage.expired():
                for before in allocation.guests.values():
                    assert self._is_done(now.stream, before), f"{now} may reuse memory still in use by {before}"
                del self._allocations[key]

    def _is_done(self, stream: int, before: Launch) -> bool:
        return self.has_waited(stream, before.number, before.stream)

    def has_waited(self, stream: int, number: int, other: int) -> bool:
        """Return True if kernels launched on a stream from now on wait for a launch on another stream."""
        return self._clocks.is_ordered_after(stream, number, other)

    def record(self, event: int, stream: int) -> None:
        """Record an event on a stream, after the kernels launched on it."""
        self._clocks.update_seq_num(stream, next(self._numbers))
        self._clocks.record_state(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Make kernels launched on a stream from now on wait for an event."""
        self._clocks.stream_wait_for_event(stream, event)

    def synchronize(self, event: int) -> None:
        """Let the host, and every later launch, wait for an event."""
        self._clocks.all_streams_wait_for_event(event)

    def is_over(self, event: int) -> bool:
        """True if the host has waited for an event or for one that comes after it."""
        known = self._clocks.host_sync_state
        return all(known[stream] >= number for stream, number in self._clocks.recorded_sync_states[event].items())
