"""Ranks as threads of one process: they meet at a barrier and add what each has brought."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from esper.ranks import RankGroup

T = TypeVar("T")


class Meeting:
    """Where so many ranks meet. A rank that ends breaks the barrier, as a closed connection would."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=300)
        self._brought: list[Tensor] = [torch.empty(0)] * world_size

    def rank(self, rank: int) -> RankGroup:
        def add(values: Tensor) -> None:
            self._brought[rank] = values.clone()
            self._barrier.wait()
            values.copy_(torch.stack(self._brought).sum(0, dtype=values.dtype))
            self._barrier.wait()

        return RankGroup(rank, self.world_size, add)

    def leave(self) -> None:
        """A rank ends."""
        self._barrier.abort()


def together(world_size: int, work: Callable[[RankGroup], T]) -> list[T]:
    """What `work` returns on every rank. An exception on one is lost to the others as a rank is, and raised here."""
    meeting = Meeting(world_size)

    def on(rank: int) -> T:
        try:
            return work(meeting.rank(rank))
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(world_size) as threads:
        return [future.result() for future in [threads.submit(on, rank) for rank in range(world_size)]]
