from __future__ import annotations

import math

import pytest

from esper.common.score_scale import PERCENT
from esper.recordings.effects.results import Trajectory
from esper.recordings.effects.verdict import judge_cause

RECORDED = [0.1, 0.5, 0.8, 0.7, 0.3]
"""Scores before the first step, and after each of four steps."""


def trajectory(*scores: float) -> Trajectory:
    return Trajectory(
        scores=list(scores),
        net_return=0.0,
        costs=0.0,
        parameter_ratio=1.0,
        final_score=scores[-1],
    )


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ((0.1, 0.5, 0.8, 0.7, 0.796), "confirmed: without it −0.4 pp instead of −50.0 pp"),
        ((0.1, 0.5, 0.8, 0.7, 0.85), "confirmed: without it +5.0 pp instead of −50.0 pp"),
        ((0.1, 0.5, 0.8, 0.7, 0.55), "refuted: without it −25.0 pp instead of −50.0 pp"),
        ((0.1, 0.2, 0.3, 0.3, 0.3), "refuted: without it −50.0 pp instead of −50.0 pp"),  # it never rose
    ],
)
def test_cause_is_confirmed_if_less_than_half_of_the_drop_is_left(scores: tuple[float, ...], text: str) -> None:
    verdict = judge_cause(trajectory(*RECORDED), trajectory(*scores), 4, PERCENT)
    assert str(verdict) == text


@pytest.mark.parametrize("scores", [RECORDED[:4], [*RECORDED[:3], math.nan, math.nan]])
def test_episode_that_ends_before_the_drop_gives_no_verdict(scores: list[float]) -> None:
    assert judge_cause(trajectory(*RECORDED), trajectory(*scores), 4, PERCENT) is None


@pytest.mark.parametrize("step", [1, 2, 5])
def test_step_without_a_drop_gives_no_verdict(step: int) -> None:
    assert judge_cause(trajectory(*RECORDED), trajectory(*RECORDED), step, PERCENT) is None
