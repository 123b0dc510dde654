"""The scale of a score: text, direction, and the fraction that is rewarded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.intervals import IntervalEstimate
from esper.common.score_scale import PERCENT, ScoreScale, common_scale

RMSE = ScoreScale(best="low", high=None)
R2 = ScoreScale(low=None)
ERROR_RATE = ScoreScale(best="low")
SCORES = st.floats(-1e6, 1e6)


def test_fractions_are_shown_in_percent_and_others_as_they_are() -> None:
    interval = IntervalEstimate(mean=0.5, low=0.25, high=0.75)
    assert [scale.text(0.4128) for scale in (PERCENT, ERROR_RATE, RMSE, R2)] == ["41.3%", "41.3%", "0.413", "0.413"]
    assert [scale.difference(-0.0312) for scale in (PERCENT, RMSE)] == ["-3.1 pp", "-0.0312"]
    assert [scale.difference(0.0312) for scale in (PERCENT, RMSE)] == ["+3.1 pp", "+0.0312"]
    assert [scale.interval(interval) for scale in (PERCENT, RMSE)] == ["50.0% [25.0, 75.0]", "0.5 [0.25, 0.75]"]
    assert [scale.number(None) for scale in (PERCENT, RMSE)] == ["–", "–"]
    assert [scale.number(math.nan) for scale in (PERCENT, RMSE)] == ["NaN", "NaN"]


def test_best_score_depends_on_the_direction() -> None:
    assert (PERCENT.best_of([0.1, 0.7, 0.4]), RMSE.best_of([0.1, 0.7, 0.4]), RMSE.best_of([])) == (0.7, 0.1, None)
    assert RMSE.is_better(0.1, 0.2)
    assert R2.is_better(0.2, 0.1)


def test_plain_fraction_is_rewarded_as_it_is_and_others_by_their_skill() -> None:
    assert (PERCENT.fraction(0.3, 0.1), PERCENT.share(0.3, 0.1)) == (0.3, 0.3)
    assert [RMSE.fraction(score, 2.0) for score in (5.0, 2.0, 1.0, 0.0)] == [0.0, 0.0, 0.5, 1.0]
    assert RMSE.share(0.5, 2.0) == 0.25  # a gain of 0.5 of the 2.0 between chance and the best value
    assert ERROR_RATE.fraction(0.1, 0.9) == pytest.approx(8 / 9)
    assert RMSE.skill(100.0, 2.0) == -1.0  # of an untrained network
    assert math.isnan(RMSE.fraction(math.nan, 2.0))


@given(SCORES, SCORES, st.floats(0.5, 1e3))
def test_better_scores_have_no_smaller_fraction(one: float, other: float, chance: float) -> None:
    for scale in (RMSE, R2):
        better, worse = (one, other) if scale.is_better(one, other) else (other, one)
        limit = chance if scale is RMSE else -chance
        assert 0 <= scale.fraction(worse, limit) <= scale.fraction(better, limit) <= 1


def test_score_without_a_best_value_has_no_skill() -> None:
    with pytest.raises(ValueError, match="has no limit"):
        ScoreScale(high=None).fraction(1.0, 0.0)


def test_runs_of_different_scales_have_a_common_one_without_unit() -> None:
    assert common_scale([RMSE, RMSE]) == RMSE
    assert common_scale([RMSE, PERCENT]).text(12.5) == "12.5"
