"""Names at the right end of curves, so that colour is never all that tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from esper.sanctum.widgets.panel import Line


class Label(NamedTuple):
    """A text that wants to stand on a row."""

    row: int
    text: str
    role: str


def width_of(labels: Sequence[Label], rows: int) -> int:
    """Columns that the labels take beside `rows` rows, with a space before each."""
    columns = -(-len(labels) // max(rows, 1))
    return columns * (max((len(label.text) for label in labels), default=0) + 1)


def attach(lines: Sequence[Line], labels: Sequence[Label], column: int) -> None:
    """Write each label at the end of its row, or near it where others stand there; in their order, from `column` on."""
    if not lines or not labels:
        return
    each = -(-len(labels) // len(lines))
    ordered = sorted(labels, key=lambda label: label.row)
    groups = [ordered[first : first + each] for first in range(0, len(ordered), each)]
    width = max(len(label.text) for label in labels) + 1
    for row, group in zip(apart([group[0].row for group in groups], len(lines)), groups, strict=True):
        for place, label in enumerate(group):
            lines[row].to(column + place * width + 1).add(label.text, label.role)


def apart(wanted: Sequence[int], rows: int) -> list[int]:
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
