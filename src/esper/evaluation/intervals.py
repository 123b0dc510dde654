"""Means with their bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over episodes, and the percentile bootstrap interval of level `LEVEL` around it (Efron, 1979)."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float], seed: int) -> Estimate:
    """The mean of independent values.

    Args:
        values: two or more; of one, nothing can be said of its spread.
        seed: of the resampling.

    Raises:
        ValueError: there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs two values or more, not {len(values)}")
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(sample), size=(RESAMPLES, len(sample)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(sample[drawn].mean(axis=1), [tail, 1 - tail])
    return Estimate(mean=float(sample.mean()), low=float(low), high=float(high))


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int) -> Estimate:
    """The mean of `first` − `second`, pair by pair: what the pairs share cancels out.

    Raises:
        ValueError: they are not of one length, or there are fewer than two pairs.
    """
    return estimate([a - b for a, b in zip(first, second, strict=True)], seed)
