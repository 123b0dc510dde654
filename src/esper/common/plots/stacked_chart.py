"""Stacked areas: how a whole is divided at each position of the x axis."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby

from esper.common.plots.axis import Axis
from esper.common.plots.chart import Chart, Frame, Look
from esper.common.plots.grid import Span, TextLine, draw_y_axis
from esper.common.plots.labels import Label, place_labels
from esper.common.plots.sparkline import LEVEL_CHARS, NON_FINITE_CHAR

_FRACTION_COLS, _CHANGE_COLS = 5, 12
"""Columns of a fraction, and of two with an arrow between them, beside the name of an area."""
_LETTER_COLUMNS, _LETTER_ROWS = 4, 2
"""Distances of the letters within an area."""


@dataclass(frozen=True, kw_only=True)
class StackedChart(Chart):
    """One area per curve, the first at the bottom. The values of a position are fractions whose sum is 1.

    Where the values are None, nothing is drawn; where one is not finite, a mark is drawn at the bottom.
    """

    areas: Sequence[str] = ()
    """Role of each area, whose colour fills it. The labels have the roles of the curves."""
    has_changes: bool = False
    """True to write the first visible value beside the last one in the labels."""
    letters: Sequence[str] = ()
    """Letter of each area, repeated in it, because colour alone does not tell areas apart."""
    measured: StackedChart | None = None
    """The chart without the moving mean, whose values stand in the labels; None if nothing is smoothed."""

    def with_look(self, look: Look) -> Chart:
        """Return the chart as the user wants to see it. Its y axis is always linear."""
        return super().with_look(look._replace(is_logarithmic=False))

    def smoothed(self, num_points: int) -> Chart:
        """Return the chart with moving means as areas, and with the measured values in the labels."""
        smooth = super().smoothed(num_points)
        return smooth if smooth is self else replace(smooth, measured=self)

    def is_in_readout(self, value: float | None) -> bool:
        """Return True unless the fraction is 0, because there may be many areas."""
        return bool(value)

    def lines_in(self, frame: Frame) -> list[TextLine]:
        """Draw the chart; as `Chart.lines_in`."""
        points = [self._point_at(frame.x_at(column)) for column in range(frame.width)]
        cursor = None if self.look.cursor is None else frame.column(self.look.cursor)
        draw = lru_cache(AreaPainter(self.areas, self.letters).cell)
        labels = {frame.row(value): label for value, label in frame.axis.ticks}
        labels_of_areas = list((self.measured or self)._labels(frame))
        margins = place_labels(labels_of_areas[::-1], frame.height)  # the highest area comes first
        lines: list[TextLine] = []
        for y in range(frame.height):
            level = frame.height - 1 - y
            has_letter = y % _LETTER_ROWS == 0
            cells = [
                Span("│", "key")
                if column == cursor
                else draw(point, level, frame.height, has_letter and column % _LETTER_COLUMNS == 1)
                for column, point in enumerate(points)
            ]
            plot = [
                Span("".join(cell.text for cell in group), role, ground)
                for (role, ground), group in groupby(cells, lambda cell: (cell.role, cell.ground))
            ]
            lines.append([*draw_y_axis(labels.get(y)), *plot, *margins[y]])
        return [*lines, self.draw_x_axis(frame)]

    def _point_at(self, x: float) -> tuple[float, ...] | None:
        """Return the values of the point nearest to a position; None if there is none, or they were not measured."""
        xs = self.positions
        if not len(xs):
            return None
        index = bisect_left(xs, x)
        nearest = min((i for i in (index - 1, index) if 0 <= i < len(xs)), key=lambda i: abs(xs[i] - x))
        spacing = (xs[-1] - xs[0]) / (len(xs) - 1) if len(xs) > 1 else 1.0
        if abs(xs[nearest] - x) > spacing:
            return None
        values = [curve.value_at(xs[nearest]) for curve in self.curves]
        return None if all(value is None for value in values) else tuple(value or 0.0 for value in values)

    def _y_axis(self, window: tuple[float, float], rows: int) -> Axis:  # noqa: ARG002 (the axis is always the same)
        return Axis(0.0, 1.0, [(0.0, "0"), (0.5, "50"), (1.0, "100%")])

    def _labels(self, frame: Frame) -> Iterator[Label]:
        """Yield the name and the last visible value of each area, at its middle."""
        if not self.has_labels:
            return
        first, last = bisect_left(self.positions, frame.window[0]), bisect_right(self.positions, frame.window[1])
        xs = self.positions[first:last]
        measured = self._first_finite(reversed(xs)) or ()
        width = self._name_columns
        bottom = 0.0
        for curve, before, fraction in zip(self.curves, self._first_finite(xs) or (), measured, strict=False):
            text = f"{curve.label or curve.name:<{width}} "
            text += f"{before:>4.0%} → {fraction:>4.0%}" if self.has_changes else f"{fraction:>4.0%}"
            yield Label(frame.row(bottom + fraction / 2), text, curve.role)
            bottom += fraction

    def _first_finite(self, xs: Iterable[float]) -> tuple[float, ...] | None:
        """Return the first point of some positions whose values are finite; None if there is none."""
        points = filter(None, map(self._point_at, xs))
        return next((point for point in points if all(map(math.isfinite, point))), None)

    @property
    def _label_names(self) -> list[Label]:
        blank = " " * (self._name_columns + (_CHANGE_COLS if self.has_changes else _FRACTION_COLS))
        return [Label(0, blank, curve.role) for curve in self.curves]

    @property
    def _name_columns(self) -> int:
        return max((len(curve.label or curve.name) for curve in self.curves), default=0)


class AreaPainter:
    """Draws the cells of stacked areas.

    Args:
        areas: Role of each area.
        letters: Letter of each area.
    """

    def __init__(self, areas: Sequence[str], letters: Sequence[str]) -> None:
        self._areas, self._letters = areas, letters

    def cell(self, point: tuple[float, ...] | None, level: int, height: int, has_letter: bool) -> Span:
        """Draw a cell in the colours of its lowest and its highest area.

        Args:
            point: Fraction of each area; None if not measured.
            level: Row of the cell, counted from the bottom.
            height: Number of rows.
            has_letter: Write the letter of the area if the cell belongs to only one.
        """
        if point is None:
            return Span(" ")
        if not all(map(math.isfinite, point)):
            bottom = level == 0
            return Span(NON_FINITE_CHAR, "bad") if bottom else Span(" ")
        tops = list(accumulate(fraction * height * 8 for fraction in point))
        last = max(index for index, fraction in enumerate(point) if fraction > 0)
        owners = [min(bisect_right(tops, eighth + 0.5), last) for eighth in range(level * 8, level * 8 + 8)]
        lower, upper = owners[0], owners[-1]
        if lower == upper:
            return Span(self._letters[lower] if has_letter else " ", ground=self._areas[lower])
        return Span(LEVEL_CHARS[owners.count(lower)], self._areas[lower], self._areas[upper])
