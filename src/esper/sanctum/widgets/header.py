"""The top lines of every screen: Header with the run's status and progress, and Tabs of the screens."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size

from esper.domain import TERMINAL_STATUSES
from esper.formatting import format_duration, strip_control
from esper.sanctum.bindings import SCREEN_INFO
from esper.sanctum.source import RunSource
from esper.sanctum.symbols import STATUS_SYMBOLS, compact_cell, ellipsise
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.sentences import pluralise

_WIDE_COLS = 110
"""Minimum width of the terminal for tabs with names."""


class StatusLabel(NamedTuple):
    """Status of the run, as the header shows it."""

    name: str
    """Word for the status, a key of `STATUS_SYMBOLS`."""
    role: str
    note: str = ""
    """Pending requests, or the reason for which the run ended; empty for none."""


def run_status(source: RunSource) -> StatusLabel:
    """Return the status of the run. It follows from the run's events; a pending request appears only in the note."""
    state = source.state
    if not source.live:
        moment = {"paused": "of a pause", "failed": "of a failed run"}.get(state.status, "")
        following = "following" if source.following and state.status not in TERMINAL_STATUSES else ""
        ghost = source.ghost_run.comparison_label if source.ghost_run else ""
        return StatusLabel("REPLAY", "curve", " ".join(filter(None, (_reading(source), following, moment, ghost))))
    note = _note(source)
    if source.playback is not None:
        newer = f"+{source.live_state.seq - state.seq} events"
        return StatusLabel("PAST", "warning", f"{newer} {note or source.live_state.status}")
    match state.status:
        case "failed":
            return StatusLabel("FAILED", "error", state.reason or "")
        case "done" | "stopped" as ended:
            return StatusLabel(ended.upper(), "bright", state.reason or "")
        case _:
            pass
    if not source.alive:
        return StatusLabel("FAILED", "error", "the engine stopped unexpectedly")
    match state.status:
        case "paused" if state.cause:
            return StatusLabel("HELD", "error", note)
        case "paused":
            return StatusLabel("PAUSED", "warning", note)
        case "starting":
            return StatusLabel("STARTING", "bright", note)
        case _:
            return StatusLabel("RUNNING", "info", note)


def _note(source: RunSource) -> str:
    """Return the pending requests, or the reason for which the run accepts none."""
    if source.attached and source.live_state.started is None:
        return "reading the recording…"
    if source.requests is None:
        return ""
    return "read-only" if source.requests.disabled_reason else source.requests.text or _reading(source)


def _reading(source: RunSource) -> str:
    """Return how much of the recording was read, while it is read for the first time; else an empty text."""
    return "" if source.fraction_read is None else f"reading {100 * source.fraction_read:.0f} %"


def _is_partway(source: RunSource) -> bool:
    """Return True if a held playhead stands within a step."""
    return source.playback is not None and not source.playback.playing and source.state.working > 0


class Header(Panel):
    """Line with task, policy, envs, lanes, status, progress, throughput and remaining time."""

    DEFAULT_CSS = """
    Header { height: 1; padding: 0 1; }
    """

    def cache_key(self) -> Hashable:
        """Return the event number, the status, and the place in the step, which also depend on the source."""
        return self.state.seq, run_status(self.view.source), _is_partway(self.view.source)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line: the run's identity to the left, status and progress to the right."""
        width = size.width
        right = self._draw_right(width)
        left = self.line()
        started = self.state.started
        if started is None:
            left.append("Esper Sanctum", "title")
        else:
            room = width - right.width - 2
            lanes = " ".join(strip_control(lane) for lane in dict.fromkeys(started.lanes))
            left.append(ellipsise(strip_control(started.task), max(room, 0)), "title")
            for text in (strip_control(started.policy), pluralise(len(started.lanes), "env"), f"on {lanes}"):
                if left.width + 2 + len(text) <= room:
                    left.append("  " if width >= 100 else " ").append(text, "dim")
        return [left.pad_to(width - right.width).extend(right)]

    def _draw_right(self, width: int) -> Line:
        wide = width >= 100
        line = self.line()
        name, role, note = run_status(self.view.source)
        line.append(f"{STATUS_SYMBOLS[name].glyph} {name}", role)
        if note:
            line.append(f" {ellipsise(strip_control(note), width // 3)}", "bright")
        started, state = self.state.started, self.state
        if started is None:
            return line
        done = state.steps_done / state.steps_total if state.steps_total else 0.0
        line.append("  round " if wide else "  ", "dim").append(str(state.round), "bright").append(
            f"/{started.rounds} ", "dim"
        )
        line.append_bar(done, (14 if wide else 8) if width < 160 else 28)
        partway = _is_partway(self.view.source)
        step = state.step + partway
        line.append("  step " if wide else "  ", "dim").append(f"{step:>{len(str(started.steps))}}", "bright")
        line.append(f"/{started.steps}", "dim").append(", partway" if partway else "", "warning")
        rate = state.steps_per_second
        line.append("  env-steps " if width >= 160 else "  ", "dim").append_cell(compact_cell(rate)).append("/s", "dim")
        if state.status not in TERMINAL_STATUSES:
            line.append(f"  {format_duration(state.seconds_left)}").append(" left" if wide else "", "dim")
        return line


class Tabs(Panel):
    """Numbers and names of the screens; on a narrow terminal, only the open screen has its name.

    A click on a tab opens its screen.

    Args:
        view: State that all panels share.
        open_screen: Name of the open screen; None if it has no tab.
    """

    DEFAULT_CSS = """
    Tabs { height: 1; width: auto; padding: 0 1; }
    """

    def __init__(self, view: ViewState, open_screen: str | None) -> None:
        super().__init__(view)
        self._open_screen = open_screen
        self._tab_ranges: list[tuple[range, str]] = []
        """Columns that each tab occupies, for clicks."""

    def cache_key(self) -> Hashable:
        """Return None: the tabs of a screen depend on nothing but the size."""
        return None

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002 (Textual's signature)
        """Return the width of all tabs, columns."""
        return self._draw_tabs(wide=viewport.width >= _WIDE_COLS).width

    def draw_lines(self, size: Size) -> list[Line]:  # noqa: ARG002 (the width follows from the content)
        """Draw one line."""
        return [self._draw_tabs(wide=self.app.size.width >= _WIDE_COLS)]

    def _draw_tabs(self, *, wide: bool) -> Line:
        line = self.line()
        self._tab_ranges = []
        for name, info in SCREEN_INFO.items():
            start, is_open = line.width, name == self._open_screen
            line.append(info.key, "key" if is_open else "dim")
            if wide or is_open:
                line.append(f" {name}", "bright" if is_open else "dim")
            self._tab_ranges.append((range(start, line.width), name))
            line.append("  " if wide else " ")
        return line

    async def on_click(self, event: Click) -> None:
        """Open the screen of the clicked tab."""
        offset = event.get_content_offset(self)
        for columns, name in self._tab_ranges:
            if offset is not None and offset.x in columns:
                await self.run_action(f"app.go('{name}')")
