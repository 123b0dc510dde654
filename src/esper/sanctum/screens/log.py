"""The log screen: log lines with filters and a text search."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from textual.app import ComposeResult
from textual.geometry import Size
from textual.timer import Timer
from textual.widgets import Input

from esper.common.formatting import format_time_of_day, strip_control
from esper.recordings.history.log_database import GROWTH_CATEGORIES, LOG_CATEGORIES, SEVERITY_LEVELS, LogFilter
from esper.recordings.history.run_log import LogRow, RunLog
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.search import SearchBox, SearchScreen
from esper.sanctum.symbols import SEVERITIES, ellipsise
from esper.sanctum.view import GoToMoment, ViewState
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.row_list import RowList

SEARCH_SLICE_S = 0.03
"""Seconds of searching between two frames."""
SEARCH_INTERVAL_S = 0.05
"""Seconds between two slices of a search."""


class LogScreen(SearchScreen):
    """The log lines, and a search box that opens on request."""

    AUTO_FOCUS = "LogList"
    FITS_SMALL = True
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.LOG)

    def body(self) -> ComposeResult:
        """Yield the log lines and the hidden search box."""
        yield LogList(self.view)
        yield SearchBox(placeholder="text to search   Enter keep   Esc clear")

    def on_screen_resume(self) -> None:
        """Read the whole recording of a live run while the screen is open."""
        self.view.source.read_log(True)
        super().on_screen_resume()

    def on_screen_suspend(self) -> None:
        """Stop to read the recording of a live run, and to search."""
        self.view.source.read_log(False)
        self.query_one(LogList).pause()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while the user types."""
        self.query_one(LogList).search(event.value)

    def on_input_submitted(self) -> None:
        """Keep the search, close its box, and focus the log lines."""
        super().on_input_submitted()
        lines = self.query_one(LogList)
        lines.search(self.query_one(SearchBox).value)  # action_clear may have reset the filter since the user typed
        lines.focus()


