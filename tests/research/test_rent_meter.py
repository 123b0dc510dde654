"""The rent meter: returns at another rent follow from those that were played, also after a breakdown."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest
from research.rent_meter import RentMeter

from esper.config import Config
from esper.envs.epoch_result import EpochResult
from esper.envs.governor import Breakdown
from esper.evaluation.episodes import run_episodes
from esper.lanes.pool import EnvPool
from esper.policy.plan import parse_plan
from esper.policy.plan_agent import PlanAgent
from esper.tasks.prepare import prepare_task

STEPS = 8
BROKEN_AT = 5


@pytest.mark.parametrize("breaks", [False, True])
def test_return_at_another_rent_follows_from_the_meter(breaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_task(Config(task="digits_impaired", steps=STEPS, envs=2, policy="static"))
    profile = prepared.profile
    returns: list[list[float]] = []
    sums: list[list[float]] = []

    def breakdown(_: EpochResult) -> Breakdown | None:
        calls.append(0)
        return Breakdown("it is ill", 0.0, None) if breaks and len(calls) == 2 * BROKEN_AT else None

    monkeypatch.setattr("esper.engine.episode.find_non_finite", breakdown)
    for rent in (0.002, 0.01):
        calls: list[int] = []
        weights = msgspec.structs.replace(prepared.config.reward_weights, rent=rent)
        config = msgspec.structs.replace(prepared.config, reward_weights=weights, reward="simplified")
        plan = parse_plan("conv_light@early:0", STEPS)
        meter = RentMeter(PlanAgent(plan, profile.sites, profile.blueprints))
        with closing(EnvPool(prepared.task, profile, prepared.data, ("cpu:0",), config)) as pool:
            episodes = run_episodes(pool, meter, config, lambda: None)
        returns.append([episode.net_return for episode in episodes])
        sums.append(meter.sums())
        assert [episode.broke_down for episode in episodes] == [False, breaks]
    assert sums[0] == pytest.approx(sums[1])
    assert [cheap - dear for cheap, dear in zip(*returns, strict=True)] == pytest.approx([0.008 * x for x in sums[0]])
