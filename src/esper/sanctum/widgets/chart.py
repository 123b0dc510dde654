"""A chart with its axes, as lines of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esper.sanctum.theme import Palette
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.plot import column_spread, curve

AXIS = 5
"""Columns that the labels of the y axis take."""
_APART = 10
_STEPS = (1, 2, 5, 10, 20, 25, 50, 100)
"""Between the labels of the x axis: columns at least, and values."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One curve, with an optional band around it."""

    values: Sequence[float | None]
    extent: int
    """Number of values that fill the x axis."""
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    """Values of the y axis, with their labels."""
    first: int = 1
    """What the first value is called on the x axis."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Least and greatest values around the curve."""

    def lines(self, palette: Palette, width: int, height: int) -> list[Line]:
        """The chart: `height` lines of `width` columns, the last one the x axis."""
        plot_width, plot_height = width - AXIS - 2, height - 1
        if plot_width < 8 or plot_height < 2:
            return []
        rows = curve(self.values, self.extent, self.low, self.high, plot_width, plot_height)
        labels = {self._row(value, plot_height): label for value, label in self.ticks}
        band = self._band_rows(plot_width, plot_height)
        lines: list[Line] = []
        for y, row in enumerate(rows):
            line = Line(palette)
            line.add(labels.get(y, "").rjust(AXIS), "dim").add(" ┤" if y in labels else " │", "faint")
            _paint(line, row, band[y])
            lines.append(line)
        return [*lines, self._x_axis(palette, plot_width)]

    def _row(self, value: float, height: int) -> int:
        """Line of the plot, from the top, on which a value of the y axis falls."""
        dots = round((value - self.low) / (self.high - self.low) * (height * 4 - 1))
        return height - 1 - dots // 4

    def _band_rows(self, width: int, height: int) -> list[list[bool]]:
        rows = [[False] * width for _ in range(height)]
        if self.band is not None:
            for x, spread in enumerate(column_spread(*self.band, self.extent, width)):
                if spread is not None:
                    for y in range(self._row(spread[1], height), self._row(spread[0], height) + 1):
                        rows[y][x] = True
        return rows

    def _x_axis(self, palette: Palette, width: int) -> Line:
        """Labels below the plot: the first value, round numbers about every ten columns, the last value."""
        line = Line(palette)
        step = next((size for size in _STEPS if size * width >= _APART * self.extent), self.extent)
        last = self.first + self.extent - 1
        ticks = [self.first, *(value for value in range(self.first + 1, last) if value % step == 0), last]
        for value in ticks:
            label = str(value)
            at = AXIS + 2 + round((value - self.first) / max(self.extent - 1, 1) * (width - 1)) - len(label) // 2
            column = min(at, AXIS + 2 + width - len(label))
            room = width + AXIS + 2 if value == last else width + AXIS - 1 - len(str(last))
            if column > line.width and column + len(label) <= room:
                line.to(column).add(label, "dim")
        return line


def _paint(line: Line, row: str, band: list[bool]) -> None:
    """Append one row of the plot: the curve, and the band where there is no curve."""
    start = 0
    pairs = zip(row, band, strict=True)
    kinds = ["curve" if character != " " else "band" if shade else "" for character, shade in pairs]
    for x in range(1, len(row) + 1):
        if x == len(row) or kinds[x] != kinds[start]:
            kind = kinds[start]
            text = "░" * (x - start) if kind == "band" else row[start:x]
            line.add(text, kind or "normal")
            start = x
