"""Intervals of means, checked against closed forms and by simulated coverage."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.intervals import IntervalEstimate, crossed_interval, fraction_interval, ratio_interval, t_interval

samples = st.lists(st.floats(-1, 1), min_size=2, max_size=20)
Rng = np.random.Generator


@pytest.mark.parametrize(("n", "quantile"), [(2, 12.7062), (3, 4.30265), (5, 2.77645), (64, 1.99834)])
def test_interval_has_the_quantiles_of_students_table(n: int, quantile: float) -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, n).tolist()
    found = t_interval(values)
    half = quantile * statistics.stdev(values) / sqrt(n)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert (found.low, found.high) == (
        pytest.approx(found.mean - half, rel=1e-4),
        pytest.approx(found.mean + half, rel=1e-4),
    )


def test_interval_of_equal_values_has_zero_width() -> None:
    assert t_interval([0.25] * 5) == IntervalEstimate(mean=0.25, low=0.25, high=0.25)


@given(samples, st.floats(-5, 5), st.floats(0.1, 10))
def test_interval_moves_and_scales_with_the_values(values: list[float], shift: float, factor: float) -> None:
    found, moved = t_interval(values), t_interval([factor * value + shift for value in values])
    assert moved.low == pytest.approx(factor * found.low + shift, abs=1e-6)
    assert moved.high == pytest.approx(factor * found.high + shift, abs=1e-6)


@pytest.mark.parametrize(("low", "high", "decided"), [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False)])
def test_interval_on_one_side_of_zero_is_decisive(low: float, high: float, decided: bool) -> None:
    assert IntervalEstimate(mean=(low + high) / 2, low=low, high=high).excludes_zero is decided


@pytest.mark.parametrize("values", [[], [1.0]])
def test_interval_of_fewer_than_two_values_is_refused(values: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="at least two values"):
        t_interval(values)


def identical(rng: Rng) -> list[float]:
    """Differences of two identical policies on 64 episodes. Shared effects of the episodes have cancelled."""
    return rng.normal(0.0, 0.02, 64).tolist()


def rare_breakdowns(rng: Rng) -> list[float]:
    """The same, where each policy breaks down in one of twenty episodes, which costs as much as all that is gained."""
    broken = rng.random((2, 64)) < 0.05
    return (rng.normal(0.0, 0.02, 64) + broken[0] - broken[1]).tolist()


@pytest.mark.parametrize("draw", [identical, rare_breakdowns])
def test_intervals_cover_the_true_mean_as_often_as_they_say(draw: Callable[[Rng], list[float]]) -> None:
    """Percentile bootstrap intervals covered it in 90 % of the cases with rare breakdowns."""
    rng, trials = np.random.default_rng(0), 1500
    found = [t_interval(draw(rng)) for _ in range(trials)]
    covered = sum(not interval.excludes_zero for interval in found) / trials
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize(
    ("sd_seed", "sd_episode", "sd_value"),
    [(0.0, 0.03, 0.02), (0.005, 0.03, 0.02), (0.02, 0.0, 0.02), (0.02, 0.03, 0.0), (0.0, 0.0, 0.02)],
)
def test_crossed_intervals_cover_the_true_mean_about_as_often_as_they_say(
    sd_seed: float, sd_episode: float, sd_value: float
) -> None:
    """Five training seeds in the same 64 episodes. The t interval of the seeds' means covers it in 53 % at worst.

    With the variance of single values counted twice, 99.6 % of the intervals cover it where there is no other variance.
    """
    rng, trials = np.random.default_rng(0), 1000
    covered = 0
    for _ in range(trials):
        seeds, episodes = rng.normal(0.0, sd_seed, (5, 1)), rng.normal(0.0, sd_episode, 64)
        values = seeds + episodes + rng.normal(0.0, sd_value, (5, 64))
        covered += not crossed_interval(values.tolist()).excludes_zero
    assert 0.93 <= covered / trials <= 0.98


def test_crossed_interval_of_one_sample_is_its_t_interval() -> None:
    """Equal seeds, as of searches that find the same plan, leave the spread of the episodes, and vice versa."""
    values = [0.1, 0.3, 0.2, 0.6]
    expected = t_interval(values)
    for crossed in ([values] * 3, [[value] * 3 for value in values]):
        found = crossed_interval(crossed)
        assert (found.mean, found.low) == (pytest.approx(expected.mean), pytest.approx(expected.low))


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0], [2.0]]])
def test_crossed_interval_needs_two_of_each(values: Sequence[Sequence[float]]) -> None:
    with pytest.raises(ValueError, match="at least two values"):
        crossed_interval(values)


def test_fraction_of_independent_items_has_wilsons_interval() -> None:
    """41 of 60: the values of Wilson's formula, which a count of one item in each episode leaves as they are."""
    hits = [int(number < 41) for number in range(60)]
    found = fraction_interval([hits], [[1] * 60])
    assert (found.mean, found.low, found.high) == (
        pytest.approx(41 / 60),
        pytest.approx(0.5575, abs=0.004),  # the t quantile of 60 values is larger than 1.96
        pytest.approx(0.7873, abs=0.004),
    )
    for hit, bounds in ((0, (0.0, 0.2775)), (3, (0.7225, 1.0))):  # 10 episodes of three items each: 10 items
        found = fraction_interval([[hit] * 10], [[3] * 10])
        assert (found.low, found.high) == (pytest.approx(bounds[0], abs=1e-4), pytest.approx(bounds[1], abs=1e-4))
    assert fraction_interval([[3, 0, 0]], [[3, 3, 0]]) == fraction_interval([[3, 0]], [[3, 3]])


@pytest.mark.parametrize(("fraction", "seeds"), [(0.5, 1), (0.85, 1), (0.5, 3)])
def test_intervals_of_clustered_items_cover_the_true_values(fraction: float, seeds: int) -> None:
    """All items of half of the 24 episodes are alike: Wilson's interval of independent ones covers it in 60 to 80 %."""
    rng, trials = np.random.default_rng(0), 600
    in_fraction = in_mean = 0
    for _ in range(trials):
        count_SE = rng.integers(0, 6, (seeds, 24)).tolist()
        is_alike, is_hit = rng.random(24) < 0.5, rng.random(24) < fraction
        hit_SE = [
            [
                int(is_hit[episode]) * count if is_alike[episode] else int(rng.binomial(count, fraction))
                for episode, count in enumerate(count_E)
            ]
            for count_E in count_SE
        ]
        found, mean = fraction_interval(hit_SE, count_SE), ratio_interval(hit_SE, count_SE)
        in_fraction += found.low <= fraction <= found.high
        in_mean += mean.low <= fraction <= mean.high
    assert 0.9 <= in_fraction / trials <= 0.995
    assert 0.85 <= in_mean / trials <= 0.995
