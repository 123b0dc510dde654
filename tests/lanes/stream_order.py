"""Whether what streams do to the same memory is ordered, for GPUs that are not there.

It finds what `torch.cuda._sanitizer` does on a GPU, whose clocks and reading of schemas it takes; and besides, memory
that is handed out anew on the stream it came from while another may still be at work in it. That is what
`Tensor.record_stream` is for.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.cuda._sanitizer import FACTORY_FUNCTION_REGEX, ArgumentHandler, StreamSynchronizations
from torch.multiprocessing.reductions import StorageWeakRef


class Launch(NamedTuple):
    """Of a kernel; the numbers ascend, over all streams."""

    stream: int
    number: int
    kernel: str


class Part(NamedTuple):
    """Of an allocation: its bytes from the first to behind the last that a view may touch."""

    allocation: int
    start: int
    end: int


class Accesses:
    """To a part of an allocation."""

    def __init__(self, first: Launch) -> None:
        self.write = first
        """The last."""
        self.reads: dict[int, Launch] = {}
        """Since then, the last of each stream."""


class Allocation:
    """Memory of a tensor and its views.

    Args:
        storage: that it is.
        first: that wrote it, on the stream that it belongs to.
    """

    def __init__(self, storage: torch.UntypedStorage, first: Launch) -> None:
        self.storage = StorageWeakRef(storage)
        self.first = first
        self.parts: dict[Part, Accesses] = {}
        self.guests: dict[int, Launch] = {}
        """The last of each stream but its own."""


class Touched(ArgumentHandler):
    """What a kernel reads and writes of a GPU's memory. Fake tensors have no address: it goes by their storage."""

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
    """What has been launched on each stream, and what each has waited for."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._clocks = StreamSynchronizations()
        self._allocations: dict[int, Allocation] = {}

    def launch(self, stream: int, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A kernel on a stream.

        Raises:
            AssertionError: another stream may still be at work in memory that it touches.
        """
        now = Launch(stream, next(self._numbers), str(func))
        self._clocks.update_seq_num(stream, now.number)
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
        mine = allocation.parts.setdefault(part, Accesses(allocation.first))
        for (_, start, end), accesses in allocation.parts.items():
            if start < part.end and part.start < end:
                for before in (accesses.write, *(accesses.reads.values() if written else ())):
                    assert self._is_done(now.stream, before), f"{now} may meet {before}"
        if written:
            mine.write, mine.reads = now, {}
        else:
            mine.reads[now.stream] = now

    def _check_reuse(self, now: Launch) -> None:
        """It takes new memory: any that was freed and belongs to its stream."""
        for key, allocation in list(self._allocations.items()):
            if allocation.first.stream == now.stream and allocation.storage.expired():
                for before in allocation.guests.values():
                    assert self._is_done(now.stream, before), f"{now} may be given memory of {before}"
                del self._allocations[key]

    def _is_done(self, stream: int, before: Launch) -> bool:
        return self._clocks.is_ordered_after(stream, before.number, before.stream)

    def record(self, event: int, stream: int) -> None:
        """An event comes behind what has been launched on a stream, of which it is a part."""
        self._clocks.update_seq_num(stream, next(self._numbers))
        self._clocks.record_state(event, stream)

    def wait(self, stream: int, event: int) -> None:
        """What is launched on a stream from now on comes behind an event."""
        self._clocks.stream_wait_for_event(stream, event)

    def synchronize(self, event: int) -> None:
        """The host has waited for an event, and so has all that it launches from now on."""
        self._clocks.all_streams_wait_for_event(event)

    def is_over(self, event: int) -> bool:
        """Whether the host knows that an event has happened, and all that it comes behind."""
        known = self._clocks.host_sync_state
        return all(known[stream] >= number for stream, number in self._clocks.recorded_sync_states[event].items())
