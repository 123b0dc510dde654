"""A chart with its axes, as lines of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from esper.sanctum.theme import Palette
from esper.sanctum.widgets.panel import Line
from esper.text_plot import Axis, align_ticks, band_by_column, draw_curve, overlay

Y_AXIS_COLUMNS = 5
"""Columns that the labels of the y axis take."""
_MIN_TICK_COLUMNS = 10
_STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000)
"""Between the labels of the x axis: columns at least, and values."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One curve or several, with an optional band around the first."""

    values: Sequence[float | None]
    x_length: int
    """Number of values that fill the x axis."""
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    """Values of the y axis, with their labels."""
    first: int = 1
    """What the first value is called on the x axis."""
    stride: int = 1
    """What lies between two values on the x axis."""
    role: str = "curve"
    """Of the style of the curve."""
    extra_curves: Sequence[tuple[Sequence[float | None], str]] = ()
    """Further curves, each with its role; where two meet, the earlier one has the colour."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Least and greatest values around the curve."""
    exact_axis: bool = False
    """Something else is drawn beside the axis, from its foot to its top: it ends at `high`."""

    def lines(self, palette: Palette, width: int, height: int) -> list[Line]:
        """The chart: `height` lines of `width` columns, the last one the x axis."""
        plot_width, plot_height = width - Y_AXIS_COLUMNS - 2, height - 1
        if plot_width < 8 or plot_height < 2:
            return []
        curves = [(self.values, self.role), *self.extra_curves]
        axis = self._axis(plot_height)
        layers = [
            draw_curve(values, self.x_length, axis.low, axis.high, plot_width, plot_height) for values, _ in curves
        ]
        roles = [role for _, role in curves]
        labels = {_row(axis, value, plot_height): label for value, label in axis.ticks}
        band = self._band_rows(plot_width, plot_height)
        lines: list[Line] = []
        for y, row in enumerate(overlay(layers)):
            line = Line(palette)
            line.append(labels.get(y, "").rjust(Y_AXIS_COLUMNS), "dim").append(" ┤" if y in labels else " │", "faint")
            _paint(line, row, roles, band[y])
            lines.append(line)
        return [*lines, self._x_axis(palette, plot_width)]

    def row(self, value: float, height: int) -> int:
        """Which of `lines(…, height)` a value of the y axis falls on."""
        return _row(self._axis(height - 1), value, height - 1)

    def _axis(self, rows: int) -> Axis:
        """The y axis of so many rows."""
        axis = Axis(self.low, self.high, self.ticks)
        return axis if self.exact_axis else align_ticks(axis, rows)

    def _band_rows(self, width: int, height: int) -> list[list[bool]]:
        rows = [[False] * width for _ in range(height)]
        if self.band is not None:
            axis = self._axis(height)
            for x, spread in enumerate(band_by_column(*self.band, self.x_length, width)):
                if spread is not None:
                    for y in range(_row(axis, spread[1], height), _row(axis, spread[0], height) + 1):
                        rows[y][x] = True
        return rows

    def _x_axis(self, palette: Palette, width: int) -> Line:
        """Labels below the plot: the first value, round numbers about every ten columns, the last value."""
        line = Line(palette)
        span = self.x_length * self.stride
        step = next((size for size in _STEPS if size * width >= _MIN_TICK_COLUMNS * span), span)
        last = self.first + (self.x_length - 1) * self.stride
        between = (value for value in range(self.first + 1, last) if value % step == 0)
        ticks = [self.first, *(value for value in between if 2 * min(value - self.first, last - value) >= step), last]
        for value in ticks:
            label = str(value)
            at = (
                Y_AXIS_COLUMNS
                + 2
                + round((value - self.first) / max(last - self.first, 1) * (width - 1))
                - len(label) // 2
            )
            column = min(at, Y_AXIS_COLUMNS + 2 + width - len(label))
            room = width + Y_AXIS_COLUMNS + 2 if value == last else width + Y_AXIS_COLUMNS - 1 - len(str(last))
            if column > line.width and column + len(label) <= room:
                line.pad_to(column).append(label, "dim")
        return line


def _row(axis: Axis, value: float, rows: int) -> int:
    """Which of so many rows a value falls on, counted from the top."""
    share = (min(max(value, axis.low), axis.high) - axis.low) / (axis.high - axis.low)
    return rows - 1 - round(share * (rows * 4 - 1)) // 4


def _paint(line: Line, row: list[tuple[str, int]], roles: Sequence[str], band: list[bool]) -> None:
    """Append one row of the plot: the curves, and the band where there is none."""
    cells = [
        (roles[owner], character) if owner >= 0 else ("band", "░") if shade else ("normal", " ")
        for (character, owner), shade in zip(row, band, strict=True)
    ]
    for role, run in groupby(cells, key=itemgetter(0)):
        line.append("".join([character for _, character in run]), role)


class Label(NamedTuple):
    """A text that wants to stand on a row."""

    row: int
    text: str
    role: str


def labels_width(labels: Sequence[Label], rows: int) -> int:
    """Columns that the labels take beside `rows` rows, with a space before each."""
    columns = -(-len(labels) // max(rows, 1))
    return columns * (max((len(label.text) for label in labels), default=0) + 1)


def place_labels(lines: Sequence[Line], labels: Sequence[Label], column: int) -> None:
    """Write each label at the end of its row, or near it where others stand there; in their order, from `column` on."""
    if not lines or not labels:
        return
    each = -(-len(labels) // len(lines))
    ordered = sorted(labels, key=lambda label: label.row)
    groups = [ordered[first : first + each] for first in range(0, len(ordered), each)]
    width = max(len(label.text) for label in labels) + 1
    for row, group in zip(spread_rows([group[0].row for group in groups], len(lines)), groups, strict=True):
        for place, label in enumerate(group):
            lines[row].pad_to(column + place * width + 1).append(label.text, label.role)


def spread_rows(wanted: Sequence[int], rows: int) -> list[int]:
    """A row of its own for each of the rising rows wanted, as near as the order allows; there are enough of them."""
    # First row and height of each block of those that touch; it lies around the middle of what they want.
    blocks: list[tuple[float, int]] = []
    for row in wanted:
        start, count = float(row), 1
        while blocks and sum(blocks[-1]) > start:
            above, more = blocks.pop()
            start = (above * more + (start - more) * count) / (more + count)
            count += more
            start = min(max(start, 0.0), float(rows - count))
        blocks.append((start, count))
    placed = [round(start) + place for start, count in blocks for place in range(count)]
    for index, row in enumerate(placed):  # rounding may have let two blocks touch
        placed[index] = max(row, placed[index - 1] + 1) if index else row
    return [min(row, rows - len(placed) + index) for index, row in enumerate(placed)]
