"""Several curves in one plot of text, told apart by letters on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from esper.dots import Canvas, DotColumns, Floats, dot_columns, extent
from esper.formatting import NOT_MEASURED, format_number

MAX_WIDTH, MIN_WIDTH = 120, 20
"""Limits of the width of a plot, in columns."""
_HEIGHT = 12
_LABEL_COLS = 7
"""Columns of the labels of the y axis."""
_MARK_DISTANCE_COLS = 12
"""Columns between two letters on a curve, unless there are more curves than that."""


class OverlaidCurve(NamedTuple):
    """A curve of a plot."""

    label: str
    """Text of the legend."""
    xs: Floats
    """Ascending."""
    values: Floats


def curve_mark(index: int) -> str:
    """Return the letters of a curve, given its index from 0: A to Z, AA, AB …"""
    before, letter = divmod(index, 26)
    return (curve_mark(before - 1) if before else "") + chr(ord("A") + letter)


def overlay_lines(curves: Sequence[OverlaidCurve], spec: str, width: int) -> Iterator[str]:
    """Yield the lines of a plot: its range, the curves on common axes, and the legend.

    Args:
        curves: Curves; those without finite values are in the legend only.
        spec: Format of the values.
        width: Maximum length of a line.
    """
    value_range = extent([value for curve in curves for value in curve.values])
    x_range = extent([x for curve in curves for x in curve.xs])
    if value_range is not None and x_range is not None:
        low, high = value_range
        columns = min(max(width - _LABEL_COLS - 2, MIN_WIDTH), MAX_WIDTH)
        labels = {0: format_number(high, spec), _HEIGHT - 1: format_number(low, spec)}
        for index, row in enumerate(_draw(curves, x_range, (low, high), columns)):
            yield f"{labels.get(index, ''):>{_LABEL_COLS}} {'┤' if index in labels else '│'}{row}".rstrip()
        first, last = (format_number(end, "g") for end in x_range)
        yield f"{'':{_LABEL_COLS + 2}}{first}{last:>{columns - len(first)}}" if first != last else f"{'':9}{first}"
    yield from _legend(curves, width)


def _draw(
    curves: Sequence[OverlaidCurve], x_range: tuple[float, float], y_range: tuple[float, float], width: int
) -> list[str]:
    """Return the rows of the plot, with the letters of the curves on them."""
    canvas = Canvas(width, _HEIGHT)
    drawn = [dot_columns(curve.xs, curve.values, x_range, y_range, width, _HEIGHT) for curve in curves]
    for dots in drawn:
        canvas.draw(dots)
    rows = [list(text) for text, _ in canvas.rows()]
    taken: set[tuple[int, int]] = set()
    distance = max(_MARK_DISTANCE_COLS, len(curves))
    for index, dots in enumerate(drawn):
        mark = curve_mark(index)
        for row, column in _mark_cells(dots, index * distance // len(curves), distance, taken):
            rows[row][column : column + len(mark)] = mark[: width - column]
    return ["".join(row) for row in rows]


def _mark_cells(dots: DotColumns, offset: int, distance: int, taken: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield row and column of the letters of a curve, and add them to the cells that are taken.

    Args:
        dots: Dots of the curve.
        offset: Column of the first letter, counted from the start of the curve.
        distance: Columns between two letters.
        taken: Cells with letters of other curves.
    """
    cells = {
        column // 2: (_HEIGHT - 1 - dot // 4, column // 2)
        for column, dot in zip(dots.columns.tolist(), dots.high.tolist(), strict=True)
    }
    places = list(cells.values())
    if not places:
        return
    for start in range(offset % len(places), len(places), distance):
        # Beside a taken cell, so that every curve has a letter, unless all of its cells are taken.
        near = next((cell for cell in [*places[start:], *places[:start]] if cell not in taken), None)
        if near is not None:
            taken.add(near)
            yield near


def _legend(curves: Sequence[OverlaidCurve], width: int) -> Iterator[str]:
    """Yield the lines of the legend, as many entries per line as fit."""
    line = ""
    for index, curve in enumerate(curves):
        suffix = "" if extent(curve.values) else f": {NOT_MEASURED}"
        entry = f"{curve_mark(index)}  {curve.label}{suffix}"
        if line and len(line) + 4 + len(entry) > width:
            yield line
            line = entry
        else:
            line = f"{line}    {entry}" if line else entry
    yield line
