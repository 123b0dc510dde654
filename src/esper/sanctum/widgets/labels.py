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
    """Write each label at the end of its row, or of the nearest that has room; from `column` on."""
    if not lines or not labels:
        return
    each = -(-len(labels) // len(lines))
    taken: dict[int, list[Label]] = {}
    for label in sorted(labels, key=lambda label: label.row):
        free = (row for row in range(len(lines)) if len(taken.get(row, [])) < each)
        taken.setdefault(min(free, key=lambda row: abs(row - label.row)), []).append(label)
    width = max(len(label.text) for label in labels) + 1
    for row, here in taken.items():
        for place, label in enumerate(here):
            lines[row].to(column + place * width + 1).add(label.text, label.role)
