"""Printed tables: aligned text that fits the terminal, and HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from esper.common.formatting import strip_control

_GAP = 2
"""Spaces between two columns of text."""

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class PrintedColumn(Generic[RowT]):
    """A column of a table."""

    name: str
    text_of: Callable[[RowT], str]
    """Returns the cell of a row."""
    unit: str = ""
    """Unit of the cells, which stands in the heading."""
    is_right: bool = False
    """True if the cells are aligned to the right."""
    priority: int = 0
    """Columns with the highest number are left out first if a table is too wide; those with 0 never are."""
    shorten: Callable[[RowT, int], str] | None = None
    """Returns the cell of a row in a maximum number of characters; None if cells cannot be shortened."""
    wanted_width: int = 0
    """Width of a column that can be shortened, for which other columns are left out."""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} {self.unit}".rstrip()


@dataclass(frozen=True)
class PrintedTable(Generic[RowT]):
    """A table: columns, and the rows from which they take their cells. Empty headings have no line.

    At least one column has priority 0.
    """

    columns: Sequence[PrintedColumn[RowT]]
    rows: Sequence[RowT]

    @classmethod
    def from_cells(
        cls, headings: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
    ) -> PrintedTable[Sequence[str]]:
        """Return a table of given cells.

        Args:
            headings: Heading of each column.
            rows: Cells of each row.
            right: Indices of the columns that are aligned to the right.
        """
        columns = [
            PrintedColumn[Sequence[str]](name, itemgetter(index), is_right=index in right)
            for index, name in enumerate(headings)
        ]
        return PrintedTable(columns, list(rows))

    def fit(self, width: int | None, gap: int = _GAP) -> list[tuple[PrintedColumn[RowT], int]]:
        """Return the columns that fit, with their widths. Columns that are never left out may be wider together.

        Args:
            width: Maximum number of characters of a line; None for no limit.
            gap: Number of characters between two columns.
        """
        fitted = [
            (column, max([len(column.heading), *(len(column.text_of(row)) for row in self.rows)]))
            for column in self.columns
        ]
        while width is not None:
            room = width - sum(cols for column, cols in fitted if not column.shorten) - gap * (len(fitted) - 1)
            wanted = sum(min(cols, column.wanted_width) for column, cols in fitted if column.shorten)
            least = max((column for column, _ in fitted), key=lambda column: column.priority)
            if room >= wanted or least.priority == 0:
                return [
                    (column, min(max(room, len(column.heading)), cols) if column.shorten else cols)
                    for column, cols in fitted
                ]
            fitted = [(column, cols) for column, cols in fitted if column is not least]
        return fitted

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Yield the lines of the table, without control characters.

        If the columns that are never left out do not fit, they continue in further blocks that repeat the first one.

        Args:
            width: Maximum number of characters of a line; None for no limit. A block of two columns may be wider.
        """
        first, *others = self.fit(width)
        blocks = [[first]]
        for column, cols in others:
            used = sum(before + _GAP for _, before in blocks[-1])
            if width is not None and len(blocks[-1]) > 1 and used + cols > width:
                blocks.append([first])
            blocks[-1].append((column, cols))
        for block in blocks:
            if block is not blocks[0]:
                yield ""
            if any(column.heading for column, _ in block):
                yield _line((column, cols, column.heading) for column, cols in block)
            for row in self.rows:
                yield _line(
                    (column, cols, column.shorten(row, cols) if column.shorten else column.text_of(row))
                    for column, cols in block
                )

    def html(self) -> str:
        """Return the table as HTML, for notebooks."""
        headings = [column.heading for column in self.columns]
        rows = [headings] if any(headings) else []
        rows += [[column.text_of(row) for column in self.columns] for row in self.rows]
        lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f'<table style="text-align: left; white-space: pre; font-family: monospace">{lines}</table>'


def _line(cells: Iterable[tuple[PrintedColumn[RowT], int, str]]) -> str:
    """Return a line of cells, each with its column and width."""
    texts = [f"{strip_control(cell):{'>' if column.is_right else '<'}{cols}}" for column, cols, cell in cells]
    return (" " * _GAP).join(texts).rstrip()
