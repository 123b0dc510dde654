"""Axes with round ends, their ticks and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_MAX_LINEAR_RATIO = 4.0
"""Ratio of the ends of an axis of multiples up to which its labels have equal differences."""
_MAX_DENSE_RATIO = 10.0
"""The same up to which it has more labels than 1, 2 and 5 times each power of ten."""
_MIN_RATIO = 1.05
"""Minimum ratio of the ends of an axis of multiples."""
MAX_DECADES = 4
"""Maximum number of decades of a logarithmic axis; smaller values are drawn at its lower end."""


def finite_range(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the minimum and maximum of the finite values; None if no value is finite."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


class Axis(NamedTuple):
    """The y axis of a chart."""

    low: float
    """Value at the bottom."""
    high: float
    """Value at the top."""
    ticks: Sequence[tuple[float, str]]
    """Labelled values with their labels, lowest first."""


def linear_axis(
    values: Sequence[float | None],
    height: int,
    *,
    include: float | None = None,
    limits: tuple[float | None, float | None] = (None, None),
) -> Axis:
    """Return an axis from one round number to another that contains all finite values.

    Because its ends are rounded, the axis stays the same while the values change little.

    Args:
        height: Number of lines of the plot.
        include: Value that the axis must contain: 0 for a metric that cannot be negative; None for no such value.
        limits: Minimum and maximum possible value, beyond which the axis does not extend; None for no limit.
    """
    low, high = finite_range([*values, include]) or finite_range(limits) or (0.0, 1.0)
    if low == high:
        low, high = (low, low + 1) if low == include else (low - abs(low) / 2, high + abs(high) / 2)
    step = next_nice((high - low) / min(max(height // 3, 1), 5))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    bottom, top = first * step, last * step
    if limits[0] is not None:
        bottom = max(bottom, limits[0])
    if limits[1] is not None:
        top = min(top, limits[1])
    within = [index * step for index in range(first, last + 1) if bottom - 1e-9 <= index * step <= top + 1e-9]
    return Axis(bottom, max(top, bottom + step * 1e-6), label_ticks(within))


def log_axis(values: Sequence[float | None]) -> Axis:
    """Return an axis for the base-10 logarithms of positive values; both ends are 1, 2 or 5 times a power of ten."""
    low, high = finite_range([value for value in values if value is not None and value > 0]) or (0.1, 1.0)
    top = next_nice(high)
    bottom = min(max(previous_nice(low), top / 10.0**MAX_DECADES), top / 2)
    ticks = label_ticks(_log_ticks(bottom, top, (1,) if top / bottom > 50 else (1, 2, 5)))
    return Axis(math.log10(bottom), math.log10(top), [(math.log10(value), label) for value, label in ticks])


def _log_ticks(bottom: float, top: float, multiples: Sequence[float]) -> list[float]:
    """Return the values on a logarithmic axis that are one of the multiples of a power of ten."""
    powers = range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
    candidates = [multiple * 10.0**power for power in powers for multiple in multiples]
    return [value for value in candidates if bottom * 0.999 <= value <= top * 1.001]


def multiples_axis(values: Sequence[float], height: int) -> Axis:
    """Return an axis for the base-10 logarithms of multiples of 1, with labels such as `×1.5`.

    Args:
        values: One or more values above 0.
        height: Length of the plot in lines of a vertical axis.
    """
    low, high = min(values), max(values)
    if high > _MAX_LINEAR_RATIO * low:
        axis = log_axis(values)
        ticks = axis.ticks
        if high <= _MAX_DENSE_RATIO * low:
            dense = label_ticks(_log_ticks(10**axis.low, 10**axis.high, (1, 1.5, 2, 3, 4, 5, 7)))
            ticks = [(math.log10(value), label) for value, label in dense]
        return Axis(min(axis.low, math.log10(low)), axis.high, [(value, f"×{label}") for value, label in ticks])
    axis = linear_axis([low, max(high, _MIN_RATIO * low)], height)
    bottom = axis.low if axis.low > 0 else low
    return Axis(
        math.log10(bottom),
        math.log10(axis.high),
        [(math.log10(value), f"×{label}") for value, label in axis.ticks if value >= bottom],
    )


def label_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Pair the tick values of an axis with their labels; either all labels have a zero before the point or none."""
    digits = next((digits for digits in (3, 4) if _has_distinct_labels(values, digits)), 3)
    labels = [format_tick(value, digits) for value in values]
    if any(label.lstrip("−").startswith(".") for label in labels):
        labels = [label.replace("0.", ".", 1) if abs(value) < 1 else label
                  for value, label in zip(values, labels, strict=True)]  # fmt: skip
    return list(zip(values, labels, strict=True))


def _has_distinct_labels(values: Sequence[float], digits: int) -> bool:
    return len({format_tick(value, digits) for value in values}) == len(values)


def format_tick(value: float, digits: int = 3) -> str:
    """Format a tick value in at most five characters. The zero before the point is omitted if it does not fit.

    Args:
        digits: Maximum number of significant digits.
    """
    text = f"{value:.{digits}g}"
    if len(text) > 5 and "e" not in text:
        text = text.replace("0.", ".", 1)
    if len(text) > 5 or "e" in text:
        mantissa, _, exponent = f"{value:.0e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return "0" if value == 0 else text.replace("-", "−")


def round_axis_length(points: int, total: int) -> int:
    """Return the length of an axis of rounds: a round number, so that the axis is rarely rescaled.

    Args:
        points: Number of points known so far.
        total: Number of points at the end of the run.
    """
    rounded = next((size for size in (10, 25, 50, 100, 150, 200) if size >= points), points)
    return max(min(rounded, total), points)


def previous_nice(value: float) -> float:
    """Return the largest number that is 1, 2 or 5 times a power of ten and not above a positive value."""
    base = 10 ** math.floor(math.log10(value))
    return next(step * base for step in (5, 2, 1) if step * base <= value * (1 + 1e-9))


def next_nice(value: float) -> float:
    """Return the smallest number that is 1, 2 or 5 times a power of ten and not below a value; 1 if not positive."""
    if value <= 0:
        return 1.0
    base = 10 ** math.floor(math.log10(value))
    return next(step * base for step in (1, 2, 5, 10) if step * base >= value * (1 - 1e-9))
