"""Chart with axes, drawn as lines of a panel, and labels beside its curves."""

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
"""Width of the labels of the y axis, columns."""
MIN_PLOT_COLUMNS = 8
"""Minimum width of a plot; a narrower one is not drawn."""
MIN_PLOT_ROWS = 2
"""Minimum height of a plot; a lower one is not drawn."""
_MIN_TICK_COLUMNS = 10
"""Minimum distance of two labels of the x axis, columns."""
_X_TICK_STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000)
"""Possible differences between two labels of the x axis."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One or more curves, with an optional band around the first."""

    values: Sequence[float | None]
    """Values of the first curve; a gap at None."""
    x_length: int
    """Number of values that fill the x axis."""
    low: float
    """Value at the bottom of the y axis."""
    high: float
    """Value at the top of the y axis, or below it if `exact_axis` is False."""
    ticks: Sequence[tuple[float, str]]
    """Labelled values of the y axis, with their labels."""
    first: int = 1
    """Label of the first value on the x axis."""
    stride: int = 1
    """Difference between the labels of two consecutive values on the x axis."""
    role: str = "curve"
    """Role of the first curve."""
    extra_curves: Sequence[tuple[Sequence[float | None], str]] = ()
    """Further curves with their roles. A cell that several curves cross has the role of the first of them."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper bounds of the band; None for no band."""
    exact_axis: bool = False
    """If True, the y axis ends at `high`, because the caller draws something else over the whole height of the plot.

    If False, the axis may end above it, so that the ticks are evenly spaced.
    """

    def lines(self, palette: Palette, width: int, height: int) -> list[Line]:
        """Draw the chart: `height` lines of `width` columns; the last line is the x axis. Empty if it does not fit."""
        plot_width, plot_height = width - Y_AXIS_COLUMNS - 2, height - 1
        if plot_width < MIN_PLOT_COLUMNS or plot_height < MIN_PLOT_ROWS:
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
            _append_plot_row(line, row, roles, band[y])
            lines.append(line)
        return [*lines, self._x_axis(palette, plot_width)]

    def row(self, value: float, height: int) -> int:
        """Return the index of the line on which a value of the y axis is drawn if the chart has `height` lines."""
        return _row(self._axis(height - 1), value, height - 1)

    def _axis(self, rows: int) -> Axis:
        axis = Axis(self.low, self.high, self.ticks)
        return axis if self.exact_axis else align_ticks(axis, rows)

    def _band_rows(self, width: int, height: int) -> list[list[bool]]:
        rows = [[False] * width for _ in range(height)]
        if self.band is not None:
            axis = self._axis(height)
            for x, bounds in enumerate(band_by_column(*self.band, self.x_length, width)):
                if bounds is not None:
                    for y in range(_row(axis, bounds[1], height), _row(axis, bounds[0], height) + 1):
                        rows[y][x] = True
        return rows

    def _x_axis(self, palette: Palette, width: int) -> Line:
        """Draw the labels below the plot: first and last value, and round numbers between them."""
        line = Line(palette)
        plot_start = Y_AXIS_COLUMNS + 2
        span = self.x_length * self.stride
        step = next((size for size in _X_TICK_STEPS if size * width >= _MIN_TICK_COLUMNS * span), span)
        last = self.first + (self.x_length - 1) * self.stride
        between = (value for value in range(self.first + 1, last) if value % step == 0)
        ticks = [self.first, *(value for value in between if 2 * min(value - self.first, last - value) >= step), last]
        for value in ticks:
            label = str(value)
            centre = plot_start + round((value - self.first) / max(last - self.first, 1) * (width - 1))
            column = min(centre - len(label) // 2, plot_start + width - len(label))
            end = plot_start + width if value == last else plot_start + width - 3 - len(str(last))
            if column > line.width and column + len(label) <= end:
                line.pad_to(column).append(label, "dim")
        return line


class Label(NamedTuple):
    """Text beside a chart."""

    row: int
    """Preferred row."""
    text: str
    role: str


def labels_width(labels: Sequence[Label], rows: int) -> int:
    """Return the columns that labels need beside `rows` rows, including a space before each label."""
    columns = -(-len(labels) // max(rows, 1))
    return columns * (max((len(label.text) for label in labels), default=0) + 1)


def place_labels(lines: Sequence[Line], labels: Sequence[Label], column: int) -> None:
    """Append labels to lines, each on its preferred row, or on a row nearby if that one is occupied.

    Labels keep their order, and start after `column`. A line gets several only if there are fewer lines than labels.
    """
    if not lines or not labels:
        return
    per_line = -(-len(labels) // len(lines))
    ordered = sorted(labels, key=lambda label: label.row)
    groups = [ordered[first : first + per_line] for first in range(0, len(ordered), per_line)]
    width = max(len(label.text) for label in labels) + 1
    for row, group in zip(spread_rows([group[0].row for group in groups], len(lines)), groups, strict=True):
        for index, label in enumerate(group):
            lines[row].pad_to(column + index * width + 1).append(label.text, label.role)


def spread_rows(preferred: Sequence[int], rows: int) -> list[int]:
    """Assign a different row to each preferred row, as close to it as the order allows.

    Args:
        preferred: Preferred rows, in ascending order.
        rows: Number of rows, at least `len(preferred)`.
    """
    # Start and height of each block of adjacent rows. A block is centred on the mean of its preferred positions.
    blocks: list[tuple[float, int]] = []
    for row in preferred:
        start, count = float(row), 1
        while blocks and sum(blocks[-1]) > start:
            start_above, count_above = blocks.pop()
            start = (start_above * count_above + (start - count_above) * count) / (count_above + count)
            count += count_above
            start = min(max(start, 0.0), float(rows - count))
        blocks.append((start, count))
    assigned = [round(start) + offset for start, count in blocks for offset in range(count)]
    for index, row in enumerate(assigned):  # rounding may have made two blocks overlap
        assigned[index] = max(row, assigned[index - 1] + 1) if index else row
    return [min(row, rows - len(assigned) + index) for index, row in enumerate(assigned)]


def _row(axis: Axis, value: float, rows: int) -> int:
    """Return the row of a value in a plot of this many rows, counted from the top."""
    fraction = (min(max(value, axis.low), axis.high) - axis.low) / (axis.high - axis.low)
    return rows - 1 - round(fraction * (rows * 4 - 1)) // 4


def _append_plot_row(line: Line, cells: list[tuple[str, int]], roles: Sequence[str], band: list[bool]) -> None:
    """Append one row of the plot. A cell without a dot of a curve shows the band."""
    styled = [
        (roles[curve], character) if curve >= 0 else ("band", "░") if in_band else ("normal", " ")
        for (character, curve), in_band in zip(cells, band, strict=True)
    ]
    for role, group in groupby(styled, key=itemgetter(0)):
        line.append("".join([character for _, character in group]), role)
