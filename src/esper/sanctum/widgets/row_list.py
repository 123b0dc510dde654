"""Base class of the lists of rows with a cursor, and the choice of their columns that fit into a width."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.segment import Segment
from textual.events import Click

from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.symbols import Cell
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel, Row

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT", bound=Hashable)
LayoutT = TypeVar("LayoutT")

SCROLL_ROWS = 3
"""Rows per turn of the mouse wheel."""


class ScrollPanel(Panel, can_focus=True):
    """A panel whose rows the keys of lists and the mouse wheel move. Subclasses implement `action_move`."""

    BINDINGS = bindings(KeyCategory.ROWS)

    num_rows = 0
    """Number of rows, visible or not."""
    num_visible = 0
    """Number of visible rows."""

    def action_move(self, rows: int) -> None:
        """Move by rows, at most to the first or last one."""
        raise NotImplementedError

    def action_page(self, pages: int) -> None:
        """Move by pages."""
        self.action_move(pages * max(self.num_visible - 1, 1))

    def action_first(self) -> None:
        """Move to the first row."""
        self.action_move(-self.num_rows)

    def action_last(self) -> None:
        """Move to the last row."""
        self.action_move(self.num_rows)

    def on_mouse_scroll_down(self) -> None:
        """Move a few rows down."""
        self.action_move(SCROLL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Move a few rows up."""
        self.action_move(-SCROLL_ROWS)


@dataclass(frozen=True)
class Column(Generic[ItemT]):
    """A column of a list, as wide as its longest cell, between a minimum and a maximum."""

    key: str
    """Sort key that a click on the heading selects."""
    heading: str
    min_cols: int
    max_cols: int
    cell: Callable[[ItemT, int], Cell]
    """Return the cell of an item for a number of columns."""
    priority: int
    """Columns with lower numbers get room first."""
    is_right: bool = field(default=False, kw_only=True)
    """True to align to the right; False to shorten texts that do not fit."""
    is_elastic: bool = field(default=False, kw_only=True)
    """True if the column is shown in its minimum width, and gets more, up to its maximum, from the room that other
    columns leave. Its cells are not measured."""
    good_cols: int = field(default=0, kw_only=True)
    """Width that an elastic column gets before the less important columns; 0 for its minimum."""


class PlacedColumn(NamedTuple, Generic[ItemT]):
    """A column with the width that it has in a list."""

    column: Column[ItemT]
    width: int


def fit_columns(
    columns: Sequence[Column[ItemT]], items: Sequence[ItemT], width: int, last_first: int
) -> tuple[PlacedColumn[ItemT], ...]:
    """Return the columns that fit, in the same order.

    Args:
        columns: The columns from left to right.
        items: All items of the list, at least one.
        width: Number of columns of the terminal, with a gap before each column but the first.
        last_first: Highest priority of the columns that get room before elastic columns reach their good width.
    """
    by_priority = sorted(columns, key=lambda column: column.priority)
    widths: dict[str, int] = {}
    room = width + 1

    def widen(goal: Callable[[Column[ItemT]], int]) -> None:
        nonlocal room
        for column in by_priority:
            if column.is_elastic and column.key in widths:
                wider = max(min(column.max_cols, goal(column), widths[column.key] + room) - widths[column.key], 0)
                widths[column.key] += wider
                room -= wider

    for column in by_priority:
        if column.priority > last_first:
            widen(lambda column: column.good_cols)
        needed = column.min_cols
        if not column.is_elastic and needed < column.max_cols:
            longest = max(len(column.cell(item, column.max_cols).text) for item in items)
            needed = min(max(longest, needed), column.max_cols)
        if needed + 1 <= room:
            widths[column.key] = needed
            room -= needed + 1
    widen(lambda column: column.max_cols)
    return tuple(PlacedColumn(column, widths[column.key]) for column in columns if column.key in widths)


