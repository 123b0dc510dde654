"""The first line: what runs, whether it is alive, how far it is."""

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


class StatusLabel(NamedTuple):
    """The word that says how the run is."""

    name: str
    """A key of `symbols.STATUSES`."""
    role: str
    note: str = ""
    """What was asked for and not answered, or why the run ended."""


def run_status(source: RunSource) -> StatusLabel:
    """How the run is, from its events; never from what was merely asked for."""
    state = source.state
    if not source.live:
        moment = {"paused": "of a pause", "failed": "of a failed run"}.get(state.status, "")
        following = "following" if source.following and state.status not in TERMINAL_STATUSES else ""
        beside = source.ghost_run.comparison_label if source.ghost_run else ""
        return StatusLabel("REPLAY", "curve", " ".join(filter(None, (following, moment, beside))))
    note = _note(source)
    if source.playback is not None:
        ahead = f"+{source.live_state.seq - state.seq} events"
        return StatusLabel("PAST", "warning", f"{ahead} {note or source.live_state.status}")
    match state.status:
        case "failed":
            return StatusLabel("FAILED", "error", state.reason or "")
        case "done" | "stopped" as ended:
            return StatusLabel(ended.upper(), "bright", state.reason or "")
    if not source.alive:
        return StatusLabel("FAILED", "error", "the engine ended without a word")
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
    """What was asked for and not answered, or why nothing can be."""
    if source.attached and source.live_state.started is None:
        return "reading the recording…"
    if source.requests is None:
        return ""
    return "read-only" if source.requests.disabled_reason else source.requests.text


class Header(Panel):
    """Task, policy, envs and lanes; status; progress; throughput; time left."""

    DEFAULT_CSS = """
    Header { height: 1; padding: 0 1; }
    """

    def cache_key(self) -> Hashable:
        """The state, and what only the source knows."""
        return self.state.seq, run_status(self.view.source)

    def draw_lines(self, size: Size) -> list[Line]:
        """One line: the identity to the left, status and progress to the right."""
        width = size.width
        right = self._right(width)
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

    def _right(self, width: int) -> Line:
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
        line.append("  step " if wide else "  ", "dim").append(f"{state.step:>{len(str(started.steps))}}", "bright")
        line.append(f"/{started.steps}", "dim")
        rate = state.steps_per_second
        line.append("  env-steps " if width >= 160 else "  ", "dim").append_cell(compact_cell(rate)).append("/s", "dim")
        if state.status not in TERMINAL_STATUSES:
            line.append(f"  {format_duration(state.seconds_left)}").append(" left" if wide else "", "dim")
        return line


class Tabs(Panel):
    """Numbers and names; where it is narrow, numbers alone but for the open screen. A click goes there."""

    DEFAULT_CSS = """
    Tabs { height: 1; width: auto; padding: 0 1; }
    """

    def __init__(self, view: ViewState, here: str | None) -> None:
        super().__init__(view)
        self._open_screen = here
        """Name of the open screen; None on one without a tab."""
        self._places: list[tuple[range, str]] = []

    def cache_key(self) -> Hashable:
        """Always the same."""
        return None

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002 (Textual's signature)
        """What the tabs take."""
        return self._tabs(wide=viewport.width >= 110).width

    def draw_lines(self, size: Size) -> list[Line]:  # noqa: ARG002 (it is as wide as it wants to be)
        """One line."""
        return [self._tabs(wide=self.app.size.width >= 110)]

    def _tabs(self, *, wide: bool) -> Line:
        line = self.line()
        self._places = []
        for name, place in SCREEN_INFO.items():
            start, open_ = line.width, name == self._open_screen
            line.append(place.key, "key" if open_ else "dim")
            if wide or open_:
                line.append(f" {name}", "bright" if open_ else "dim")
            self._places.append((range(start, line.width), name))
            line.append("  " if wide else " ")
        return line

    async def on_click(self, event: Click) -> None:
        """Go to the screen under the pointer."""
        offset = event.get_content_offset(self)
        for places, name in self._places:
            if offset is not None and offset.x in places:
                await self.run_action(f"app.go('{name}')")
