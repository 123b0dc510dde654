"""Ranks as threads of one process, and as processes that torchrun has started.

The all-reduce of threads waits at a barrier and sums the tensors of all threads.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor

from esper.common.system.ranks import RankGroup

T = TypeVar("T")


def rank_processes(launcher: subprocess.Popen[Any]) -> dict[str, psutil.Process]:
    """Return the processes of the ranks of a torchrun that run now, keyed by rank."""
    found: dict[str, psutil.Process] = {}
    for child in psutil.Process(launcher.pid).children():
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and (rank := child.environ().get("RANK")):
                found[rank] = child
    return found


class ThreadRanks:
    """Connects ranks in threads. A rank that ends breaks the barrier, like a closed connection."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=300)
        self._tensors: list[Tensor] = [torch.empty(0)] * world_size

    def rank(self, rank: int) -> RankGroup:
        def all_reduce(values: Tensor) -> None:
            self._tensors[rank] = values.clone()
            self._barrier.wait()
            values.copy_(torch.stack(self._tensors).sum(0, dtype=values.dtype))
            self._barrier.wait()

        return RankGroup(rank, self.world_size, all_reduce)

    def leave(self) -> None:
        """End a rank: the other ranks raise RankLostError."""
        self._barrier.abort()


def together(world_size: int, work: Callable[[RankGroup], T]) -> list[T]:
    """Return the results of `work` on every rank. If a rank raises, the others lose it, and this raises."""
    ranks = ThreadRanks(world_size)

    def run(rank: int) -> T:
        try:
            return work(ranks.rank(rank))
        except BaseException:
            ranks.leave()
            raise

    with ThreadPoolExecutor(world_size) as threads:
        return [future.result() for future in [threads.submit(run, rank) for rank in range(world_size)]]
