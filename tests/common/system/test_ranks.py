"""Collectives deliver values complete, in order, and identical on all ranks."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import PrefixStore

from esper.common.control import RequestKind, RequestQueue
from esper.common.system.process import RankInfo
from esper.common.system.ranks import SINGLE_RANK, RankGroup, RankLostError, meet
from esper.training.engine.run_control import RankedRequestQueue
from tests.ranks import ThreadRanks, together

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool]


@given(ranks=st.integers(1, 4), envs=st.integers(1, 9), dtype=st.sampled_from(DTYPES), is_dealt=st.booleans())
def test_gather_returns_all_shards_in_order(ranks: int, envs: int, dtype: torch.dtype, is_dealt: bool) -> None:
    whole = (torch.arange(envs * 6).reshape(envs, 2, 3) % 5).to(dtype)

    def gather(each: RankGroup) -> Tensor:
        each = each.dealt() if is_dealt else each
        names = each.in_env_order(each.all_gather_object([f"env {env}" for env in each.env_range(envs)]))
        assert names == [f"env {env}" for env in range(envs)]
        return each.all_gather_rows(each.local_rows(whole))

    for gathered in together(ranks, gather):
        assert torch.equal(gathered, whole)
        assert gathered.dtype is dtype


@given(ranks=st.integers(1, 5), envs=st.integers(1, 20))
def test_envs_are_split_evenly_across_ranks(ranks: int, envs: int) -> None:
    owned = [RankGroup(rank, ranks, lambda _: None).env_range(envs) for rank in range(ranks)]
    assert [env for share in owned for env in share] == list(range(envs))
    sizes = [len(share) for share in owned]
    assert max(sizes) - min(sizes) <= 1


def test_gather_keeps_non_finite_values() -> None:
    whole = torch.tensor([1.0, math.nan, -math.inf, 0.0])
    for gathered in together(2, lambda each: each.all_gather_rows(each.local_rows(whole))):
        assert torch.equal(gathered.nan_to_num(nan=7.0), whole.nan_to_num(nan=7.0))


def test_gather_finds_drawn_members_on_their_ranks() -> None:
    drawn = torch.tensor([4, 0, 3, 1])
    places = [RankGroup(rank, 2, lambda _: None).local_indices(drawn, 5).tolist() for rank in range(2)]
    assert places == [[0, 1], [2, 1]]  # envs 0 and 1, and 2 to 4
    places = [RankGroup(rank, 2, lambda _: None).dealt().local_indices(drawn, 5).tolist() for rank in range(2)]
    assert places == [[2, 0], [1, 0]]  # envs 0, 2 and 4, and 1 and 3


def test_all_gather_object_returns_objects_by_rank() -> None:
    for found in together(3, lambda each: each.all_gather_object({"rank": each.rank, "text": "x" * each.rank})):
        assert found == [{"rank": rank, "text": "x" * rank} for rank in range(3)]


def test_first_rank_result_or_error_reaches_all() -> None:
    def attempt(each: RankGroup) -> tuple[int, str]:
        done = each.run_on_rank0(lambda: 10 + each.rank)
        with pytest.raises(OSError, match="disk full") as caught:
            each.run_on_rank0(lambda: fail(each.rank))
        return done, str(caught.value)

    def fail(rank: int) -> None:
        raise OSError("disk full" if rank == 0 else "the function ran on this rank")

    assert together(3, attempt) == [(10, "disk full")] * 3


def test_ended_rank_is_reported_in_one_sentence() -> None:
    meeting = ThreadRanks(2)
    meeting.leave()
    with pytest.raises(RankLostError, match=r"^rank 1 has lost another of the 2 ranks: .*see its output$"):
        meeting.rank(1).all_gather_object(None)


def test_single_rank_does_not_communicate() -> None:
    values = torch.ones(3)
    assert (
        SINGLE_RANK.all_gather_rows(values)
        is SINGLE_RANK.local_rows(values)
        is SINGLE_RANK.all_reduce_(values)
        is SINGLE_RANK.local_indices(values, 3)
        is values
    )
    assert SINGLE_RANK.all_gather_object("x") == ["x"]
    assert SINGLE_RANK.run_on_rank0(lambda: 5) == 5


def test_requests_reach_all_ranks_in_one_order() -> None:
    def take(each: RankGroup) -> list[tuple[RequestKind, str]]:
        own = RequestQueue()
        shared = RankedRequestQueue(own, each)
        own.put(RequestKind.PAUSE if each.rank == 0 else RequestKind.STOP, f"rank {each.rank}")
        if each.rank == 0:
            own.put(RequestKind.STEP, "later")
        taken = [request for _ in range(5) if (request := shared.get())]
        return [(request.kind, request.origin) for request in taken]

    expected = [(RequestKind.PAUSE, "rank 0"), (RequestKind.STOP, "rank 1"), (RequestKind.STEP, "later")]
    assert together(2, take) == [expected, expected]


def test_rank_info_comes_from_torchrun_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "3")
    assert RankInfo.from_environment() == RankInfo()  # a variable that other programs set too is not enough
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    for name, value in zip(names, "341212", strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert RankInfo.from_environment() == RankInfo(3, 4, 1, 2, 1, 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "5")
    assert RankInfo.from_environment().restarts == 5


def test_ranks_do_not_meet_those_of_an_earlier_start() -> None:
    """torchrun keeps its store, in which the killed ranks have left their tokens."""
    store = HashStore()

    def meet_all() -> set[str]:
        with ThreadPoolExecutor(3) as threads:
            # Rank 0 comes last: the others find the token of the earlier one.
            return set(threads.map(lambda rank: meet(store, RankInfo(rank, 3)), (2, 1, 0)))

    (first,), (second,) = meet_all(), meet_all()
    assert first != second


class _Work:
    """Work of a collective that is done at the third look."""

    looks = 0

    def wait(self, _: object = None) -> bool:
        self.looks += 1
        if self.looks < 3:
            raise RuntimeError("Operation timed out!")
        return True

    def is_completed(self) -> bool:
        return self.looks >= 3


def test_rank_0_reads_the_notes_of_others_while_it_waits_for_them() -> None:
    store, found = HashStore(), list[dict[int, object]]()
    first, second = (RankGroup(rank, 2, lambda _: cast("Any", _Work()), store) for rank in range(2))

    def read() -> None:
        found.append(first.read_notes())
        second.put_note(("loss", 28) if len(found) == 1 else None)

    first.while_waiting = read
    first.all_reduce_(torch.ones(1))
    assert found == [{}, {1: ("loss", 28)}, {1: None}]


def test_ranks_go_on_without_notes_when_torchrun_was_killed() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [PrefixStore("run", TCPStore("127.0.0.1", server.port, wait_for_workers=False)) for _ in range(2)]
    first, second = (RankGroup(rank, 2, lambda _: cast("Any", _Work()), store) for rank, store in enumerate(stores))
    found = list[dict[int, object]]()
    first.while_waiting = lambda: found.append(first.read_notes())
    second.put_note("stuck")
    first.all_reduce_(torch.ones(1))
    assert found.pop() == {1: "stuck"}
    del server
    second.put_note("stuck")
    first.all_reduce_(torch.ones(1))
    assert {1: None} in found
