"""The log screen: log lines with filters and a text search."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.timer import Timer
from textual.widgets import Input

from esper.formatting import format_time_of_day, strip_control
from esper.history.log_index import LogIndex
from esper.history.log_search import LOG_CATEGORIES, SEVERITY_LEVELS, LogFilter, LogRow, LogSearch
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, ellipsise
from esper.sanctum.view import GoToMoment, ViewState
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.log_lines import LogLine

SEARCH_SLICE_S = 0.03
"""Seconds of searching between two frames."""
SEARCH_INTERVAL_S = 0.05
"""Seconds between two slices of a search."""


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

    def on_screen_resume(self) -> None:
        """Read the whole recording of a live run while the screen is open."""
        self.view.source.read_log(True)
        super().on_screen_resume()

    def on_screen_suspend(self) -> None:
        """Stop to read the recording of a live run."""
        self.view.source.read_log(False)

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


class LogList(Panel, can_focus=True):
    """Log lines of the whole run, newest at the bottom.

    The cursor follows the newest line, or the line at the playhead, until the user moves it.
    """

    PANEL_TITLE = "log"
    METRICS = ("log",)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.LOG)]
    _timer: Timer
    """Continues a search."""

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self.filter = LogFilter()
        self._opened: set[int] = set()
        """Event numbers of the first lines of the groups that are open."""
        self._cursor: tuple[int, bool] | None = None
        """Event number of the selected row's line, and True if the row is a group; None to follow."""
        self._recorded = LogSearch(LogIndex(), self.filter, self._opened)
        """Rows of the recording."""
        self._newer = LogSearch(LogIndex(), self.filter, self._opened)
        """Rows of the lines of a live run that were not read from its recording yet."""
        self._newer_lines: list[LogLine] = []
        self._visible: list[int | None] = []
        """Number of the row in each line of the panel; None for a line that is no row."""

    def on_mount(self) -> None:
        """Create the timer that continues a search."""
        self._timer = self.set_interval(SEARCH_INTERVAL_S, self.update, pause=True)

    def update(self) -> None:
        """Search on, and draw the rows if anything changed."""
        if not self.size:
            return
        self._search()
        (self._timer.pause if self._recorded.is_done else self._timer.resume)()
        super().update()

    def _search(self) -> None:
        """Search further lines of the recording, and all lines that are newer."""
        source = self.view.source
        index = source.log
        if index is not None and index is not self._recorded.index:
            self._recorded = LogSearch(index, self.filter, self._opened)
        self._recorded.advance(SEARCH_SLICE_S)
        read_until = self._recorded.index.last_seq
        lines = [line for line in source.live_state.log if line.seq > read_until] if source.live else []
        if lines != self._newer_lines:
            self._newer_lines, index = lines, LogIndex()
            index.extend(lines)
            self._newer = LogSearch(index, self.filter, self._opened)
        self._newer.advance(math.inf)

    def _set_filter(self, **changes: Any) -> None:
        """Change conditions of the filter, and search again."""
        self.filter = self.filter._replace(**changes)
        self._recorded = LogSearch(self._recorded.index, self.filter, self._opened)
        self._newer = LogSearch(self._newer.index, self.filter, self._opened)
        self.update()

    def cache_key(self) -> Hashable:
        """Return a key that changes with the rows, the filter, the cursor, the playhead and the focus."""
        rows = (len(self._recorded), self._recorded.num_lines, len(self._newer), self._newer.num_lines)
        return (
            rows,
            self._fraction_searched,
            self.filter,
            self._cursor,
            self._playhead_seq,
            self._newest_seq,
            self.has_focus,
        )

    @property
    def _newest_seq(self) -> int:
        return max(self._recorded.index.last_seq, self._newer.index.last_seq)

    @property
    def _playhead_seq(self) -> int | None:
        """Number of the event at the playhead; None in the present of a live run."""
        return self.state.seq if self.view.source.playback is not None else None

    @property
    def _fraction_searched(self) -> float:
        """Fraction of the run's events whose lines were searched."""
        fraction_read = self.view.source.fraction_read
        return self._recorded.fraction * (1.0 if fraction_read is None else fraction_read)

    @property
    def _num_rows(self) -> int:
        return len(self._recorded) + len(self._newer)

    def _row(self, number: int) -> LogRow:
        recorded = len(self._recorded)
        return self._recorded.row(number) if number < recorded else self._newer.row(number - recorded)

    def _find(self, seq: int, *, is_group: bool = False) -> int:
        """Return the number of the row of an event's line, or of the nearest earlier one; 0 if there is none."""
        found = self._newer.find(seq, is_group=is_group)
        if found >= 0:
            return len(self._recorded) + found
        return max(self._recorded.find(seq, is_group=is_group), 0)

    def _followed_row(self) -> int:
        """Return the number of the row at the playhead; in the present of a live run, of the newest row."""
        return self._num_rows - 1 if self._playhead_seq is None else self._find(self._playhead_seq)

    def _cursor_row(self) -> int:
        if self._cursor is None:
            return self._followed_row()
        return self._find(self._cursor[0], is_group=self._cursor[1])

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the rows around the cursor."""
        num_lines = self._recorded.num_lines + self._newer.num_lines
        searched = "" if self._fraction_searched == 1 else f" · searched {100 * self._fraction_searched:.0f} %"
        self.panel_subtitle = strip_control(f"{num_lines:,} line{'s' * (num_lines != 1)} · {self.filter}{searched}")
        self._visible = []
        if not self._num_rows:
            text = "no log line yet" if not self._newest_seq else "no matching line"
            return [self.line().append(f" {text}{searched and ' yet'}", "dim")]
        cursor = self._cursor_row()
        top = min(max(cursor - size.height // 2, 0), max(self._num_rows - size.height, 0))
        lines: list[Line] = []
        for number in range(top, min(top + size.height, self._num_rows)):
            if number == len(self._recorded) and searched:
                self._visible.append(None)
                lines.append(self.line().append(" … not read yet", "dim"))
            self._visible.append(number)
            lines.append(self._draw_row(self._row(number), size.width, selected=number == cursor))
        surplus = len(lines) - size.height
        if surplus > 0 and cursor == self._visible[-1]:  # the cursor stays in sight
            del lines[:surplus], self._visible[:surplus]
        return lines

    def _draw_row(self, row: LogRow, width: int, *, selected: bool) -> Line:
        entry, playhead = row.line, self._playhead_seq
        is_later = playhead is not None and entry.seq > playhead
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append(f"{format_time_of_day(entry.time)} ", "dim")
        line.append(SEVERITIES[entry.severity].glyph if entry.severity != "info" else " ", entry.severity).append(" ")
        line.append("  " if row.in_group else "" if row.num_lines == 1 else "- " if row.is_open else "+ ", "dim")
        role = "dim" if is_later else "normal" if entry.severity == "info" else "bright"
        return line.append(ellipsise(strip_control(row.text), width - line.width), role)

    def _select(self, number: int) -> None:
        """Select a row. The row at the playhead, or the newest row of a live run, is followed from then on."""
        row = self._row(number)
        self._cursor = None if number == self._followed_row() else (row.line.seq, row.num_lines > 1)
        self.update()

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        if self._num_rows:
            self._select(min(max(self._cursor_row() + rows, 0), self._num_rows - 1))

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        """Select the oldest row."""
        self.action_move(-self._num_rows)

    def action_last(self) -> None:
        """Select the newest row."""
        self.action_move(self._num_rows)

    def action_kind(self) -> None:
        """Show only the next category, or all lines after the last category."""
        categories = [None, *LOG_CATEGORIES]
        self._set_filter(category=categories[(categories.index(self.filter.category) + 1) % len(categories)])

    def action_level(self) -> None:
        """Select the next minimum severity."""
        levels = SEVERITY_LEVELS
        self._set_filter(min_severity=levels[(levels.index(self.filter.min_severity) + 1) % len(levels)])

    def action_env(self) -> None:
        """Switch between lines about the selected env and all lines."""
        self._set_filter(env=self.view.selected_env if self.filter.env is None else None)

    def action_clear(self) -> None:
        """Reset the filter."""
        self._set_filter(**LogFilter()._asdict())

    def search(self, text: str) -> None:
        """Show only lines that contain a text."""
        if text != self.filter.text:
            self._set_filter(text=text)

    def action_choose(self) -> None:
        """Go to the moment and the env of the selected line; open or close a group."""
        if not self._num_rows:
            return
        number = self._cursor_row()
        row = self._row(number)
        if row.num_lines == 1:
            self.post_message(GoToMoment(row.line.seq, row.line.env))
            return
        recorded = len(self._recorded)
        if number < recorded:
            self._recorded.toggle(number)
        else:
            self._newer.toggle(number - recorded)
        self._cursor = row.line.seq, True
        self.update()

    def on_click(self, event: Click) -> None:
        """Select the clicked line; choose it on a double click."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._visible):
            number = self._visible[offset.y]
            if number is not None:
                self._select(number)
                if event.chain == 2:
                    self.action_choose()
