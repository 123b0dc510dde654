"""Collectives between the ranks of a run: processes, on one node or several, that share one population and one policy.

Each rank owns a part of the envs. All communication uses one collective, the sum of a tensor over all ranks: to gather
values, each rank contributes its own part and zeros for the rest. With a single rank there is no communication, and
every collective returns its input.

Shapes: E envs, of one rank or of all ranks.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from esper.common.system.process import RankInfo

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Time that a rank waits for a rank that does not answer. A rank that has exited is detected at once."""

WAIT = timedelta(seconds=1)
"""Time between two calls of `RankGroup.while_waiting`."""
MEETING_POLL_S = 0.05
"""Seconds between looks for the other ranks, until all are connected."""

T = TypeVar("T")
AllReduce = Callable[[Tensor], dist.Work | None]
"""Function that sums a tensor over the ranks, in place, and returns the work to wait for; None for none."""


class RankLostError(Exception):
    """Another rank has exited or does not answer. The message is one sentence for the user."""


class RankGroup:
    """Collectives of the ranks. All ranks must call the same methods in the same order.

    Every collective raises RankLostError if another rank has exited or does not answer.

    Args:
        all_reduce: In-place sum over the ranks, on which every other collective is built. Raises RuntimeError if
            another rank is lost.
        store: Store of the ranks, for notes; None for a single rank, or once it is lost.
        is_dealt: Deal the envs to the ranks one after another. If False, each rank has consecutive envs.

    Attributes:
        while_waiting: Called every second while a collective waits for other ranks, and after such a wait. It may raise
            an exception to give up; no later collective can succeed then.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        all_reduce: AllReduce,
        store: Store | None = None,
        *,
        is_dealt: bool = False,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.while_waiting: Callable[[], None] = lambda: None
        self._all_reduce = all_reduce
        self.store = store
        self._is_dealt = is_dealt

    def dealt(self) -> RankGroup:
        """Return the same ranks with envs that are dealt one after another: the first envs belong to all ranks."""
        return RankGroup(self.rank, self.world_size, self._all_reduce, self.store, is_dealt=True)

    @property
    def is_single(self) -> bool:
        """True if the run has one rank only."""
        return self.world_size == 1

    def env_range(self, envs: int) -> range:
        """Return the indices of this rank's envs among all `envs`."""
        return self._envs_of(self.rank, envs)

    def _envs_of(self, rank: int, envs: int) -> range:
        if self._is_dealt:
            return range(rank, envs, self.world_size)
        return RankInfo(rank, self.world_size).env_range(envs)

    def in_env_order(self, by_rank: Sequence[Sequence[T]]) -> list[T]:
        """Return the items of all envs in their order, given those of the envs of each rank."""
        envs = sum(map(len, by_rank))
        items = {
            env: item
            for rank, own in enumerate(by_rank)
            for env, item in zip(self._envs_of(rank, envs), own, strict=True)
        }
        return [items[env] for env in range(envs)]

    def all_reduce_(self, values: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place. The result is bit-identical on all ranks."""
        if not self.is_single:
            try:
                if work := self._all_reduce(values):
                    self._wait(work)
            except RuntimeError as error:
                raise RankLostError(
                    f"rank {self.rank} has lost another of the {self.world_size} ranks: it has ended, or has not "
                    f"answered for {COLLECTIVE_TIMEOUT}; see its output"
                ) from error
        return values

    def _wait(self, work: dist.Work) -> None:
        has_waited = False
        while not _is_done(work):
            self.while_waiting()
            has_waited = True
        if has_waited:
            self.while_waiting()

    def put_note(self, note: object) -> None:
        """Leave a small object for rank 0, in place of the last one, without waiting for it.

        Notes are lost if torchrun, whose process has the store, was killed. The ranks do not need it otherwise.
        """
        try:
            if self.store is not None:
                self.store.set(f"note/{self.rank}", pickle.dumps(note).hex())
        except dist.DistError:
            self.store = None

    def read_notes(self) -> dict[int, Any]:
        """Return the last note of each other rank that has left one, by rank; None for each once notes are lost."""
        others = range(1, self.world_size)
        try:
            found = {rank: _read(self.store, f"note/{rank}") for rank in others if self.store}
        except dist.DistError:
            self.store = None
            return dict.fromkeys(others)
        return {rank: pickle.loads(bytes.fromhex(text)) for rank, text in found.items() if text}

    def all_gather_rows(self, rows_E: Tensor) -> Tensor:
        """Gather the rows [E, …] of the envs of every rank; return the rows of all envs, in order."""
        if self.is_single:
            return rows_E
        count = self.all_reduce_(torch.tensor([len(rows_E)]))
        plain_E = rows_E.view(torch.uint8) if rows_E.dtype is torch.bool else rows_E
        whole_E = plain_E.new_zeros((int(count), *plain_E.shape[1:]))
        self.local_rows(whole_E)[:] = plain_E
        return self.all_reduce_(whole_E).view(rows_E.dtype)

    def local_rows(self, whole_E: Tensor) -> Tensor:
        """Return a view of the rows of this rank's envs among the rows [E, …] of all envs."""
        if self.is_single:
            return whole_E
        owned = self.env_range(len(whole_E))
        return whole_E[owned.start : owned.stop : owned.step]

    def local_indices(self, chosen: Tensor, envs: int) -> Tensor:
        """Select the indices that belong to this rank, and return them relative to its first env. Order is kept.

        Args:
            chosen: int64, indices of some envs among all `envs`.
        """
        if self.is_single:
            return chosen
        owned = self.env_range(envs)
        offsets = chosen[(chosen >= owned.start) & (chosen < owned.stop)] - owned.start
        return offsets[offsets % owned.step == 0] // owned.step

    def all_gather_object(self, item: T) -> list[T]:
        """Gather one object from every rank; return them ordered by rank."""
        if self.is_single:
            return [item]
        content = pickle.dumps(item)  # safe: only ranks of one run exchange it; no file is ever unpickled
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(content)
        lengths = [int(size) for size in self.all_reduce_(sizes)]
        table = torch.zeros(self.world_size, max(lengths), dtype=torch.uint8)
        table[self.rank, : len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        rows = self.all_reduce_(table).numpy()
        return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def run_on_rank0(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0. Every rank returns its result, others a copy, or raises its exception."""
        if self.is_single:
            return work()
        outcome = _outcome_of(work) if self.rank == 0 else (None, None)
        copy = self.all_gather_object(outcome)[0]
        result, failure = outcome if self.rank == 0 else copy
        if failure is not None:
            raise failure
        return result  # pyright: ignore[reportReturnType] (the result of `work` on rank 0)

    def run_on_every_rank(self, work: Callable[[], T]) -> list[T]:
        """Call a function on every rank. Every rank returns all results, by rank, or raises the first exception."""
        if self.is_single:
            return [work()]
        outcomes = self.all_gather_object(_outcome_of(work))
        for _, failure in outcomes:
            if failure is not None:
                raise failure
        return [result for result, _ in outcomes]  # pyright: ignore[reportReturnType] (as above)


def _outcome_of(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call a function, and return its result and None, or None and its exception, which every rank is to raise."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001
        return None, error


SINGLE_RANK = RankGroup(0, 1, lambda _: None)


def init_ranks(info: RankInfo) -> RankGroup:
    """Connect to the other ranks, over gloo. Raises RankLostError if not all have connected in time."""
    if info.world_size == 1:
        return SINGLE_RANK
    # Its functions have the group that exists at its import as their default argument. The group would outlive
    # `destroy_ranks`, and a thread of gloo that releases its last tensor while Python exits aborts the process.
    import torch.distributed.nn.functional  # noqa: F401  # pyright: ignore[reportUnusedImport]

    try:
        store, _, _ = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
        token = meet(store, info)
        store = PrefixStore(token, store)
        dist.init_process_group(
            "gloo", store=store, rank=info.rank, world_size=info.world_size, timeout=COLLECTIVE_TIMEOUT
        )
    except RuntimeError as error:
        raise RankLostError(
            f"rank {info.rank} cannot connect to the other {info.world_size - 1}: {str(error).splitlines()[0]}"
        ) from error
    return RankGroup(info.rank, info.world_size, _start_all_reduce, store)


def meet(store: Store, info: RankInfo) -> str:
    """Wait until all ranks are here, and return a token that they share and that no earlier ranks have had.

    torchrun keeps its store when it restarts the ranks, with the addresses of the killed ones: torch itself would
    connect to these. Each rank answers to the token of rank 0 with its own, and rank 0 confirms all answers at once. So
    a rank recognises the token of an earlier rank 0: its confirmation lacks the answer.

    Raises:
        RankLostError: A rank does not come in time.
    """
    own = uuid4().hex
    others = range(1, info.world_size)
    if info.rank == 0:
        store.set("token", own)
    deadline = time.monotonic() + COLLECTIVE_TIMEOUT.total_seconds()
    while time.monotonic() < deadline:
        token = own if info.rank == 0 else _read(store, "token")
        if info.rank == 0 and store.check([f"{own}/{rank}" for rank in others]):
            store.set(f"{own}/all", " ".join(_read(store, f"{own}/{rank}") for rank in others))
            return own
        if info.rank > 0 and token:
            store.set(f"{token}/{info.rank}", own)
            if own in _read(store, f"{token}/all"):
                return token
        time.sleep(MEETING_POLL_S)
    others_missing = f"the other {len(others)} had not started"
    raise RankLostError(f"rank {info.rank} has waited for {COLLECTIVE_TIMEOUT}: {others_missing}")


def _is_done(work: dist.Work) -> bool:
    """Wait for a moment, and return True if the work is done. Raises RuntimeError if it has failed."""
    try:
        return work.wait(WAIT)
    except RuntimeError:  # also if it is not done
        return work.is_completed() and work.wait()


def _read(store: Store, key: str) -> str:
    """Return the value of a key; empty without one, where `get` would wait for it."""
    return store.get(key).decode() if store.check([key]) else ""


def reduce_on_gpu(ranks: RankGroup, policy_device: str) -> RankGroup:
    """Return ranks that reduce the GPU tensors of the policy by NCCL. All ranks call this together.

    Args:
        policy_device: Device of the policy, the only one whose tensors are reduced on a GPU.
    """
    if ranks.is_single or not policy_device.startswith("cuda"):
        return ranks
    nccl = dist.new_group(backend="nccl", timeout=COLLECTIVE_TIMEOUT)
    return RankGroup(
        ranks.rank,
        ranks.world_size,
        lambda values: _start_all_reduce(values, nccl),
        ranks.store,
    )


def _start_all_reduce(values: Tensor, nccl: Any = None) -> dist.Work | None:
    """Sum a tensor over the ranks: one on a GPU by NCCL, whose work is in a stream, and another one by gloo."""
    if values.is_cuda and nccl:
        return dist.all_reduce(values, group=nccl)
    return dist.all_reduce(values, async_op=True)


def destroy_ranks() -> None:
    """Close the connections to the other ranks, if there are any, and end their threads."""
    if dist.is_initialized():
        dist.destroy_process_group()
