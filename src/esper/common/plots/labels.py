"""Labels beside the lines of a chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from esper.common.plots.grid import Span, TextLine


class Label(NamedTuple):
    """Text beside a chart."""

    row: int
    """Preferred row."""
    text: str
    role: str


def labels_width(labels: Sequence[Label], rows: int) -> int:
    """Return the columns that labels need beside `rows` rows, including a space before each label."""
    columns = -(-len(labels) // max(rows, 1))
    return columns * (max((len(label.text) for label in labels), default=0) + 1)


def place_labels(labels: Sequence[Label], rows: int) -> list[TextLine]:
    """Return the text beside each of some rows: labels, each on its preferred row, or nearby if that one is occupied.

    Labels keep their order. A row gets several only if there are fewer rows than labels.
    """
    from rich.cells import cell_len  # slow to import, and commands that draw no chart import this module

    lines: list[TextLine] = [[] for _ in range(rows)]
    if not rows or not labels:
        return lines
    per_line = -(-len(labels) // rows)
    ordered = sorted(labels, key=lambda label: label.row)
    groups = [ordered[first : first + per_line] for first in range(0, len(ordered), per_line)]
    width = max(len(label.text) for label in labels) + 1
    for row, group in zip(spread_rows([group[0].row for group in groups], rows), groups, strict=True):
        used = 0
        for index, label in enumerate(group):
            gap = " " * (index * width + 1 - used)
            lines[row] += [Span(gap), Span(label.text, label.role)]
            used += len(gap) + cell_len(label.text)
    return lines


def spread_rows(preferred: Sequence[int], rows: int) -> list[int]:
    """Assign a different row to each preferred row, as close to it as the order allows.

    Args:
        preferred: Preferred rows, in ascending order.
        rows: Number of rows, at least `len(preferred)`.
    """
    # Start and height of each block of adjacent rows. A block is centred on the mean of its preferred positions.
    blocks: list[tuple[float, int]] = []
    for row in preferred:
        start, count = float(row), 1
        while blocks and sum(blocks[-1]) > start:
            start_above, count_above = blocks.pop()
            start = (start_above * count_above + (start - count_above) * count) / (count_above + count)
            count += count_above
            start = min(max(start, 0.0), float(rows - count))
        blocks.append((start, count))
    assigned = [round(start) + offset for start, count in blocks for offset in range(count)]
    for index, row in enumerate(assigned):  # rounding may have made two blocks overlap
        assigned[index] = max(row, assigned[index - 1] + 1) if index else row
    return [min(row, rows - len(assigned) + index) for index, row in enumerate(assigned)]
