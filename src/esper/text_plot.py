"""Curves and sparklines as text, in braille and block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

T = TypeVar("T")

BLOCK_CHARS = "▁▂▃▄▅▆▇█"
GAP = " "
NON_FINITE_CHAR = "×"
"""Stands in a sparkline for a value that is not finite."""

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille cell, by column and row."""


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """One character a value. None is a gap, a value that is not finite a cross."""
    return "".join([_block(value, low, high) for value in values])


@lru_cache(4096)
def _block(value: float | None, low: float, high: float) -> str:
    if value is None:
        return GAP
    if not math.isfinite(value):
        return NON_FINITE_CHAR
    scale = (len(BLOCK_CHARS) - 1) / (high - low) if high > low else 0.0
    return BLOCK_CHARS[min(max(round((value - low) * scale), 0), len(BLOCK_CHARS) - 1)]


def sample_to_width(values: Sequence[T], total: int, width: int) -> list[T | None]:
    """Spread the first of `total` values over `width` places, each place the last value of its share of the time.

    A place keeps its meaning while the values come in, so that nothing jumps.
    """
    known = len(values)
    return [values[min(last, known - 1)] if first < known else None for first, last in _shares(total, width)]


@lru_cache(64)
def _shares(total: int, width: int) -> list[tuple[int, int]]:
    """First and last index of the values that fall to each place; there may be no place at all."""
    starts = [place * total // max(width, 1) for place in range(width + 1)]
    return [(first, max(first, after - 1)) for first, after in pairwise(starts)]


class Canvas:
    """A grid of braille dots, two by four to a character."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[0] * width for _ in range(height)]

    def dot(self, x: int, y: int) -> None:
        """Set a dot; y counts from the bottom."""
        row = self.height * 4 - 1 - y
        self._cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]

    def vertical_line(self, x: int, y0: int, y1: int) -> None:
        """Set all dots of a column between two heights."""
        for y in range(min(y0, y1), max(y0, y1) + 1):
            self.dot(x, y)

    def lines(self) -> list[str]:
        """The characters, from the top; a cell without dots is a space."""
        blank = " " * self.width
        return [
            "".join([chr(_BRAILLE + cell) if cell else " " for cell in row]) if any(row) else blank
            for row in self._cells
        ]


def overlay(layers: Sequence[Sequence[str]]) -> list[list[tuple[str, int]]]:
    """Curves drawn one upon the other: for each cell the dots of all, and the number of the first that has any there.

    A cell without dots is a space, numbered -1.
    """
    rows: list[list[tuple[str, int]]] = []
    for cells in zip(*layers, strict=True):
        row: list[tuple[str, int]] = []
        drawn = [number for number, cell_row in enumerate(cells) if not cell_row.isspace()]
        if len(drawn) <= 1:  # as most rows are
            only = drawn[0] if drawn else -1
            rows.append([(cell, -1 if cell == " " else only) for cell in cells[max(only, 0)]])
            continue
        for stack in zip(*cells, strict=True):
            dots, owner = 0, -1
            for number, cell in enumerate(stack):
                if cell != " ":
                    dots |= ord(cell) - _BRAILLE
                    owner = number if owner < 0 else owner
            row.append((chr(_BRAILLE + dots) if dots else " ", owner))
        rows.append(row)
    return rows


def draw_curve(
    values: Sequence[float | None], extent: int, low: float, high: float, width: int, height: int
) -> list[str]:
    """A line through the values over an x axis `extent` values long. Nothing is drawn through a gap."""
    canvas = Canvas(width, height)
    right, top = width * 2 - 1, height * 4 - 1
    scale = top / (high - low) if high > low else 0.0
    before: tuple[int, int] | None = None
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            before = None
            continue
        x = round(index / max(extent - 1, 1) * right)
        y = round((min(max(value, low), high) - low) * scale)
        if before is None:
            canvas.dot(x, y)
        else:
            _connect(canvas, before, (x, y))
        before = (x, y)
    return canvas.lines()


def _connect(canvas: Canvas, start: tuple[int, int], end: tuple[int, int]) -> None:
    (x0, y0), (x1, y1) = start, end
    if x1 == x0:
        canvas.vertical_line(x0, y0, y1)
        return
    last = y0
    for x in range(x0 + 1, x1 + 1):
        y = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        canvas.vertical_line(x, last + (y > last) - (y < last), y)
        last = y


def band_by_column(
    lows: Sequence[float], highs: Sequence[float], extent: int, width: int
) -> list[tuple[float, float] | None]:
    """For each column of a chart, the least and greatest of what falls into it, carried on between the points."""
    spread: list[tuple[float, float] | None] = [None] * width
    last = len(lows) - 1
    for column in range(width):
        position = column / max(width - 1, 1) * max(extent - 1, 1)
        if last >= 0 and position <= last:
            index = round(position)
            spread[column] = (lows[index], highs[index])
    return spread


def finite_range(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Least and greatest finite value; None if there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


MIN_FILL_FRACTION = 0.69
"""Least share of its height that a curve is left, for the sake of more ticks."""
MAX_DECADES = 4
"""Most decades of a logarithmic axis: what is weaker lies on its foot."""


class Axis(NamedTuple):
    """The y axis of a chart: its ends, and labelled values in between."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]


def linear_axis(values: Sequence[float | None], height: int, *, least: float | None = None) -> Axis:
    """An axis of round numbers around the finite values, which stays as it is while they change little.

    Args:
        values: what is to be drawn.
        height: lines of the plot.
        least: a value that the axis is to show in any case, 0 for what cannot be negative.
    """
    low, high = finite_range([*values, least]) or (0.0, 1.0)
    if low == high:
        low, high = (low, low + 1) if low == least else (low - abs(low) / 2, high + abs(high) / 2)
    step = next_nice((high - low) / min(max(height // 3, 1), 5))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = label_ticks([index * step for index in range(first, last + 1)])
    return Axis(first * step, last * step, ticks)


def log_axis(values: Sequence[float | None]) -> Axis:
    """An axis for the logarithms of the positive values, from one of 1, 2, 5 times a power of ten to another."""
    least, greatest = finite_range([value for value in values if value]) or (0.1, 1.0)
    top = next_nice(greatest)
    bottom = min(max(previous_nice(least), top / 10.0**MAX_DECADES), top / 2)
    powers = range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
    marks = (1,) if top / bottom > 50 else (1, 2, 5)
    known = [mark * 10.0**power for power in powers for mark in marks]
    ticks = label_ticks([value for value in known if bottom * 0.999 <= value <= top * 1.001])
    return Axis(math.log10(bottom), math.log10(top), [(math.log10(value), label) for value, label in ticks])


def align_ticks(axis: Axis, rows: int) -> Axis:
    """The axis with a whole number of rows from tick to tick, or their labels would not be evenly spaced.

    For that it reaches somewhat higher, and where it is low it has fewer ticks. One of uneven ticks stays as it is.
    """
    steps = [after - before for (before, _), (after, _) in pairwise(axis.ticks)]
    span, dots = axis.high - axis.low, rows * 4 - 1
    if not steps or span <= 0 or max(steps) - min(steps) > span * 1e-6:
        return axis
    apart, every = 0, 1
    for every in (count for count in range(1, len(steps) + 1) if len(steps) % count == 0):
        apart = int(dots * steps[0] * every / (4 * span) + 1e-9)
        if apart >= 2 and apart * 4 * span >= MIN_FILL_FRACTION * dots * steps[0] * every:
            break
    if apart < 1:
        return axis
    return Axis(axis.low, axis.low + dots * steps[0] * every / (4 * apart), axis.ticks[::every])


def log10_clipped(values: Sequence[float | None], bottom: float) -> list[float | None]:
    """Decades of the positive values; what is not above `bottom` lies on it."""
    floor = math.log10(bottom)
    return [
        value if value is None or not math.isfinite(value) else math.log10(value) if value > bottom else floor
        for value in values
    ]


def label_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Values of an axis with their labels; the zero before the point stands in all of them or in none."""
    labels = [format_tick(value) for value in values]
    if any(label.lstrip("−").startswith(".") for label in labels):
        labels = [label.replace("0.", ".", 1) if abs(value) < 1 else label
                  for value, label in zip(values, labels, strict=True)]  # fmt: skip
    return list(zip(values, labels, strict=True))


def format_tick(value: float) -> str:
    """A number as an axis has it, in five columns at most: the zero before the point only where it has room."""
    text = f"{value:.3g}"
    if len(text) > 5 and "e" not in text:
        text = text.replace("0.", ".", 1)
    if len(text) > 5 or "e" in text:
        mantissa, _, exponent = f"{value:.0e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return "0" if value == 0 else text.replace("-", "−")


def round_axis_length(points: int, total: int) -> int:
    """Length of an axis of rounds: a round number of points, so that it is stretched only now and then."""
    nice = next((size for size in (10, 25, 50, 100, 150, 200) if size >= points), points)
    return max(min(nice, total), points)


def previous_nice(value: float) -> float:
    """The last of 1, 2, 5 times a power of ten that is not above a positive value."""
    base = 10 ** math.floor(math.log10(value))
    return next(step * base for step in (5, 2, 1) if step * base <= value * (1 + 1e-9))


def next_nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten: an axis that ends there changes seldom."""
    if value <= 0:
        return 1.0
    base = 10 ** math.floor(math.log10(value))
    return next(step * base for step in (1, 2, 5, 10) if step * base >= value * (1 - 1e-9))
