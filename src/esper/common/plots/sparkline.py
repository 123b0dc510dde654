"""Sparklines: one block character per value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

BLOCK_CHARS = "▁▂▃▄▅▆▇█"
"""Block characters of a sparkline, by height."""
LEVEL_CHARS = " " + BLOCK_CHARS
"""Characters whose lower part is filled, by the number of filled eighths."""
NON_FINITE_CHAR = "×"
"""Character of a sparkline for an infinite value or NaN."""


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
