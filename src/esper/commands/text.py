"""How the commands write times, sizes and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

NOT_MEASURED = "–"


def age(seconds: float) -> str:
    """In the largest unit of which there is one."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def size(count: int) -> str:
    """Bytes, in KiB, MiB or GiB."""
    for unit, length in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 2**10:.1f} KiB"


def number(value: float | None, form: str) -> str:
    """A value in a format; what was not measured, and what is no number, by its sign."""
    if value is None:
        return NOT_MEASURED
    return f"{value:{form}}" if math.isfinite(value) else str(value).replace("nan", "NaN")


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Rows as lines of text with their cells below each other; those of the columns `right` end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
