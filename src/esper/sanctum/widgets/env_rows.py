"""A panel with a row per env: the cursor, which stays on its env, and the rows in sight."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.binding import BindingType
from textual.events import Click

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.state import EnvState


class EnvRows(Panel, can_focus=True):
    """Rows of envs below one line of headings. The cursor is `view.selected_env`."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.ROWS)]

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._top = 0
        self._order: Sequence[int] = ()
        self._shown: Sequence[int] = ()
        self._kept: dict[int, tuple[Hashable, Row]] = {}
        """By env: its row, and what that was drawn from."""

    def page(self, order: Sequence[int], room: int) -> Sequence[int]:
        """The envs in sight when there is room for so many of `order`, the one under the cursor among them."""
        self._order = order
        count = len(order)
        if count and self.view.selected_env not in order:
            self.view.selected_env = order[0]
        at = order.index(self.view.selected_env) if count else 0
        self._top = min(max(self._top, at - room + 1), at, max(count - room, 0))
        self._shown = order[self._top : self._top + room]
        return self._shown

    def row_of(self, env: EnvState, width: int, draw: Callable[[], Line], *depends: Hashable) -> Row:
        """The row of an env, drawn anew where it has changed, or the theme, or what else it depends on."""
        key = env.revision, width, self.view.palette.name, self.view.state_version, depends
        kept = self._kept.get(env.env)
        if kept is None or kept[0] != key:
            kept = self._kept[env.env] = key, draw().row(width)
        return kept[1]

    def mark_more(self, rows: list[Row], width: int) -> None:
        """Arrows at the right edge of the first and last row where there are envs out of sight."""
        if self._top > 0:
            rows[1] = self._marked(rows[1], "↑", width)
        if self._top + len(self._shown) < len(self._order):
            rows[len(self._shown)] = self._marked(rows[len(self._shown)], "↓", width)

    def _marked(self, row: Row, arrow: str, width: int) -> Row:
        return [*Segment.adjust_line_length(row, width - 1), *self.line().add(arrow, "dim").row(1)]

    def select(self, env: int) -> None:
        """Put the cursor on an env; other panels may be about it."""
        self.view.selected_env = env
        for panel in self.screen.query(Panel):
            panel.update()

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        order = self._order
        if order:
            at = order.index(self.view.selected_env) if self.view.selected_env in order else 0
            self.select(order[min(max(at + rows, 0), len(order) - 1)])

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(len(self._shown) - 1, 1))

    def action_first(self) -> None:
        """Go to the first row."""
        self.action_move(-len(self.state.envs))

    def action_last(self) -> None:
        """Go to the last row."""
        self.action_move(len(self.state.envs))

    def on_click(self, event: Click) -> None:
        """A click selects a row, a double click opens it."""
        offset = event.get_content_offset(self)
        if offset is not None and 1 <= offset.y <= len(self._shown):
            self.select(self._shown[offset.y - 1])
            if event.chain == 2:
                self.app.simulate_key("enter")

    def on_mouse_scroll_down(self) -> None:
        """The wheel moves the cursor."""
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        """The wheel moves the cursor."""
        self.action_move(-3)
