"""Confidence intervals of means and fractions: over one sample, and over training seeds and episodes together.

An interval holds for its own mean. Conclusions from several means at once need a correction: `differ_from_zero` and
`differ_from_best` have it. Simulated coverage: `tests/common/test_intervals.py`. Simulated error rates:
`tests/studies/evaluation/test_comparison.py` and `tests/studies/sweeps/test_results.py`.

Shapes: N values, S training seeds, E episodes, M means, K settings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from numpy.typing import NDArray

Matrix: TypeAlias = "Sequence[Sequence[float]] | NDArray[Any]"
"""Rows of equally many numbers."""
CONFIDENCE_LEVEL = 0.95
"""Level of every interval."""


class IntervalEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its interval, of level `CONFIDENCE_LEVEL` unless another one is named."""

    mean: float
    """Mean, or fraction."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""

    @property
    def excludes_zero(self) -> bool:
        """True if the whole interval is above 0, or below."""
        return self.low > 0 or self.high < 0

    def clip(self, low: float, high: float) -> IntervalEstimate:
        """Return the interval without the values that the quantity cannot have: below `low`, and above `high`."""
        return IntervalEstimate(mean=self.mean, low=max(self.low, low), high=min(self.high, high))

    @property
    def signed(self) -> str:
        """Mean and interval with their signs, in three decimals."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


