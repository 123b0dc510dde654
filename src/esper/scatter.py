"""Points of a score against parameters: the Pareto front, and a plot in characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from esper.text_plot import linear_axis

T = TypeVar("T")

_MARGIN_COLUMNS = 7
"""Columns of the labels of the y axis."""


def pareto_front(items: Iterable[T], place: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the items that no other one dominates, by ascending parameters.

    An item dominates another if it is as good with fewer parameters, or better with as few. Of several items in one
    place, the first is returned. Items that are not finite are left out.

    Args:
        items: The items.
        place: Function that returns parameters and score of an item.
    """
    best = -math.inf
    front: list[T] = []
    places = [(place(item), item) for item in items]
    finite = [(at, item) for at, item in places if all(map(math.isfinite, at))]
    for (_, score), item in sorted(finite, key=lambda pair: (pair[0][0], -pair[0][1])):
        if score > best:
            best = score
            front.append(item)
    return front


class ScatterPoint(NamedTuple):
    """A point of a scatter plot, with its intervals."""

    x: float
    """Position on the logarithmic x axis, above 0."""
    y: float
    mark: str
    """Character at the point."""
    letter: str = ""
    """Character to the left of it; empty for none."""
    x_ends: tuple[float, float] | None = None
    """Lower and upper end of the interval of `x`; None if it has none."""
    y_ends: tuple[float, float] | None = None
    """The same of `y`."""


def draw_scatter(points: Sequence[ScatterPoint], width: int, height: int) -> list[str]:
    """Draw points as text, on a logarithmic x axis of multiples.

    Args:
        points: One or more points. Later ones are drawn over earlier ones.
        width: Number of columns, at least 40.
        height: Number of lines of the plot, without the axis.

    Returns:
        Lines of the plot, and the line of the x axis.
    """
    columns = width - _MARGIN_COLUMNS
    axis = linear_axis([end for point in points for end in (point.y_ends or (point.y,))], height)
    logs = [math.log(end) for point in points for end in (point.x_ends or (point.x,))]
    left, right = min(logs), max(logs)
    grid = [[" "] * columns for _ in range(height)]

    def column(x: float) -> int:
        return 2 + round((math.log(x) - left) / (right - left or 1.0) * (columns - 4))

    def row(y: float) -> int:
        return height - 1 - round((y - axis.low) / (axis.high - axis.low) * (height - 1))

    for point in points:
        if point.x_ends is not None:
            for at in range(column(point.x_ends[0]), column(point.x_ends[1]) + 1):
                grid[row(point.y)][at] = "─"
        if point.y_ends is not None:
            for at in range(row(point.y_ends[1]), row(point.y_ends[0]) + 1):
                grid[at][column(point.x)] = "│"
    for point in points:
        line, at = grid[row(point.y)], column(point.x)
        line[at] = point.mark
        if point.letter:
            line[at - 1] = point.letter
    labels = {row(value): label for value, label in axis.ticks}
    lines = [f"{labels.get(index, ''):>{_MARGIN_COLUMNS - 2}} │{''.join(line)}" for index, line in enumerate(grid)]
    first, last = f"×{math.exp(left):.2f}", f"×{math.exp(right):.2f} parameters"
    return [*lines, " " * (_MARGIN_COLUMNS + 1) + first + last.rjust(columns - len(first) - 1)]
