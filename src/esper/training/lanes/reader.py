"""Reader process: reads batches of the splits that are not in memory, with the code of the user's data sets.

It has the global random generators for itself, so they can be seeded for each sample.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.common.configuration.config import TaskError
from esper.common.system.process import NamedThread, freeze_loaded_objects, name_current_thread
from esper.common.user_code.code_places import find_in_thread
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.seeds.outputs import Nested, map_tensors
from esper.networks.tasks.lazy_split import Batch, Placement
from esper.networks.tasks.loading import load_source
from esper.networks.tasks.source_pickle import MapRelease
from esper.networks.tasks.splits import TaskData, lazy_of, read_data
from esper.networks.tasks.task import TaskSource
from esper.training.lanes.call_watch import POLL_S
from esper.training.lanes.channel import Channel
from esper.training.lanes.printed_lines import Printed, PrintedLines

_SLOW_S = 3.0
"""Seconds in one batch after which the reader tells the main process the line of the user's code."""


class ReaderInit(NamedTuple):
    """First message to a reader."""

    source: TaskSource | None
    """Where the reader imports the task from, so that its classes are known; None if it is not in a file."""
    data_fd: int
    """File descriptor of the data; see `write_worker_data`."""


class ReadRequest(NamedTuple):
    """Request to read a batch."""

    split: tuple[int, str]
    seeds: tuple[int, ...]
    """See `ReadPlan`, as for the split."""
    indices: Sequence[int]
    placement: Placement
    """Form of the batch, on the CPU."""


class PackedTensor(NamedTuple):
    """A tensor as bytes: pickling a tensor takes longer."""

    content: NDArray[Any]
    dtype: torch.dtype
    shape: torch.Size
    is_channels_last: bool

    @classmethod
    def pack(cls, tensor: Tensor) -> PackedTensor:
        """Pack a tensor of the CPU."""
        is_channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        tensor = tensor.detach().movedim(1, -1) if is_channels_last else tensor.detach()
        flat = tensor.contiguous().reshape(-1)
        return cls(flat.view(torch.uint8).numpy(), tensor.dtype, tensor.shape, is_channels_last)

    def unpack(self) -> Tensor:
        """Return the tensor, which shares its memory with this object."""
        content: Any = self.content if self.content.flags.writeable else np.array(self.content)
        tensor = torch.as_tensor(content).view(self.dtype).reshape(self.shape)
        return tensor.movedim(-1, 1) if self.is_channels_last else tensor


class ReadReply(NamedTuple):
    """Reply of a reader."""

    packed: Nested
    """Inputs and targets with a `PackedTensor` in place of each tensor; None if they cannot be read."""
    problem: str
    """Why they cannot be read; empty if they can."""
    printed: Printed
    """Lines that the user's code printed."""


class _Watch:
    """Tells the main process where the user's code is while a batch takes long."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._thread = threading.get_ident()
        self.began: float | None = None
        """Start of the present batch, in seconds of `time.monotonic`; None between two batches."""

    def run(self) -> None:
        """Look again and again, in a thread of its own."""
        with contextlib.suppress(OSError):  # the main process has ended
            while True:
                time.sleep(POLL_S)
                began = self.began
                if began is not None and time.monotonic() - began > _SLOW_S:
                    self._channel.send_note(find_in_thread(self._thread))


def serve(channel: Channel, name: str) -> None:
    """Read batches on request until the main process has closed the channel."""
    name_current_thread(name)
    with contextlib.suppress(EOFError, ConnectionError), PrintedLines(of_main_thread=True) as printed:
        torch.set_num_threads(1)
        watch = _Watch(channel)
        NamedThread(target=watch.run, name="watch", daemon=True).start()
        init: ReaderInit = channel.receive()
        data: TaskData | None = None
        maps = MapRelease()
        while True:
            request: ReadRequest = channel.receive()
            watch.began = time.monotonic()
            packed, problem = None, ""
            try:
                if data is None:
                    data = _open(init)
                packed = map_tensors(PackedTensor.pack, _read(data, request))
            except TaskError as error:
                problem = str(error)
            watch.began = None
            maps.check()
            channel.send(ReadReply(packed, problem, printed.take()))


def _open(init: ReaderInit) -> TaskData:
    """Return the data. Raises TaskError."""
    try:
        if init.source is not None:
            load_source(init.source)
        data = read_data(Path(f"/dev/fd/{init.data_fd}"))
    except TaskError:
        raise
    except user_errors() as error:
        raise TaskError(f"the data cannot be opened in a reader process: {describe_exception(error)}") from error
    freeze_loaded_objects()
    return data


def _read(data: TaskData, request: ReadRequest) -> Batch:
    """Return a batch. Raises TaskError."""
    index, name = request.split
    lazy = lazy_of(getattr(data[index], name))
    assert lazy is not None
    return request.placement.apply(lazy.read_batch(request.indices, request.seeds))