class LogList(RowList[int]):
    """Log lines of the whole run, newest at the bottom.

    The cursor follows the newest line, or the line at the playhead, until the user moves it.
    """

    PANEL_TITLE = "log"
    METRICS = ("log",)
    BINDINGS = bindings(KeyCategory.LOG)
    HEADING_ROWS = 0
    _timer: Timer
    """Continues a search."""

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._log = RunLog()
        self._cursor: tuple[int, bool] | None = None
        """Event number of the selected row's line, and True if the row is a group; None to follow."""
        self._lines_shown: list[int | None] = []
        """Number of the row in each line of the panel; None for a line that is no row."""

    def on_mount(self) -> None:
        """Create the timer that continues a search."""
        self._timer = self.set_interval(SEARCH_INTERVAL_S, self.update, pause=True)

    def update(self) -> None:
        """Search on, and draw the rows if anything changed."""
        if not self.size:
            return
        source = self.view.source
        self._log.update(source.history, source.live_state.log if source.live else (), SEARCH_SLICE_S)
        self.set_keys(range(len(self._log)))
        (self._timer.resume if self._log.is_waiting else self._timer.pause)()
        super().update()

    def pause(self) -> None:
        """Search no further until the next update."""
        self._timer.pause()

    @property
    def filter(self) -> LogFilter:
        """Condition for lines to be shown."""
        return self._log.filter

    def _set_filter(self, **changes: Any) -> None:
        """Change conditions of the filter, and search again."""
        self._log.set_filter(**changes)
        self.update()

    def cache_key(self) -> Hashable:
        """Return a key that changes with the rows, the filter, the cursor and the playhead."""
        log = self._log
        found = (len(log), log.num_lines, log.last_seq, log.fraction_searched)
        return found, log.filter, self._cursor, self._playhead_seq

    @property
    def _playhead_seq(self) -> int | None:
        """Number of the event at the playhead; None in the present of a live run."""
        return self.state.seq if self.view.source.playback is not None else None

    def _followed_row(self) -> int:
        """Return the number of the row at the playhead; in the present of a live run, of the newest row."""
        return len(self._log) - 1 if self._playhead_seq is None else self._log.find(self._playhead_seq)

    @property
    def selected(self) -> int:
        """Number of the row under the cursor."""
        if self._cursor is None:
            return self._followed_row()
        return self._log.find(self._cursor[0], is_group=self._cursor[1])

    def select(self, key: int) -> None:
        """Select a row. The row at the playhead, or the newest row of a live run, is followed from then on."""
        row = self._log.row(key)
        self._cursor = None if key == self._followed_row() else (row.line.seq, row.num_lines > 1)
        self.update()

    def key_at(self, x: int, y: int) -> int | None:  # noqa: ARG002 (rows are not side by side)
        """Return the number of the row in a line of the content; None if there is none."""
        return self._lines_shown[y] if y < len(self._lines_shown) else None

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the rows around the cursor."""
        log, num_lines, num_rows = self._log, self._log.num_lines, len(self._log)
        searched = ""
        if log.read_until is not None:
            searched = f" · searched up to {format_time_of_day(log.read_until)}"
        elif log.fraction_searched < 1:
            searched = f" · searched {100 * log.fraction_searched:.0f} %"
        self.panel_subtitle = strip_control(f"{num_lines:,} line{'s' * (num_lines != 1)} · {log.filter}{searched}")
        self._lines_shown, self.num_visible = [], size.height
        if not num_rows:
            text = "no log line yet" if not log.last_seq else "no matching line"
            return [self.line(f" {text}{searched and ' yet'}", "dim")]
        cursor = self.selected
        top = min(max(cursor - size.height // 2, 0), max(num_rows - size.height, 0))
        lines: list[Line] = []
        for number in range(top, min(top + size.height, num_rows)):
            if number == log.num_read_rows and searched:
                self._lines_shown.append(None)
                lines.append(self.line(" … not read yet", "dim"))
            self._lines_shown.append(number)
            lines.append(self._draw_row(log.row(number), size.width, selected=number == cursor))
        surplus = len(lines) - size.height
        if surplus > 0 and cursor == self._lines_shown[-1]:  # the cursor stays in sight
            del lines[:surplus], self._lines_shown[:surplus]
        return lines

    def _draw_row(self, row: LogRow, width: int, *, selected: bool) -> Line:
        entry, playhead = row.line, self._playhead_seq
        is_later = playhead is not None and entry.seq > playhead
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append(f"{format_time_of_day(entry.time)} ", "dim")
        line.append(f"{strip_control(entry.moment):>{self.view.moment_cols}} ", "dim")
        line.append(SEVERITIES[entry.severity].glyph if entry.severity != "info" else " ", entry.severity).append(" ")
        line.append("  " if row.in_group else "" if row.num_lines == 1 else "- " if row.is_open else "+ ", "dim")
        role = "dim" if is_later else "normal" if entry.severity == "info" else "bright"
        return line.append(ellipsise(strip_control(row.text), width - line.width), role)

    def action_kind(self) -> None:
        """Show only the next category, or all lines after the last category."""
        left_out = GROWTH_CATEGORIES if self.view.source.state.search is None else ()
        categories = [None, *(category for category in LOG_CATEGORIES if category not in left_out)]
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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the key to the app if there is no filter."""
        return self.filter != LogFilter() if action == "clear" else super().check_action(action, parameters)

    def search(self, text: str) -> None:
        """Show only lines that contain a text."""
        if text != self.filter.text:
            self._set_filter(text=text)

    async def action_open(self) -> None:
        """Go to the moment and the env of the selected line; open or close a group."""
        if not len(self._log):
            return
        number = self.selected
        row = self._log.row(number)
        if row.num_lines == 1:
            self.post_message(GoToMoment(row.line.seq, row.line.env))
            return
        self._log.toggle(number)
        self._cursor = row.line.seq, True
        self.update()
