"""Curves as braille dots, and arithmetic on their values.

Only modules that draw a curve import this one, because the import of numpy takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = Sequence[float | None] | NDArray[np.float64]
"""Values of a curve."""

_BRAILLE = 0x2800
"""Code point of the braille cell without dots."""
_DOT_ORDER = (0, 1, 2, 4, 5, 6, 3, 7)
"""Dots of a braille cell in the order of their bits. Dot 0 to 3 are in the left column, from the top; 4 to 7 right."""


class DotColumns(NamedTuple):
    """Dots of a curve on a canvas: in each of some columns of dots, those from `low` to `high`. Arrays of integers."""

    columns: NDArray[np.int64]
    """Columns of dots, ascending; the first column of the canvas is 0."""
    low: NDArray[np.int64]
    """Lowest dot, counted from the bottom."""
    high: NDArray[np.int64]

    def every_second(self) -> DotColumns:
        """Return the dots of every second column."""
        kept = self.columns % 2 == 0
        return DotColumns(self.columns[kept], self.low[kept], self.high[kept])


def dot_columns(
    xs: Floats, values: Floats, x_range: tuple[float, float], y_range: tuple[float, float], width: int, height: int
) -> DotColumns:
    """Place a line through points on a canvas. A value that is None or not finite interrupts the line.

    Args:
        xs: Positions of the points, ascending. Points outside `x_range` are not drawn, but lines to them are.
        values: Heights of the points. Those outside `y_range` are drawn at its ends.
        x_range: Positions of the first and the last column of dots.
        y_range: Heights of the lowest and the highest row of dots.
        width: Number of characters per line of the canvas, two columns of dots each.
        height: Number of lines of the canvas, four rows of dots each.
    """
    x, y = np.asarray(xs, float), np.asarray(values, float)
    start, stop = int(np.searchsorted(x, x_range[0])) - 1, int(np.searchsorted(x, x_range[1], "right")) + 1
    x, y = x[max(start, 0) : stop], y[max(start, 0) : stop]
    finite = np.flatnonzero(np.isfinite(y))
    if not len(finite):
        return DotColumns(*(np.zeros(0, np.int64) for _ in range(3)))
    is_whole = len(finite) == len(y)
    if not is_whole:
        x, y = x[finite], y[finite]
    right, top = width * 2 - 1, height * 4 - 1
    at = np.rint((x - x_range[0]) * _scale(x_range, right))
    # Points in the same column of dots are drawn as one vertical line.
    firsts = np.append(0, np.flatnonzero(at[1:] != at[:-1]) + 1)
    lasts = np.append(firsts[1:], len(at)) - 1
    occupied = at[firsts].astype(np.int64)
    connected = np.full(len(firsts), True) if is_whole else finite[firsts] - finite[firsts - 1] == 1
    connected[0] = False

    def dots_of(heights: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint(np.clip((heights - y_range[0]) * _scale(y_range, top), 0, top)).astype(np.int64)

    # Heights become dots only now, because there are far fewer columns than points.
    entered, left = dots_of(y[firsts]), dots_of(y[lasts])
    # Between two occupied columns, the line is interpolated.
    columns = np.arange(int(occupied[0]), int(occupied[-1]) + 1)
    enter = np.rint(np.interp(columns, np.repeat(occupied, 2), np.stack([entered, left], 1).ravel())).astype(np.int64)
    leave, places = enter.copy(), occupied - occupied[0]
    enter[places], leave[places] = entered, left
    low, high = enter.copy(), enter.copy()
    low[places] = dots_of(np.minimum.reduceat(y, firsts))
    high[places] = dots_of(np.maximum.reduceat(y, firsts))
    segment = np.searchsorted(occupied, columns)  # index of the occupied column at or after each column
    is_drawn = connected[segment]
    before, is_joined = leave[:-1], is_drawn[1:]
    # A step up or down fills the dots between the two heights.
    low[1:] = np.where(is_joined & (before < enter[1:]), np.minimum(low[1:], before + 1), low[1:])
    high[1:] = np.where(is_joined & (before > enter[1:]), np.maximum(high[1:], before - 1), high[1:])
    is_drawn[places] = True
    is_drawn &= (columns >= 0) & (columns <= right)
    return DotColumns(columns[is_drawn], low[is_drawn], high[is_drawn])


def _scale(value_range: tuple[float, float], dots: int) -> float:
    return dots / (value_range[1] - value_range[0]) if value_range[1] > value_range[0] else 0.0


class Canvas:
    """Layers of braille dots. Each character has two columns and four rows of dots.

    Args:
        width: Number of characters per line.
        height: Number of lines.
        layers: Number of layers.
    """

    def __init__(self, width: int, height: int, layers: int = 1) -> None:
        self.width, self.height = width, height
        # Differences between each row of dots and the one below it: a range of dots changes two of them.
        self._changes = np.zeros((layers, height * 4 + 1, width * 2), np.int16)

    def draw(self, dots: DotColumns, layer: int = 0) -> None:
        """Set dots of a layer."""
        self._changes[layer][dots.low, dots.columns] += 1
        self._changes[layer][dots.high + 1, dots.columns] -= 1

    def rows(self) -> list[tuple[str, list[int]]]:
        """Return the characters and the layers of each line, top to bottom.

        A cell shows the dots of all layers, and belongs to the first layer with a dot in it. A cell without dots is a
        space, and belongs to layer -1.
        """
        dots = (np.cumsum(self._changes[:, :-1], axis=1, dtype=np.int16) > 0)[:, ::-1]
        layers = len(dots)
        cells = dots.reshape(layers, self.height, 4, self.width, 2).transpose(0, 1, 3, 4, 2)
        bits = cells.reshape(layers, self.height, self.width, 8)[..., _DOT_ORDER]
        codes = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
        merged = np.bitwise_or.reduce(codes, axis=0)
        owners = np.where(merged > 0, (codes > 0).argmax(axis=0), -1)
        characters = np.where(merged > 0, merged.astype("<u4") + _BRAILLE, ord(" ")).astype("<u4")
        return [
            (row.tobytes().decode("utf-32-le"), owner) for row, owner in zip(characters, owners.tolist(), strict=True)
        ]


def extent(values: Floats) -> tuple[float, float] | None:
    """Return the minimum and maximum of the finite values; None if no value is finite."""
    numbers = np.asarray(values, float)
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


def min_positive(values: Floats) -> float | None:
    """Return the minimum of the positive finite values; None if there is none."""
    numbers = np.asarray(values, float)
    return (extent(numbers[numbers > 0]) or (None,))[0]


def log10_clipped(values: Floats) -> NDArray[np.float64]:
    """Return base-10 logarithms: NaN for values that are not finite, that of the smallest number for 0 and below."""
    numbers = np.asarray(values, float)
    logarithms = np.full(len(numbers), np.nan)
    finite = np.isfinite(numbers)
    logarithms[finite] = np.log10(np.maximum(numbers[finite], np.finfo(float).tiny))
    return logarithms


def moving_mean(values: Floats, count: int) -> Floats:
    """Return the mean of each value and the `count` - 1 values before it, of as many as there are.

    Values that are None, NaN or infinite do not count, and stay as they are.
    """
    numbers = np.asarray(values, float)
    finite = np.isfinite(numbers)
    sums, counts = (np.concatenate([[0.0], np.cumsum(part)]) for part in (np.where(finite, numbers, 0.0), finite))
    starts = np.maximum(np.arange(len(numbers)) + 1 - count, 0)
    with np.errstate(invalid="ignore"):
        means = (sums[1:] - sums[starts]) / (counts[1:] - counts[starts])
    if isinstance(values, np.ndarray):
        return np.where(finite, means, numbers)
    return [mean if is_finite else value for mean, is_finite, value in zip(means.tolist(), finite, values, strict=True)]
