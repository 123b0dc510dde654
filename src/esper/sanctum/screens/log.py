"""The log screen: log lines with filters and a text search."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.widgets import Input

from esper.formatting import format_time_of_day, strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, ellipsise
from esper.sanctum.view import GoToMoment, ViewState
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.state import MAX_LOG_LINES, LogLine

LOG_CATEGORIES = {
    "seeds": {"SeedMoved"},
    "policy": {"PolicyUpdated"},
    "anomalies": {"AnomalyFound", "AnomalyEnded", "GovernorRolledBack"},
    "checkpoints": {"CheckpointSaved"},
    "control": {"ControlRequested", "Paused", "Resumed", "RunStarted", "RunEnded"},
    "messages": {"Logged"},
}
"""Event types of each category of log lines."""
_SEVERITIES = ("info", "warning", "error")
"""In rising order."""


class SearchBox(Input):
    """Input for a text search. Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close_search", "back")]


class LogScreen(RunScreen):
    """The log lines, and a search box that opens on request."""

    AUTO_FOCUS = "LogList"
    CATEGORIES = (KeyCategory.LOG,)

    def body(self) -> ComposeResult:
        """Yield the log lines and the hidden search box."""
        yield LogList(self.view)
        yield SearchBox(placeholder="text to search   Enter keep   Esc clear")

    def action_search(self) -> None:
        """Open the search box."""
        search = self.query_one(SearchBox)
        search.display = True
        search.focus()

    def action_close_search(self) -> None:
        """Clear the search, and close its box."""
        self.query_one(SearchBox).value = ""
        self.on_input_submitted()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while the user types."""
        self.query_one(LogList).search(event.value)

    def on_input_submitted(self) -> None:
        """Keep the search, close its box, and focus the log lines."""
        search, lines = self.query_one(SearchBox), self.query_one(LogList)
        search.display = False
        lines.search(search.value)  # action_clear may have reset the filter since the user typed
        lines.focus()


@dataclass
class LogFilter:
    """Condition for log lines to be shown."""

    category: str | None = None
    """Key of `LOG_CATEGORIES`; None for all lines."""
    min_severity: str = "info"
    env: int | None = None
    """Env index; None for all lines."""
    text: str = ""
    """Text that a line must contain, ignoring case."""

    def __call__(self, line: LogLine) -> bool:
        """Return True if a line matches all conditions."""
        return (
            (self.category is None or line.kind in LOG_CATEGORIES[self.category])
            and _SEVERITIES.index(line.severity) >= _SEVERITIES.index(self.min_severity)
            and (self.env is None or line.env == self.env)
            and self.text.casefold() in line.text.casefold()
        )

    def __str__(self) -> str:
        env = "all envs" if self.env is None else f"env {self.env:02d}"
        search = f", /{self.text}" if self.text else ""
        return f"{self.category or 'all kinds'}, {self.min_severity} and above, {env}{search}"


class LogList(Panel, can_focus=True):
    """Log lines, newest at the bottom. The cursor follows the newest line until the user moves it."""

    PANEL_TITLE = "log"
    METRICS = ("log",)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.LOG)]

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self.filter = LogFilter()
        self._cursor_seq: int | None = None
        """Event number of the selected line; None to follow the newest line."""
        self._visible: list[LogLine] = []

    def cache_key(self) -> Hashable:
        """Return a key that changes with the newest line, the filter, the cursor and the focus."""
        log = self.state.log
        return (log[-1].seq if log else 0), str(self.filter), self._cursor_seq, self.has_focus

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the matching lines around the cursor."""
        matching = self._matching()
        total = len(self.state.log)
        last = "the last " if total == MAX_LOG_LINES else ""
        self.panel_subtitle = strip_control(f"{len(matching)} of {last}{total} lines: {self.filter}")
        if not matching:
            self._visible = []
            return [self.line().append(" no matching line" if self.state.log else " no log line yet", "dim")]
        cursor = self._cursor_index(matching)
        top = min(max(cursor - size.height // 2, 0), max(len(matching) - size.height, 0))
        self._visible = matching[top : top + size.height]
        return [
            self._line(entry, size.width, selected=index == cursor) for index, entry in enumerate(self._visible, top)
        ]

    def _matching(self) -> list[LogLine]:
        return [line for line in self.state.log if self.filter(line)]

    def _line(self, entry: LogLine, width: int, *, selected: bool) -> Line:
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append(f"{format_time_of_day(entry.time)} ", "dim")
        line.append(SEVERITIES[entry.severity].glyph if entry.severity != "info" else " ", entry.severity).append(" ")
        return line.append(
            ellipsise(strip_control(entry.text), width - line.width), "normal" if entry.severity == "info" else "bright"
        )

    def _cursor_index(self, matching: list[LogLine]) -> int:
        """Index of the selected line, or of the nearest earlier line that matches the filter."""
        if self._cursor_seq is None:
            return len(matching) - 1
        seq = self._cursor_seq
        return next((index for index in range(len(matching) - 1, -1, -1) if matching[index].seq <= seq), 0)

    def action_move(self, lines: int) -> None:
        """Move the cursor by lines. At the newest line, it follows new lines."""
        matching = self._matching()
        if matching:
            index = min(max(self._cursor_index(matching) + lines, 0), len(matching) - 1)
            self._cursor_seq = None if index == len(matching) - 1 else matching[index].seq
        self.update()

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        """Select the oldest line."""
        self.action_move(-len(self.state.log))

    def action_last(self) -> None:
        """Select the newest line, and follow new lines."""
        self.action_move(len(self.state.log))

    def action_kind(self) -> None:
        """Show only the next category, or all lines after the last category."""
        categories = [None, *LOG_CATEGORIES]
        self.filter.category = categories[(categories.index(self.filter.category) + 1) % len(categories)]
        self.update()

    def action_level(self) -> None:
        """Select the next minimum severity."""
        self.filter.min_severity = _SEVERITIES[(_SEVERITIES.index(self.filter.min_severity) + 1) % len(_SEVERITIES)]
        self.update()

    def action_env(self) -> None:
        """Switch between lines about the selected env and all lines."""
        self.filter.env = self.view.selected_env if self.filter.env is None else None
        self.update()

    def action_clear(self) -> None:
        """Reset the filter."""
        self.filter = LogFilter()
        self.update()

    def search(self, text: str) -> None:
        """Show only lines that contain a text."""
        self.filter.text = text
        self.update()

    def action_choose(self) -> None:
        """Go to the moment and the env of the selected line."""
        matching = self._matching()
        if matching:
            line = matching[self._cursor_index(matching)]
            self.post_message(GoToMoment(line.seq, line.env))

    def on_click(self, event: Click) -> None:
        """Select the clicked line; go to its moment on a double click."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._visible):
            self._cursor_seq = self._visible[offset.y].seq
            self.update()
            if event.chain == 2:
                self.action_choose()