class RowList(ScrollPanel, Generic[KeyT]):
    """List of items with one row each, and a cursor that follows its item. Each item has a key.

    A click on a heading sorts, one on a row selects it, and a double click opens it. `draw_lines` of a subclass passes
    the keys to `scroll_to_cursor`, and draws the visible rows with `cached_row`, so that only those that changed are
    drawn again.
    """

    HEADING_ROWS: ClassVar[int] = 1
    """Number of lines above the first row."""

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._top = 0
        """Index of the first visible row."""
        self._room = 0
        """Number of rows for which there is room."""
        self._keys: Sequence[KeyT] = ()
        """Keys from top to bottom, visible or not."""
        self._visible: Sequence[KeyT] = ()
        self._heading_ranges: Sequence[tuple[range, str]] = ()
        """Columns of the terminal that each heading occupies, with the sort key that a click selects."""
        self._fitted: tuple[Hashable, Any] = None, None
        """Layout of the columns, after everything that it depends on."""
        self._row_cache: dict[KeyT, tuple[object, Row]] = {}
        """Cached rows, each with everything that it depends on."""

    @property
    def selected(self) -> KeyT | None:
        """Key of the item under the cursor; None for the first one."""
        raise NotImplementedError

    def select(self, key: KeyT) -> None:
        """Move the cursor to an item."""
        raise NotImplementedError

    async def action_open(self) -> None:
        """Open the item under the cursor, also after a double click."""
        raise NotImplementedError

    def sort_by(self, key: str) -> None:
        """Sort by the column whose heading was clicked, if the list can be sorted by columns."""

    def fitted(self, key: Hashable, fit: Callable[[], LayoutT]) -> LayoutT:
        """Return the layout that `fit` computes; the same object until `key` changes."""
        if self._fitted[0] != key:
            self._fitted = key, fit()
        return self._fitted[1]

    def set_keys(self, keys: Sequence[KeyT]) -> None:
        """Set the keys of all rows, from top to bottom."""
        self._keys, self.num_rows = keys, len(keys)

    def scroll_to_cursor(self, keys: Sequence[KeyT], room: int) -> Sequence[KeyT]:
        """Return the keys that fit into `room` rows, scrolled so that the selected item is one of them."""
        self.set_keys(keys)
        index = self._cursor_index()
        top, self._room = self._top if room == self._room else 0, room
        self._top = min(max(top, index - room + 1), index, max(len(keys) - room, 0))
        self._visible = keys[self._top : self._top + room]
        self.num_visible = len(self._visible)
        return self._visible

    @property
    def position_text(self) -> str:
        """Numbers of the visible rows, and the number of all: `1–20 of 64`."""
        return f"{self._top + 1}–{self._top + self.num_visible} of {self.num_rows}"

    def cached_row(self, key: KeyT, width: int, draw: Callable[[], Line], *inputs: object) -> Row:
        """Return the row of an item, drawn again if the width, the theme or one of `inputs` has changed."""
        depends = width, self.view.palette.name, self.view.state_version, inputs
        cached = self._row_cache.get(key)
        if cached is None or cached[0] != depends:
            cached = self._row_cache[key] = depends, draw().row(width)
        return cached[1]

    def draw_heading(
        self, line: Line, columns: Sequence[PlacedColumn[Any]], sort_key: str | None = None, arrow: str = ""
    ) -> Line:
        """Append the headings, with an arrow at the column of the sort key, and remember their places for clicks."""
        ranges: list[tuple[range, str]] = []
        for column, width in columns:
            line.append(" " * bool(ranges))
            ranges.append((range(line.width, line.width + width), column.key))
            is_sorted = column.key == sort_key
            text = f"{column.heading}{arrow}" if is_sorted else column.heading
            padded = text.rjust(width) if column.is_right else text
            line.append_fitted(padded, width, "bright" if is_sorted else "head")
        self._heading_ranges = ranges
        return line

    def draw_scroll_arrows(self, rows: list[Row], width: int) -> None:
        """Draw an arrow at the right edge of the first and last visible row if further items lie above or below."""
        if self._top > 0:
            self._draw_arrow(rows, self.HEADING_ROWS, "↑", width)
        if self._top + self.num_visible < self.num_rows:
            self._draw_arrow(rows, min(self.num_visible, len(rows) - 1), "↓", width)

    def _draw_arrow(self, rows: list[Row], y: int, arrow: str, width: int) -> None:
        rows[y] = [*Segment.adjust_line_length(rows[y], width - 1), *self.line(arrow, "dim").row(1)]

    def _cursor_index(self) -> int:
        selected = self.selected
        return self._keys.index(selected) if selected is not None and selected in self._keys else 0

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        if self._keys:
            self.select(self._keys[min(max(self._cursor_index() + rows, 0), len(self._keys) - 1)])

    def key_at(self, x: int, y: int) -> KeyT | None:  # noqa: ARG002 (a list may have several rows side by side)
        """Return the key of the row in a column and line of the content; None if there is none."""
        place = y - self.HEADING_ROWS
        return self._visible[place] if 0 <= place < len(self._visible) else None

    async def on_click(self, event: Click) -> None:
        """Sort by the clicked heading, or select the clicked row; open it on a double click."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y < self.HEADING_ROWS:
            for columns, key in self._heading_ranges:
                if offset.x in columns:
                    self.sort_by(key)
        elif (key := self.key_at(offset.x, offset.y)) is not None:
            self.select(key)
            if event.chain == 2:
                await self.action_open()


def append_cells(line: Line, columns: Sequence[PlacedColumn[Any]], cells: Iterable[Cell]) -> Line:
    """Append the cells of an item to its row."""
    for place, ((column, width), (text, role)) in enumerate(zip(columns, cells, strict=True)):
        line.append(" " * bool(place))
        if column.is_right:
            line.append_cell(Cell(text.rjust(width), role))
        else:
            line.append_fitted(text, width, role)
    return line
