"""Bootstrap intervals, checked against distributions with known intervals."""

from collections.abc import Sequence
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.evaluation.comparison import CONFIDENCE_LEVEL, IntervalEstimate, bootstrap_mean, paired_difference

samples = st.lists(st.floats(-1, 1), min_size=2, max_size=20)


def binomial_quantiles(n: int, p: float) -> tuple[float, float]:
    """Return the lower and upper quantile of a binomial distribution, each divided by n."""
    cumulative = np.cumsum([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
    tail = (1 - CONFIDENCE_LEVEL) / 2
    return tuple(int(np.searchsorted(cumulative, level)) / n for level in (tail, 1 - tail))  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(("hits", "n"), [(3, 10), (13, 20), (30, 64)])
def test_interval_of_hits_is_the_binomial_interval(hits: int, n: int) -> None:
    """The number of hits in a resample of n hits and misses is binomially distributed."""
    found = bootstrap_mean([1.0] * hits + [0.0] * (n - hits), seed=0)
    low, high = binomial_quantiles(n, hits / n)
    assert found.mean == pytest.approx(hits / n)
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)


def test_interval_of_many_values_is_nearly_normal() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, size=400)
    found = bootstrap_mean(values.tolist(), seed=0)
    half = 1.96 * values.std() / sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)


def test_interval_of_equal_values_has_zero_width() -> None:
    assert bootstrap_mean([0.25] * 5, seed=0) == IntervalEstimate(mean=0.25, low=0.25, high=0.25)


@given(samples)
def test_interval_lies_within_the_values(values: list[float]) -> None:
    found = bootstrap_mean(values, seed=0)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-9)


@given(samples)
def test_interval_with_same_seed_is_equal(values: list[float]) -> None:
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)


def test_interval_with_other_seed_differs() -> None:
    values = np.random.default_rng(1).normal(size=30).tolist()
    assert bootstrap_mean(values, seed=0) != bootstrap_mean(values, seed=1)


def test_paired_interval_cancels_shared_variation() -> None:
    shared = np.random.default_rng(2).normal(0.0, 10.0, size=50)
    first, second = (shared + 0.5).tolist(), shared.tolist()
    found = paired_difference(first, second, seed=0)
    assert found.mean == pytest.approx(0.5)
    assert found.low == pytest.approx(0.5)
    assert found.excludes_zero
    assert not paired_difference(first, second[::-1], seed=0).excludes_zero


@pytest.mark.parametrize(("low", "high", "decided"), [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False)])
def test_interval_on_one_side_of_zero_is_decisive(low: float, high: float, decided: bool) -> None:
    assert IntervalEstimate(mean=(low + high) / 2, low=low, high=high).excludes_zero is decided


@pytest.mark.parametrize("values", [[], [1.0]])
def test_interval_of_fewer_than_two_values_is_refused(values: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="at least two values"):
        bootstrap_mean(values, seed=0)


def test_unequal_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1.0, 2.0, 3.0], [1.0, 2.0], seed=0)
