"""Cells of a plot in characters, and the lines of text that they make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from esper.common.plots.dots import Canvas, DotColumns

Y_AXIS_COLUMNS = 5
"""Width of the labels of the y axis, columns."""
_LETTER_DISTANCE_COLS = 12
"""Columns between two letters on a curve, unless there are more curves than that."""


class Span(NamedTuple):
    """A piece of a line with one style."""

    text: str
    role: str = "normal"
    """Role of the text; the dashboard gives each role a style."""
    ground: str = ""
    """Role whose colour fills the cells behind the text; empty for none."""


TextLine: TypeAlias = list[Span]
"""A line of a chart."""


class Grid:
    """Cells of a plot: a character and a role each.

    Args:
        canvas: Canvas with the dots.
        roles: Role of each layer of the canvas.
    """

    def __init__(self, canvas: Canvas, roles: Sequence[str]) -> None:
        names = [*roles, "normal"]  # layer -1 has no dots
        self._characters: list[list[str]] = []
        self._roles: list[list[str]] = []
        for text, layers in canvas.rows():
            self._characters.append(list(text))
            self._roles.append([names[layer] for layer in layers])

    def put(self, row: int, column: int, text: str, role: str) -> None:
        """Replace the characters of cells, without those outside of the plot."""
        for at, character in enumerate(text, column):
            if 0 <= at < len(self._characters[0]):
                self._characters[row][at], self._roles[row][at] = character, role

    def draw_cursor(self, column: int) -> None:
        """Draw a vertical line through the cells of a column without a dot."""
        for row, characters in enumerate(self._characters):
            if 0 <= column < len(characters) and characters[column] in " ░":
                self.put(row, column, "│", "key")

    def fill_band(self, low: DotColumns, high: DotColumns) -> None:
        """Fill the blank cells between two curves."""
        height = len(self._characters)
        tops = dict(zip(high.columns.tolist(), high.high.tolist(), strict=True))
        for column, bottom in zip(low.columns.tolist(), low.low.tolist(), strict=True):
            for row in range(height - 1 - tops.get(column, -4) // 4, height - bottom // 4):
                if row < height and self._characters[row][column // 2] == " ":
                    self.put(row, column // 2, "░", "band")

    def draw_letters(self, names: Sequence[tuple[str, str]], dots: Sequence[DotColumns]) -> None:
        """Write the names of curves on them, so that each curve has one, unless all of its cells have others.

        Args:
            names: Name and role of each curve.
            dots: Dots of each curve.
        """
        distance = max(_LETTER_DISTANCE_COLS, len(names))
        taken: set[tuple[int, int]] = set()
        for index, ((name, role), drawn) in enumerate(zip(names, dots, strict=False)):
            cells = self._cells_of(drawn)
            offset = index * distance // len(names)
            for start in range(offset % max(len(cells), 1), len(cells), distance):
                near = next((cell for cell in [*cells[start:], *cells[:start]] if cell not in taken), None)
                if near is not None:
                    taken.add(near)
                    self.put(*near, name, role)

    def _cells_of(self, dots: DotColumns) -> list[tuple[int, int]]:
        """Return row and column of the highest cell of a curve in each column."""
        height = len(self._characters)
        tops = {column // 2: dot for column, dot in zip(dots.columns.tolist(), dots.high.tolist(), strict=True)}
        return [(height - 1 - dot // 4, column) for column, dot in tops.items()]

    def line(self, row: int, label: str | None) -> TextLine:
        """Return a row after the y axis, with its label if it has one."""
        line = draw_y_axis(label)
        start, text = 0, "".join(self._characters[row])
        for role, group in groupby(self._roles[row]):
            end = start + len(list(group))
            line.append(Span(text[start:end], role))
            start = end
        return line


def draw_y_axis(label: str | None) -> TextLine:
    """Return the part of a row before the plot: the label, if the row has one, and the axis."""
    return [Span((label or "").rjust(Y_AXIS_COLUMNS), "dim"), Span(" │" if label is None else " ┤", "faint")]