class SampleMean(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean of independent values, with its t interval if there are two or more."""

    n: int
    """Number of values."""
    mean: float
    """Their mean."""
    low: float | None = None
    """Lower bound of the interval; absent for a single value."""
    high: float | None = None
    """Upper bound of the interval; absent for a single value."""

    @classmethod
    def of(cls, value_N: Sequence[float]) -> SampleMean:
        """Return the mean of one or more values."""
        interval = t_interval(value_N) if len(value_N) > 1 else None
        return cls(
            n=len(value_N),
            mean=statistics.fmean(value_N),
            low=interval.low if interval else None,
            high=interval.high if interval else None,
        )

    @property
    def signed(self) -> str:
        """Mean and interval with their signs, in three decimals."""
        if self.low is None or self.high is None:
            return f"{self.mean:+.3f}"
        return IntervalEstimate(mean=self.mean, low=self.low, high=self.high).signed


def t_interval(value_N: Sequence[float], level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    """Return the mean of independent values with its t interval (Student, 1908).

    Args:
        value_N: Two or more values, because one value has no measurable spread.
        level: Confidence level, 0 to 1.
    """
    if len(value_N) < 2:
        raise ValueError(f"an interval needs at least two values, got {len(value_N)}")
    half_width = t_quantile(len(value_N), level) * statistics.stdev(value_N) / math.sqrt(len(value_N))
    return _around(statistics.fmean(value_N), half_width)


def crossed_interval(value_SE: Matrix, level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    """Return the mean of all values with its interval, if every training seed played the same episodes.

    A draw of episodes shifts the values of all training seeds together, so the spread of their means does not show it.
    The half-widths of the t intervals over the seeds' means and over the episodes' means are therefore added in
    quadrature. Each contains the variance of single values. The second one is computed without it, by the mean squares
    of an analysis of variance with two random factors, so that it counts once.

    The seeds may also be hosts, and the episodes the samples on which all of them are scored.

    Args:
        value_SE: Values of two or more training seeds, in two or more episodes each.
        level: Confidence level, 0 to 1.
    """
    import numpy as np

    values = np.asarray(value_SE, dtype=np.float64)
    seeds, episodes = values.shape
    if seeds < 2 or episodes < 2:
        raise ValueError(f"an interval needs at least two values, got {min(seeds, episodes)}")
    mean_S, mean_E, mean = values.mean(1), values.mean(0), values.mean()
    of_seeds = episodes * float(mean_S.var(ddof=1))
    of_episodes = seeds * float(mean_E.var(ddof=1))
    residual_SE = values - mean_S[:, None] - mean_E + mean
    of_values = float(np.square(residual_SE).sum()) / ((seeds - 1) * (episodes - 1))
    half_width = math.hypot(
        t_quantile(seeds, level) * math.sqrt(of_seeds / values.size),
        t_quantile(episodes, level) * math.sqrt(max(of_episodes - of_values, 0.0) / values.size),
    )
    return _around(float(mean), half_width)


def seeds_interval(value_SE: Sequence[Sequence[float]], level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    """Return the interval over the training seeds and their episodes, or over the episodes of the only one.

    Args:
        value_SE: Values of one or more training seeds, in two or more episodes each.
        level: Confidence level, 0 to 1.
    """
    return t_interval(value_SE[0], level) if len(value_SE) == 1 else crossed_interval(value_SE, level)


def differ_from_zero(value_MSE: Sequence[Sequence[Sequence[float]]]) -> list[bool]:
    """Return which of several means differ from 0, with one error rate for all of them (Holm, 1979).

    The probability that any mean of 0 is called different is at most 1 − `CONFIDENCE_LEVEL`, also if the means depend
    on each other. Each is tested by its `seeds_interval`, at a level that is corrected for the means not yet found
    different.

    Args:
        value_MSE: Values of each mean, of one or more training seeds, in two or more episodes each.
    """
    differs_M = [False] * len(value_MSE)
    while remaining := differs_M.count(False):
        corrected = joint_level(remaining)
        now_M = [
            differs or seeds_interval(value_SE, corrected).excludes_zero
            for differs, value_SE in zip(differs_M, value_MSE, strict=True)
        ]
        if now_M == differs_M:
            break
        differs_M = now_M
    return differs_M


def differ_from_best(value_KN: Sequence[Sequence[float]]) -> list[bool]:
    """Return for each setting but the first whether it differs from the first, which has the best mean of all.

    The same values choose the best setting, so its largest difference is the range of all means. The limit is
    therefore that of the range (Tukey, 1953). Dunnett's limit is for a setting that was chosen before. A difference
    must exceed the limit twice: with the noise pooled over all settings, and with that of the two settings alone (Games
    and Howell, 1976), because a setting with more noise than the others would otherwise seem different too often. If
    all settings are equal, the probability that any is called different is at most 1 − `CONFIDENCE_LEVEL`, in
    simulations also with unequal noise.

    Args:
        value_KN: Values of two or more settings with the same two or more random seeds; the best setting is the first.
    """
    best_N, *others = value_KN
    number, degrees = len(best_N), len(best_N) - 1
    mean_N = [statistics.fmean(value_K) for value_K in zip(*value_KN, strict=True)]
    # A random seed shifts the values of all settings together, which is no noise of a difference.
    centred_KN = [[value - mean for value, mean in zip(value_N, mean_N, strict=True)] for value_N in value_KN]
    variance = sum(map(statistics.variance, centred_KN)) / len(others)
    of_all = _range_limit(len(value_KN), degrees * len(others)) * math.sqrt(2 * variance / number)
    of_pair = _range_limit(len(value_KN), degrees)
    differs: list[bool] = []
    for value_N in others:
        difference_N = [value - of_best for value, of_best in zip(value_N, best_N, strict=True)]
        error = statistics.stdev(difference_N) / math.sqrt(number)
        differs.append(abs(statistics.fmean(difference_N)) > max(of_all, of_pair * error))
    return differs


def joint_level(count: int, level: float = CONFIDENCE_LEVEL) -> float:
    """Return the level of each of several intervals that contain all true values at once (Bonferroni).

    Args:
        count: Number of intervals, 1 or more.
        level: Probability that all of them contain their true value, 0 to 1.
    """
    return 1 - (1 - level) / count


def ratio_interval(total_SE: Sequence[Sequence[float]], count_SE: Sequence[Sequence[int]]) -> IntervalEstimate:
    """Return the ratio of two sums, such as the mean of items that several episodes have, with its interval.

    The items of one episode need not be independent: the interval is that of the linear approximation of the ratio,
    which has one value for each episode (Cochran, 1977, "Sampling techniques", section 6.4).

    Args:
        total_SE: Sum over the items of each episode, by training seed.
        count_SE: Number of items. Two or more episodes have an item.
    """
    counted = _with_items(count_SE)
    count = sum(map(sum, count_SE))
    ratio = sum(map(sum, total_SE)) / count
    weight = len(count_SE) * len(counted) / count
    return seeds_interval(
        [
            [ratio + weight * (total_E[episode] - ratio * count_E[episode]) for episode in counted]
            for total_E, count_E in zip(total_SE, count_SE, strict=True)
        ]
    )


def fraction_interval(hit_SE: Sequence[Sequence[int]], count_SE: Sequence[Sequence[int]]) -> IntervalEstimate:
    """Return the fraction of items that are hits, with its interval, which stays between 0 and 1.

    It is the interval of Wilson (1927) for an effective number of independent items. This number has the variance of
    `ratio_interval`, and is at most the actual one (Korn and Graubard, 1998, with the interval of Clopper and Pearson).
    If all items are hits, or none is, no variance can be measured: the items of an episode then count as one.

    Args:
        hit_SE: Number of hits in each episode, by training seed.
        count_SE: Number of items. Two or more episodes have an item.
    """
    hits, count = sum(map(sum, hit_SE)), sum(map(sum, count_SE))
    fraction, z = hits / count, statistics.NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2)
    number = float(count)
    if hits in (0, count):
        number = len(_with_items(count_SE))
    elif half_width := ratio_interval(hit_SE, count_SE).high - fraction:
        number = min(number, z**2 * fraction * (1 - fraction) / half_width**2)
    centre = (fraction + z**2 / (2 * number)) / (1 + z**2 / number)
    spread = fraction * (1 - fraction) / number + z**2 / (4 * number**2)
    half_width = z * math.sqrt(spread) / (1 + z**2 / number)
    return IntervalEstimate(mean=fraction, low=centre - half_width, high=centre + half_width).clip(0.0, 1.0)


def _with_items(count_SE: Sequence[Sequence[int]]) -> list[int]:
    """Return the indices of the episodes that have an item with any training seed."""
    return [episode for episode, count_S in enumerate(zip(*count_SE, strict=True)) if any(count_S)]


@lru_cache(1024)
def t_quantile(count: int, level: float = CONFIDENCE_LEVEL) -> float:
    """Return the half-width of the t interval of a mean, in standard errors.

    Args:
        count: Number of independent values, 2 or more.
        level: Confidence level, 0 to 1.
    """
    # The import of scipy.stats, which has the same function, takes a second.
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    return float(stdtrit(count - 1, (1 + level) / 2))


@lru_cache(256)
def _range_limit(groups: int, degrees: int) -> float:
    """Return the limit that the range of equal means exceeds with probability 1 − `CONFIDENCE_LEVEL`.

    It is in standard errors of a difference.

    Args:
        groups: Number of means, 2 or more.
        degrees: Degrees of freedom of the standard error.
    """
    from scipy.stats import studentized_range  # pyright: ignore[reportMissingTypeStubs]

    limit: Any = studentized_range.ppf(CONFIDENCE_LEVEL, groups, degrees)  # pyright: ignore[reportUnknownMemberType]
    return float(limit) / math.sqrt(2)


def _around(mean: float, half_width: float) -> IntervalEstimate:
    return IntervalEstimate(mean=mean, low=mean - half_width, high=mean + half_width)
