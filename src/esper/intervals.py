"""Confidence intervals of means: over one sample, and over training seeds and episodes together.

Simulated coverage: `tests/test_intervals.py`.

Shapes: N values, S training seeds, E episodes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

import msgspec

CONFIDENCE_LEVEL = 0.95
"""Level of every interval."""


class IntervalEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its interval, of level `CONFIDENCE_LEVEL` unless another one is named."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if the whole interval is above 0, or below."""
        return self.low > 0 or self.high < 0

    def clip(self, low: float, high: float) -> IntervalEstimate:
        """Return the interval without the values that the quantity cannot have: below `low`, and above `high`."""
        return IntervalEstimate(mean=self.mean, low=max(self.low, low), high=min(self.high, high))

    @property
    def percent(self) -> str:
        """Mean and interval of a fraction in percent, in one decimal."""
        return f"{self.mean:.1%} [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    @property
    def signed(self) -> str:
        """Mean and interval with their signs, in three decimals."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def t_interval(value_N: Sequence[float], level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    """Return the mean of independent values with its t interval (Student, 1908).

    Args:
        value_N: Two or more values, because one value has no measurable spread.
        level: Confidence level, 0 to 1.
    """
    return _around(statistics.fmean(value_N) if value_N else math.nan, _half_width(value_N, level))


def crossed_interval(value_SE: Sequence[Sequence[float]]) -> IntervalEstimate:
    """Return the mean of all values with its interval, if every training seed played the same episodes.

    A draw of episodes shifts the values of all training seeds together, so the spread of their means does not show it.
    The half-widths of the t intervals over the seeds' means and over the episodes' means are therefore added in
    quadrature. Each contains the variance of single values, which is counted twice: the interval is slightly too wide.

    Args:
        value_SE: Values of two or more training seeds, in two or more episodes each.
    """
    mean_S = [statistics.fmean(value_E) for value_E in value_SE]
    mean_E = [statistics.fmean(value_S) for value_S in zip(*value_SE, strict=True)]
    return _around(statistics.fmean(mean_S), math.hypot(_half_width(mean_S), _half_width(mean_E)))


def seeds_interval(value_SE: Sequence[Sequence[float]]) -> IntervalEstimate:
    """Return the interval over the training seeds and their episodes, or over the episodes of the only one.

    Args:
        value_SE: Values of one or more training seeds, in two or more episodes each.
    """
    return t_interval(value_SE[0]) if len(value_SE) == 1 else crossed_interval(value_SE)


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


def _around(mean: float, half_width: float) -> IntervalEstimate:
    return IntervalEstimate(mean=mean, low=mean - half_width, high=mean + half_width)


def _half_width(value_N: Sequence[float], level: float = CONFIDENCE_LEVEL) -> float:
    """Return half the width of the t interval of the mean of independent values."""
    if len(value_N) < 2:
        raise ValueError(f"an interval needs at least two values, got {len(value_N)}")
    return t_quantile(len(value_N), level) * statistics.stdev(value_N) / math.sqrt(len(value_N))
