"""The scale of a score: its range, which end is better, and its values as text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from esper.common.formatting import format_compact, format_number
from esper.common.intervals import IntervalEstimate

_DIGITS = 4
"""Significant digits of a score that is not shown in percent."""
_SMALLEST_SPAN = 1e-3
"""Smallest distance between chance and the best value for which a skill is computed."""


class ScoreScale(msgspec.Struct, frozen=True):
    """The scale of a score. Fractions from 0 to 1 are shown in percent, other scores as they are."""

    best: Literal["high", "low"] = "high"
    """The better end of the range."""
    low: float | None = 0.0
    """Lowest possible value; absent without a limit."""
    high: float | None = 1.0
    """Highest possible value; absent without a limit."""

    @property
    def is_percent(self) -> bool:
        """True if values are shown in percent."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def is_plain(self) -> bool:
        """True for fractions where higher is better: they are rewarded as they are."""
        return self.is_percent and self.best == "high"

    @property
    def unit(self) -> str:
        """Unit of shown values: `%`, or empty."""
        return "%" if self.is_percent else ""

    @property
    def difference_unit(self) -> str:
        """Unit of shown differences: `pp` for percentage points, or empty."""
        return "pp" if self.is_percent else ""

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest possible value, −∞ and ∞ without a limit."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def number(self, value: float | None) -> str:
        """Return a value without its unit: `81.2` for 0.812 in percent, else up to four significant digits."""
        if not self.is_percent:
            return format_compact(value, _DIGITS)
        return format_number(None if value is None else 100 * value, ".1f")

    def text(self, value: float) -> str:
        """Return a value with its unit, such as `81.2%` or `0.412`."""
        return f"{self.number(value)}{self.unit}"

    def with_unit(self, text: str) -> str:
        """Return a number or a name, followed by a space and the unit: `81.2 %`, `accuracy %`, `0.412`."""
        return f"{text} {self.unit}".rstrip()

    def signed(self, difference: float) -> str:
        """Return a difference with its sign and without its unit, such as `+1.2` percentage points."""
        if self.is_percent:
            return format_number(100 * difference, "+.1f")
        return "+" * (difference > 0) + format_compact(difference, _DIGITS).replace("−", "-")

    def difference(self, difference: float) -> str:
        """Return a difference with sign and unit, such as `+1.2 pp` or `-0.031`."""
        return f"{self.signed(difference)} {self.difference_unit}".rstrip()

    def interval(self, estimate: IntervalEstimate, unit: str | None = None) -> str:
        """Return a mean and its interval, such as `81.2% [79.9, 82.5]`.

        Args:
            unit: Text after the mean; None for the unit.
        """
        unit = self.unit if unit is None else unit
        return f"{self.number(estimate.mean)}{unit} [{self.number(estimate.low)}, {self.number(estimate.high)}]"

    def signed_interval(self, estimate: IntervalEstimate) -> str:
        """Return the mean of a difference and its interval with their signs, without a unit."""
        return f"{self.signed(estimate.mean)} [{self.signed(estimate.low)}, {self.signed(estimate.high)}]"

    def interval_of_difference(self, estimate: IntervalEstimate) -> str:
        """Return the mean of a difference and its interval, in percentage points or in the unit of the score."""
        return self.signed_interval(estimate) + (" points" if self.is_percent else "")

    def gain(self, value: float) -> float:
        """Return a score or difference with the sign changed if lower is better, so that higher is better."""
        return value if self.best == "high" else -value

    def is_better(self, value: float, other: float) -> bool:
        """Return True if a score is better than another one."""
        return self.gain(value) > self.gain(other)

    def best_of(self, values: Iterable[float]) -> float | None:
        """Return the best of some scores; None without any."""
        return max(values, key=self.gain, default=None)

    def skill(self, score: float, chance: float) -> float:
        """Return where a score lies between chance, 0, and the best possible value, 1 (Murphy, 1988).

        It is at least −1 unless the score `is_plain`: the RMSE of an untrained network may be far worse than chance.

        Args:
            chance: Score of a constant output.
        """
        skill = self.gain(score - chance) / self._span(chance)
        return skill if self.is_plain else max(skill, -1.0)

    def fraction(self, score: float, chance: float) -> float:
        """Return the score that is rewarded: itself if it `is_plain`, else its skill, clipped to [0, 1]."""
        if self.is_plain or math.isnan(score):
            return score
        return min(max(self.skill(score, chance), 0.0), 1.0)

    def share(self, gain: float, chance: float) -> float:
        """Return a gain, which is positive for an improvement, in units of `fraction`."""
        return gain if self.is_plain else gain / self._span(chance)

    @property
    def best_possible(self) -> float | None:
        """The better end of the range; None if it has no limit, which a score of a task needs."""
        return self.high if self.best == "high" else self.low

    def _span(self, chance: float) -> float:
        limit = self.best_possible
        if limit is None:
            raise ValueError("the better end of the range of the score has no limit")
        return max(self.gain(limit - chance), _SMALLEST_SPAN)


def common_scale(scales: Iterable[ScoreScale]) -> ScoreScale:
    """Return the scale of several runs; if they differ, one without limits, whose values are shown as they are."""
    different = {*scales}
    return different.pop() if len(different) == 1 else ScoreScale(low=None, high=None)


PERCENT = ScoreScale()
"""The scale of fractions where higher is better, such as the accuracy."""
