"""Curves and sparklines as text, in braille and block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

T = TypeVar("T")

BLOCK_CHARS = "▁▂▃▄▅▆▇█"
"""Block characters of a sparkline, by height."""
NON_FINITE_CHAR = "×"
"""Character of a sparkline for an infinite value or NaN."""
MIN_FILL_FRACTION = 0.69
"""Minimum fraction of the plot's height that the original axis keeps when `align_ticks` extends it."""
MAX_DECADES = 4
"""Maximum number of decades of a logarithmic axis; smaller values are drawn at its lower end."""

_BRAILLE = 0x2800
"""Code point of the braille cell without dots."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille cell. Indexed by column, then row from the top."""


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """Return one character per value: a block, a space for None, or `NON_FINITE_CHAR`."""
    return "".join([_block(value, low, high) for value in values])


@lru_cache(4096)
def _block(value: float | None, low: float, high: float) -> str:
    if value is None:
        return " "
    if not math.isfinite(value):
        return NON_FINITE_CHAR
    scale = (len(BLOCK_CHARS) - 1) / (high - low) if high > low else 0.0
    return BLOCK_CHARS[min(max(round((value - low) * scale), 0), len(BLOCK_CHARS) - 1)]


def sample_to_width(values: Sequence[T], total: int, width: int) -> list[T | None]:
    """Sample values that are known so far at `width` columns; each column gets the last value of its interval.

    The intervals depend on `total` only, so that a column does not change when later values arrive.

    Args:
        values: The first values, at most `total`.
        total: Number of values when all are known.
        width: Number of columns; 0 returns an empty list.

    Returns:
        One value per column; None for columns whose interval has no value yet.
    """
    known = len(values)
    return [values[min(last, known - 1)] if first < known else None for first, last in _index_ranges(total, width)]


