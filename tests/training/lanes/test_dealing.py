"""Which lane trains which env: equal shares on equal devices, by speed on unequal ones, and hosts stay whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.training.lanes import pool as pool_module
from esper.training.lanes.dealing import deal_envs
from esper.training.lanes.pool import EnvPool
from tests.training.engine.populations import play, population


def test_equal_lanes_are_dealt_round_robin() -> None:
    assert deal_envs([0, 0, 1, 1, 2], ["cpu", "cpu"], {}) == [0, 1, 0, 1, 0]


def test_unequal_lanes_are_dealt_by_speed() -> None:
    lanes = deal_envs(list(range(16)), ["big", "small"], {"big": 3.0, "small": 1.0})
    assert Counter(lanes) == {0: 12, 1: 4}


@given(
    hosts=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    kinds=st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
    speeds=st.fixed_dictionaries(dict.fromkeys("abc", st.floats(0.1, 100.0))),
)
def test_envs_of_one_host_stay_on_one_kind(hosts: list[int], kinds: list[str], speeds: dict[str, float]) -> None:
    host_by_env = [host for host, size in enumerate(hosts) for _ in range(size)]
    lanes = deal_envs(host_by_env, kinds, speeds)
    assert len(lanes) == len(host_by_env)
    if len(set(kinds)) > 1:
        for host in range(len(hosts)):
            assert len({kinds[lane] for lane, each in zip(lanes, host_by_env, strict=True) if each == host}) == 1
    for kind in set(kinds):  # equally many envs, but for one, on the lanes of a kind
        counts = [lanes.count(lane) for lane, each in enumerate(kinds) if each == kind]
        assert max(counts) - min(counts) <= 1


def test_population_on_unequal_lanes_is_measured_and_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # both lanes train in this process
    kinds = iter(["one", "other", "only"])
    monkeypatch.setattr(pool_module, "device_kind", lambda _: next(kinds))
    measured: list[Mapping[str, float]] = []

    def deal(hosts: Sequence[int], kinds: Sequence[str], speeds: Mapping[str, float]) -> list[int]:
        measured.append(speeds)
        return deal_envs(hosts, kinds, dict.fromkeys(speeds, 1.0))  # one core may be busy with other work

    monkeypatch.setattr(pool_module, "deal_envs", deal)
    with (
        population(envs=6, lanes=("cpu:0", "cpu:1"), policy="static") as unequal,
        population(envs=6, policy="static") as alone,
    ):
        assert [speed > 0 for speed in measured[0].values()] == [True, True]
        assert set(unequal.lane_by_env) == {"cpu:0", "cpu:1"}
        assert repr(play(unequal, 0, 3)) == repr(play(alone, 0, 3))  # measuring leaves no trace in the results


@pytest.mark.slow
def test_lane_without_envs_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "deal_envs", lambda hosts, *_: [0] * len(hosts))
    with population(envs=2, lanes=("cpu:0", "cpu:1")) as pool:
        assert pool.lane_by_env == ["cpu:0", "cpu:0"]
        play(pool, 0, 1)
