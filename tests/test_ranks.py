"""What ranks say to each other arrives whole, in order, and on all of them alike."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.control import Control, Kind
from esper.engine.run_control import SharedControl
from esper.process import Place
from esper.ranks import ALONE, RankLostError, Ranks
from tests.ranks import Meeting, together

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool]


@settings(max_examples=20)
@given(ranks=st.integers(1, 4), envs=st.integers(1, 9), dtype=st.sampled_from(DTYPES))
def test_gather_returns_all_shards_in_order(ranks: int, envs: int, dtype: torch.dtype) -> None:
    whole = (torch.arange(envs * 6).reshape(envs, 2, 3) % 5).to(dtype)
    for gathered in together(ranks, lambda each: each.gather(each.own(whole))):
        assert torch.equal(gathered, whole)
        assert gathered.dtype is dtype


@given(ranks=st.integers(1, 5), envs=st.integers(1, 20))
def test_envs_are_split_evenly_across_ranks(ranks: int, envs: int) -> None:
    owned = [Ranks(rank, ranks, lambda _: None).owned(envs) for rank in range(ranks)]
    assert [env for share in owned for env in share] == list(range(envs))
    sizes = [len(share) for share in owned]
    assert max(sizes) - min(sizes) <= 1


def test_gather_keeps_non_finite_values() -> None:
    whole = torch.tensor([1.0, math.nan, -math.inf, 0.0])
    for gathered in together(2, lambda each: each.gather(each.own(whole))):
        assert torch.equal(gathered.nan_to_num(nan=7.0), whole.nan_to_num(nan=7.0))


def test_gather_finds_drawn_members_on_their_ranks() -> None:
    drawn = torch.tensor([4, 0, 3, 1])
    places = [Ranks(rank, 2, lambda _: None).places(drawn, 5).tolist() for rank in range(2)]
    assert places == [[0, 1], [2, 1]]  # envs 0 and 1, and 2 to 4


def test_collect_returns_objects_by_rank() -> None:
    for found in together(3, lambda each: each.collect({"rank": each.rank, "text": "x" * each.rank})):
        assert found == [{"rank": rank, "text": "x" * rank} for rank in range(3)]


def test_first_rank_result_or_error_reaches_all() -> None:
    def attempt(each: Ranks) -> tuple[int, str]:
        done = each.first(lambda: 10 + each.rank)
        with pytest.raises(OSError, match="disk full") as caught:
            each.first(lambda: fail(each.rank))
        return done, str(caught.value)

    def fail(rank: int) -> None:
        raise OSError("disk full" if rank == 0 else "nobody asked this rank")

    assert together(3, attempt) == [(10, "disk full")] * 3


def test_ended_rank_is_reported_in_one_sentence() -> None:
    meeting = Meeting(2)
    meeting.leave()
    with pytest.raises(RankLostError, match=r"^rank 1 has lost another of the 2 ranks: .*see what it said$"):
        meeting.rank(1).collect(None)


def test_single_rank_does_not_communicate() -> None:
    values = torch.ones(3)
    assert ALONE.gather(values) is ALONE.own(values) is ALONE.sum(values) is ALONE.places(values, 3) is values
    assert ALONE.collect("x") == ["x"]
    assert ALONE.first(lambda: 5) == 5


def test_requests_reach_all_ranks_in_one_order() -> None:
    def take(each: Ranks) -> list[tuple[Kind, str]]:
        own = Control()
        shared = SharedControl(own, each)
        own.ask(Kind.PAUSE if each.rank == 0 else Kind.STOP, f"rank {each.rank}")
        if each.rank == 0:
            own.ask(Kind.STEP, "later")
        taken = [request for _ in range(5) if (request := shared.take())]
        return [(request.kind, request.origin) for request in taken]

    expected = [(Kind.PAUSE, "rank 0"), (Kind.STOP, "rank 1"), (Kind.STEP, "later")]
    assert together(2, take) == [expected, expected]


def test_place_comes_from_torchrun_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "3")
    assert Place.current() == Place()  # a variable that others set as well does not make a rank of us
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    for name, value in zip(names, "341212", strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert Place.current() == Place(3, 4, 1, 2, 1, 2)
    assert [Place(rank).directory for rank in range(3)] == [".", "rank-1", "rank-2"]