@lru_cache(64)
def _index_ranges(total: int, width: int) -> list[tuple[int, int]]:
    """Return the first and last index of the values of each column. Neighbours overlap if `width` exceeds `total`."""
    starts = [column * total // max(width, 1) for column in range(width + 1)]
    return [(first, max(first, after - 1)) for first, after in pairwise(starts)]


class Canvas:
    """Grid of braille dots; each character has two columns and four rows of dots.

    Args:
        width: Number of characters per line.
        height: Number of lines.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[0] * width for _ in range(height)]

    def dot(self, x: int, y: int) -> None:
        """Set a dot. Dots are counted from the bottom left."""
        row = self.height * 4 - 1 - y
        self._cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]

    def vertical_line(self, x: int, y0: int, y1: int) -> None:
        """Set all dots of a column from y0 to y1, both included."""
        for y in range(min(y0, y1), max(y0, y1) + 1):
            self.dot(x, y)

    def lines(self) -> list[str]:
        """Return the lines of characters, top to bottom; a cell without dots is a space."""
        blank = " " * self.width
        return [
            "".join([chr(_BRAILLE + cell) if cell else " " for cell in row]) if any(row) else blank
            for row in self._cells
        ]


def overlay(layers: Sequence[Sequence[str]]) -> list[list[tuple[str, int]]]:
    """Combine curves drawn on canvases of the same size.

    Args:
        layers: The lines of each curve, as `draw_curve` returns them.

    Returns:
        For each row a list of cells: the character with the dots of all layers, and the index of the first layer with
        a dot in this cell. A cell without dots is a space with index -1.
    """
    rows: list[list[tuple[str, int]]] = []
    for layer_rows in zip(*layers, strict=True):
        row: list[tuple[str, int]] = []
        drawn = [index for index, layer_row in enumerate(layer_rows) if not layer_row.isspace()]
        if len(drawn) <= 1:  # fast path: most rows have dots of at most one curve
            only = drawn[0] if drawn else -1
            rows.append([(cell, -1 if cell == " " else only) for cell in layer_rows[max(only, 0)]])
            continue
        for stack in zip(*layer_rows, strict=True):
            dots, owner = 0, -1
            for index, cell in enumerate(stack):
                if cell != " ":
                    dots |= ord(cell) - _BRAILLE
                    owner = index if owner < 0 else owner
            row.append((chr(_BRAILLE + dots) if dots else " ", owner))
        rows.append(row)
    return rows


def draw_curve(
    values: Sequence[float | None], x_length: int, low: float, high: float, width: int, height: int
) -> list[str]:
    """Draw a line through values; the line is interrupted at None and at values that are not finite.

    Args:
        values: The first values of the curve.
        x_length: Number of values that fill the x axis.
        low: Value at the bottom; lower values are drawn there.
        high: Value at the top; higher values are drawn there.
        width: Number of characters per line.
        height: Number of lines.

    Returns:
        Lines of braille characters and spaces, top to bottom.
    """
    canvas = Canvas(width, height)
    right, top = width * 2 - 1, height * 4 - 1
    scale = top / (high - low) if high > low else 0.0
    previous: tuple[int, int] | None = None
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            previous = None
            continue
        x = round(index / max(x_length - 1, 1) * right)
        y = round((min(max(value, low), high) - low) * scale)
        if previous is None:
            canvas.dot(x, y)
        else:
            _connect(canvas, previous, (x, y))
        previous = (x, y)
    return canvas.lines()


def _connect(canvas: Canvas, start: tuple[int, int], end: tuple[int, int]) -> None:
    (x0, y0), (x1, y1) = start, end
    if x1 == x0:
        canvas.vertical_line(x0, y0, y1)
        return
    previous_y = y0
    for x in range(x0 + 1, x1 + 1):
        y = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        canvas.vertical_line(x, previous_y + (y > previous_y) - (y < previous_y), y)
        previous_y = y


def band_by_column(
    lows: Sequence[float], highs: Sequence[float], x_length: int, width: int
) -> list[tuple[float, float] | None]:
    """Return lower and upper bound of a band at each column of a chart.

    Args:
        lows: Lower bounds, one per point.
        highs: Upper bounds, one per point.
        x_length: Number of points that fill the x axis.
        width: Number of columns.

    Returns:
        The bounds of the nearest point; None to the right of the last point.
    """
    band: list[tuple[float, float] | None] = [None] * width
    last = len(lows) - 1
    for column in range(width):
        position = column / max(width - 1, 1) * max(x_length - 1, 1)
        if last >= 0 and position <= last:
            index = round(position)
            band[column] = (lows[index], highs[index])
    return band


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


def linear_axis(values: Sequence[float | None], height: int, *, include: float | None = None) -> Axis:
    """Return an axis from one round number to another that contains all finite values.

    Because its ends are rounded, the axis stays the same while the values change little.

    Args:
        values: Values to draw.
        height: Number of lines of the plot.
        include: Value that the axis must contain: 0 for a metric that cannot be negative; None for no such value.
    """
    low, high = finite_range([*values, include]) or (0.0, 1.0)
    if low == high:
        low, high = (low, low + 1) if low == include else (low - abs(low) / 2, high + abs(high) / 2)
    step = next_nice((high - low) / min(max(height // 3, 1), 5))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = label_ticks([index * step for index in range(first, last + 1)])
    return Axis(first * step, last * step, ticks)


def log_axis(values: Sequence[float | None]) -> Axis:
    """Return an axis for the base-10 logarithms of positive values; both ends are 1, 2 or 5 times a power of ten."""
    low, high = finite_range([value for value in values if value]) or (0.1, 1.0)
    top = next_nice(high)
    bottom = min(max(previous_nice(low), top / 10.0**MAX_DECADES), top / 2)
    powers = range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
    multiples = (1,) if top / bottom > 50 else (1, 2, 5)
    candidates = [multiple * 10.0**power for power in powers for multiple in multiples]
    ticks = label_ticks([value for value in candidates if bottom * 0.999 <= value <= top * 1.001])
    return Axis(math.log10(bottom), math.log10(top), [(math.log10(value), label) for value, label in ticks])


def align_ticks(axis: Axis, rows: int) -> Axis:
    """Extend an axis upwards so that its ticks are a whole number of rows apart, because labels stand on rows.

    If there are too few rows for all ticks, every n-th tick is kept. An axis with uneven ticks is returned unchanged.
    """
    steps = [after - before for (before, _), (after, _) in pairwise(axis.ticks)]
    span, dots = axis.high - axis.low, rows * 4 - 1
    if not steps or span <= 0 or max(steps) - min(steps) > span * 1e-6:
        return axis
    rows_per_tick, stride = 0, 1
    for stride in (count for count in range(1, len(steps) + 1) if len(steps) % count == 0):
        rows_per_tick = int(dots * steps[0] * stride / (4 * span) + 1e-9)
        if rows_per_tick >= 2 and rows_per_tick * 4 * span >= MIN_FILL_FRACTION * dots * steps[0] * stride:
            break
    if rows_per_tick < 1:
        return axis
    return Axis(axis.low, axis.low + dots * steps[0] * stride / (4 * rows_per_tick), axis.ticks[::stride])


def log10_clipped(values: Sequence[float | None], bottom: float) -> list[float | None]:
    """Return base-10 logarithms. Values below `bottom` become its logarithm; None and non-finite values stay."""
    floor = math.log10(bottom)
    return [
        value if value is None or not math.isfinite(value) else math.log10(value) if value > bottom else floor
        for value in values
    ]


def label_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Pair the tick values of an axis with their labels; either all labels have a zero before the point or none."""
    labels = [format_tick(value) for value in values]
    if any(label.lstrip("−").startswith(".") for label in labels):
        labels = [label.replace("0.", ".", 1) if abs(value) < 1 else label
                  for value, label in zip(values, labels, strict=True)]  # fmt: skip
    return list(zip(values, labels, strict=True))


def format_tick(value: float) -> str:
    """Format a tick value in at most five characters. The zero before the point is omitted if it does not fit."""
    text = f"{value:.3g}"
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
