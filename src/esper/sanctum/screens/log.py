"""The log: everything notable that was said, to filter and to search."""

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


class SearchBox(Input):
    """A line to type a text into; Escape leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close_search", "back")]


class LogScreen(RunScreen):
    """The lines, and a line to search them with while it is wanted."""

    AUTO_FOCUS = "LogList"
    CATEGORIES = (KeyCategory.LOG,)

    def body(self) -> ComposeResult:
        """The lines and the search."""
        yield LogList(self.view)
        yield SearchBox(placeholder="text to look for; Enter keeps it, Escape drops it")

    def action_search(self) -> None:
        """Type a text to look for."""
        search = self.query_one(SearchBox)
        search.display = True
        search.focus()

    def action_close_search(self) -> None:
        """Without a search."""
        self.query_one(SearchBox).value = ""
        self.on_input_submitted()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while it is typed."""
        self.query_one(LogList).search(event.value)

    def on_input_submitted(self) -> None:
        """Keep what was typed, and go back to the lines."""
        search, lines = self.query_one(SearchBox), self.query_one(LogList)
        search.display = False
        lines.search(search.value)  # all filters may have been dropped since it was typed
        lines.focus()


LOG_CATEGORIES = {
    "seeds": {"SeedMoved"},
    "policy": {"PolicyUpdated"},
    "anomalies": {"AnomalyFound", "AnomalyEnded", "GovernorRolledBack"},
    "checkpoints": {"CheckpointSaved"},
    "control": {"Requested", "Paused", "Resumed", "RunStarted", "RunEnded"},
    "messages": {"Logged"},
}
"""What people call the kinds of lines, and the events that they come from."""
_LEVELS = ("info", "warning", "error")


@dataclass
class LogFilter:
    """Which lines are wanted."""

    kind: str | None = None
    """A key of `KINDS`; None for all."""
    min_severity: str = "info"
    """The least severity."""
    env: int | None = None
    text: str = ""
    """What a line must contain, in any case of letters."""

    def __call__(self, line: LogLine) -> bool:
        """Whether a line is wanted."""
        return (
            (self.kind is None or line.kind in LOG_CATEGORIES[self.kind])
            and _LEVELS.index(line.severity) >= _LEVELS.index(self.min_severity)
            and (self.env is None or line.env == self.env)
            and self.text.casefold() in line.text.casefold()
        )

    def __str__(self) -> str:
        env = "every env" if self.env is None else f"env {self.env:02d}"
        search = f", /{self.text}" if self.text else ""
        return f"{self.kind or 'every kind'}, {self.min_severity} and up, {env}{search}"


class LogList(Panel, can_focus=True):
    """The newest line at the bottom. The cursor follows it until it is moved."""

    PANEL_TITLE = "log"
    METRICS = ("log",)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.LOG)]

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self.filter = LogFilter()
        self._at: int | None = None
        """Sequence number of the line under the cursor; None to follow the newest."""
        self._seen: list[LogLine] = []

    def cache_key(self) -> Hashable:
        """The newest line, the filter and the cursor."""
        log = self.state.log
        return (log[-1].seq if log else 0), str(self.filter), self._at, self.has_focus

    def draw_lines(self, size: Size) -> list[Line]:
        """The lines around the cursor."""
        wanted = [line for line in self.state.log if self.filter(line)]
        many = len(self.state.log)
        last = "the last " if many == MAX_LOG_LINES else ""
        self.panel_subtitle = strip_control(f"{len(wanted)} of {last}{many} lines: {self.filter}")
        if not wanted:
            self._seen = []
            return [self.line().append(" no such line" if self.state.log else " nothing was said yet", "dim")]
        at = self._place(wanted)
        top = min(max(at - size.height // 2, 0), max(len(wanted) - size.height, 0))
        self._seen = wanted[top : top + size.height]
        return [self._line(entry, size.width, here=top + i == at) for i, entry in enumerate(self._seen)]

    def _line(self, entry: LogLine, width: int, *, here: bool) -> Line:
        line = Line(self.view.palette, selected=here).append("▸" if here else " ", "key")
        line.append(f"{format_time_of_day(entry.time)} ", "dim")
        line.append(SEVERITIES[entry.severity].glyph if entry.severity != "info" else " ", entry.severity).append(" ")
        return line.append(
            ellipsise(strip_control(entry.text), width - line.width), "normal" if entry.severity == "info" else "bright"
        )

    def _place(self, wanted: list[LogLine]) -> int:
        """Index of the line under the cursor, or of the nearest before it that is wanted."""
        if self._at is None:
            return len(wanted) - 1
        at = self._at
        return next((i for i in range(len(wanted) - 1, -1, -1) if wanted[i].seq <= at), 0)

    def action_move(self, lines: int) -> None:
        """Move the cursor; at the newest line it follows."""
        wanted = [line for line in self.state.log if self.filter(line)]
        if wanted:
            place = min(max(self._place(wanted) + lines, 0), len(wanted) - 1)
            self._at = None if place == len(wanted) - 1 else wanted[place].seq
        self.update()

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        """Go to the oldest line."""
        self.action_move(-len(self.state.log))

    def action_last(self) -> None:
        """Go to the newest line, and follow."""
        self.action_move(len(self.state.log))

    def action_kind(self) -> None:
        """The next kind of lines, and all again after the last."""
        kinds = [None, *LOG_CATEGORIES]
        self.filter.kind = kinds[(kinds.index(self.filter.kind) + 1) % len(kinds)]
        self.update()

    def action_level(self) -> None:
        """The next severity from which on lines are shown."""
        self.filter.min_severity = _LEVELS[(_LEVELS.index(self.filter.min_severity) + 1) % len(_LEVELS)]
        self.update()

    def action_env(self) -> None:
        """Only the env under the cursor of the tables, or every one."""
        self.filter.env = self.view.selected_env if self.filter.env is None else None
        self.update()

    def action_clear(self) -> None:
        """No filter."""
        self.filter = LogFilter()
        self.update()

    def search(self, text: str) -> None:
        """Show only lines with a text."""
        self.filter.text = text
        self.update()

    def action_choose(self) -> None:
        """Go where the line under the cursor happened."""
        wanted = [line for line in self.state.log if self.filter(line)]
        if wanted:
            line = wanted[self._place(wanted)]
            self.post_message(GoToMoment(line.seq, line.env))

    def on_click(self, event: Click) -> None:
        """A click selects a line, a double click goes there."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._seen):
            self._at = self._seen[offset.y].seq
            self.update()
            if event.chain == 2:
                self.action_choose()
