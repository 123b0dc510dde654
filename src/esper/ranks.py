"""The ranks of a run: processes, on one machine or several, that share one population and one policy.

Each rank owns a contiguous share of the envs. Everything that they tell each other goes through one collective, the sum
of a tensor over all of them: summed with the zeros of the others, a rank's own part arrives as it is. A rank alone has
nobody to ask, and every method then gives back what it was given.

Shapes: E envs, of one rank or of all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from esper.process import RankInfo

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for another that is there, but does not answer. One that has ended is missed at once."""

T = TypeVar("T")
AllReduce = Callable[[Tensor], None]
"""Sums a tensor over the ranks, in place."""


class RankLostError(Exception):
    """Another rank has ended, or does not answer. One sentence for people."""


class RankGroup:
    """What a rank does together with the others. All ranks must call the same methods in the same order.

    Args:
        rank: of this process.
        world_size: number of ranks.
        add: the collective that all else is made of; it raises RuntimeError when another rank is lost.
    """

    def __init__(self, rank: int, world_size: int, add: AllReduce) -> None:
        self.rank = rank
        self.world_size = world_size
        self._add = add

    @property
    def is_single(self) -> bool:
        """Whether there is only this one."""
        return self.world_size == 1

    def env_range(self, envs: int) -> range:
        """Which of all the envs are this rank's."""
        return range(envs * self.rank // self.world_size, envs * (self.rank + 1) // self.world_size)

    def all_reduce_(self, values: Tensor) -> Tensor:
        """Sum over the ranks, in place; the same bits on all of them.

        Raises:
            RankLostError: another rank has ended, or does not answer.
        """
        if not self.is_single:
            try:
                self._add(values)
            except RuntimeError as error:
                raise RankLostError(
                    f"rank {self.rank} has lost another of the {self.world_size} ranks: it has ended, or has not "
                    f"answered for {COLLECTIVE_TIMEOUT}; see what it said"
                ) from error
        return values

    def all_gather_rows(self, rows_E: Tensor) -> Tensor:
        """Rows of this rank's envs → rows of all envs, in their order; any further dimensions.

        Raises:
            RankLostError: as `sum`.
        """
        if self.is_single:
            return rows_E
        counts = torch.zeros(self.world_size, dtype=torch.int64)
        counts[self.rank] = len(rows_E)
        before, envs = int(self.all_reduce_(counts)[: self.rank].sum()), int(counts.sum())
        plain_E = rows_E.view(torch.uint8) if rows_E.dtype is torch.bool else rows_E
        whole_E = plain_E.new_zeros((envs, *plain_E.shape[1:]))
        whole_E[before : before + len(plain_E)] = plain_E
        return self.all_reduce_(whole_E).view(rows_E.dtype)

    def local_rows(self, whole_E: Tensor) -> Tensor:
        """Rows of all envs → a view of those of this rank's."""
        if self.is_single:
            return whole_E
        owned = self.env_range(len(whole_E))
        return whole_E[owned.start : owned.stop]

    def local_indices(self, chosen: Tensor, envs: int) -> Tensor:
        """Numbers of some of all `envs`, in any order → places, among this rank's, of those that are."""
        if self.is_single:
            return chosen
        owned = self.env_range(envs)
        return chosen[(chosen >= owned.start) & (chosen < owned.stop)] - owned.start

    def all_gather_object(self, item: T) -> list[T]:
        """What every rank gives, by rank.

        Raises:
            RankLostError: as `sum`.
        """
        if self.is_single:
            return [item]
        content = pickle.dumps(item)  # between processes of one run; nothing that comes from a file is unpickled
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(content)
        lengths = self.all_reduce_(sizes).tolist()
        table = torch.zeros(self.world_size, max(lengths), dtype=torch.uint8)
        table[self.rank, : len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        rows = self.all_reduce_(table).numpy()
        return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def run_on_rank0(self, work: Callable[[], T]) -> T:
        """Have rank 0 do something; every rank gets what it returns, or raises what it raises.

        Raises:
            RankLostError: as `sum`.
        """
        if self.is_single:
            return work()
        outcome: tuple[T | None, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = work(), None
            except Exception as error:  # noqa: BLE001 (every rank raises it below)
                outcome = None, error
        result, failure = self.all_gather_object(outcome)[0]
        if failure is not None:
            raise failure
        return result  # pyright: ignore[reportReturnType] (what rank 0's work returned)


def _all_reduce(values: Tensor) -> None:
    dist.all_reduce(values)


def _no_op(_: Tensor) -> None:
    """Nothing to add."""


SINGLE_RANK = RankGroup(0, 1, _no_op)


def init_ranks(place: RankInfo, lanes: Sequence[str]) -> RankGroup:
    """Meet the other ranks; tensors on the CPU go through gloo, those on a GPU through nccl.

    Raises:
        RankLostError: they do not all come.
    """
    if place.world_size == 1:
        return SINGLE_RANK
    backend = "cpu:gloo,cuda:nccl" if any("cuda" in lane for lane in lanes) else "gloo"
    try:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    except RuntimeError as error:
        raise RankLostError(
            f"rank {place.rank} cannot meet the other {place.world_size - 1}: {str(error).splitlines()[0]}"
        ) from error
    return RankGroup(place.rank, place.world_size, _all_reduce)


def destroy_ranks() -> None:
    """Close the connections to the other ranks, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
