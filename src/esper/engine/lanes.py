"""A lane: one device, and the one thread that drives it. Lanes run side by side; the envs of a lane take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from esper.engine.devices import torch_device
from esper.engine.stopwatch import Stopwatch
from esper.tasks.task import Splits

T = TypeVar("T")


class Lane:
    """A device with its thread and its copy of the data.

    Args:
        name: such as `cuda:0` or `cpu:1`.
        splits: the task's data, on its device.
    """

    def __init__(self, name: str, splits: Splits) -> None:
        self.name = name
        self.device = torch_device(name)
        self.splits = splits
        self.stopwatch = Stopwatch()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"lane {name}")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have the lane's thread do something, after what it was given before."""
        return self._thread.submit(work)

    def close(self) -> None:
        """Wait for the thread and end it."""
        self._thread.shutdown(cancel_futures=True)


def open_lanes(names: Sequence[str], splits: Splits) -> list[Lane]:
    """Build the lanes of a run. Those of one device share its copy of the data.

    Operators on these small tensors lose more by sharing an intra-op thread pool than they gain: the parallelism is in
    the lanes, so every operator runs on its lane's own thread.
    """
    torch.set_num_threads(1)
    resident = {device: splits.to(device) for device in {torch_device(name) for name in names}}
    return [Lane(name, resident[torch_device(name)]) for name in names]
