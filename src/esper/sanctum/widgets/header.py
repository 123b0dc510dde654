"""The top lines of every screen: Header with the run's status and progress, and Tabs of the screens."""

from __future__ import annotations

import math
from collections.abc import Hashable
from operator import itemgetter
from statistics import median
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size

from esper.common.formatting import format_duration, pluralise, strip_control
from esper.sanctum.keys import SCREEN_INFO
from esper.sanctum.source import RunSource
from esper.sanctum.symbols import HELD_PLAYBACK_GLYPH, RUN_STATES, compact_cell, ellipsise
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel

_WIDE_COLS = 110
"""Minimum width of the terminal for tabs with names and wide gaps."""
_NAMED_COLS, _NAMED_HEALTHY_COLS = 100, 90
"""Minimum width of the terminal for tabs with names, with anomalies beside them and without."""
MIN_GROWTH_COLS = 110
"""Minimum width of the terminal for what growth brought; in a narrower one, it stands in the line below."""
_MIN_NAME_COLS = 4
"""Minimum width of the shortened name of the run; with less room, it is left out."""
_MAX_NAME_COLS = 16
"""Maximum number of columns that stay free for the name of the run beside the less important parts of the progress."""
_NUM_ESSENTIAL_PARTS = 3
"""Number of parts of the progress that may take the columns of the name: round, step and times."""
_ROUND_COLS = 16
"""Columns that stay free for the round beside a long note."""
_MIN_LONG_STEP_S = 2.0
"""Minimum duration of a step whose progress is shown, seconds."""
_USUAL_STEPS = 50
"""Number of last steps whose median duration is the usual one."""
_PROGRESS_INTERVAL_S = 1.0
"""Seconds between two updates of the progress within a step."""


_MOMENTS = {
    "paused": "of a pause",
    "held": "of a held run",
    "stuck": "of a stuck call",
    "silent": "of a silent run",
    "failed": "of a failed run",
    "crashed": "of a crashed run",
}
"""Notes on the moment that a replay shows. Keyed by the name of the status."""
_STATES_WITHOUT_RATE = frozenset({"starting", "silent", "stuck", "crashed"})
"""Names of the states of a run in which its last rate and its time left mean nothing."""
_PRESENTS = {"running": "continues", "crashed": "has crashed"}
"""Present activity of a live run whose past is shown, keyed by the name of its status."""


class StatusLabel(NamedTuple):
    """Status of the run, as the header shows it."""

    name: str
    """Key of `RUN_STATES`."""
    note: str = ""
    """Pending requests, or the note of the status; empty for none."""
    glyph: str = ""
    """Glyph in place of that of `RUN_STATES`; empty for that one."""


def status_label(view: ViewState) -> StatusLabel:
    """Return the status of the run, with pending requests as its note: it changes only when an event confirms one."""
    source, status = view.source, view.status
    if not source.live:
        moment = _MOMENTS.get(status.name, "")
        following = "following" if source.following and not status.has_ended else ""
        ghost = source.ghost_run.comparison_label if source.ghost_run else ""
        is_held = not following and source.playback is not None and not source.playback.playing
        note = ", ".join(filter(None, (_reading(source), "paused" if is_held else following, moment, ghost)))
        return StatusLabel("replay", note, HELD_PLAYBACK_GLYPH if is_held else "")
    note = _note(source)
    if source.playback is not None:
        present = _PRESENTS.get(status.name) or ("has ended" if status.has_ended else f"is {status.name}")
        behind = _time_behind(source.live_state.elapsed - source.state.elapsed)
        return StatusLabel("past", f"{behind} behind; {note or f'the live run {present}'}")
    if status.has_ended:
        return StatusLabel(status.name, status.note)
    if status.name == "stuck" and source.requests is not None and source.requests.stop_requested:
        call = next(iter(source.live_state.overdue.values()))
        note = f"ends at {call.max_seconds:.0f} s:"
    return StatusLabel(status.name, f"{note} {status.note}".strip())


def _note(source: RunSource) -> str:
    """Return the pending requests, or the reason for which the run accepts none."""
    if source.requests is None:
        return ""
    reading = "reading the recording…" if source.attached and source.live_state.started is None else _reading(source)
    return "read-only" if source.requests.disabled_reason else source.requests.text or reading


def _reading(source: RunSource) -> str:
    """Return how much of the recording was read, while it is read for the first time; else an empty text."""
    return "" if source.fraction_read is None else f"reading {100 * source.fraction_read:.0f} %"


def _is_partway(source: RunSource) -> bool:
    """Return True if a held playhead stands within a step."""
    return source.playback is not None and not source.playback.playing and source.state.working > 0


class Header(Panel):
    """Line with run, task, policy, envs, lanes, status, progress, throughput, elapsed time and time left.

    A recording has a position in place of the two times.
    """

    def cache_key(self) -> Hashable:
        """Return the event number, the status, the place in the step, whether growth helped, and the position in a
        recording."""
        source, playback = self.view.source, self.view.source.playback
        position = playback and (int(playback.elapsed), int(playback.duration))
        shown = status_label(self.view), _is_partway(source), progress_in_step(self.view), self.view.growth_text
        return self.state.seq, shown, position

    def on_mount(self) -> None:
        """Show the progress within a step also while no events arrive."""
        self.set_interval(_PROGRESS_INTERVAL_S, self.update)

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
            if room < _MIN_NAME_COLS:
                return [right]
            lanes = " ".join(strip_control(lane) for lane in dict.fromkeys(started.lanes))
            run, task = strip_control(started.run), strip_control(started.task)
            left.append(ellipsise(run, room, keep_end=True), "title")
            policy, envs = strip_control(started.policy), pluralise(len(started.lanes), "env")
            for text in ("" if run.startswith(task) else task, policy, envs, f"on {lanes}"):
                if text and left.width + 2 + len(text) <= room:
                    left.append("  " if width >= 100 else " ").append(text, "dim")
        return [left.pad_to(width - right.width).extend(right)]

    def _draw_right(self, width: int) -> Line:
        label = status_label(self.view)
        symbol, role = RUN_STATES[label.name]
        line = self.line(f"{label.glyph or symbol.glyph} {label.name.upper()}", "bright" if role == "dim" else role)
        room = width - _ROUND_COLS if label.name in ("past", "stuck") else width // 3
        note = ellipsise(strip_control(label.note), room)
        line.append(f"{':' if label.name == 'past' else ''} {note}" if note else "", "bright")
        if self.state.started is None:
            return line
        parts = self._progress(width)
        name = min(len(self.state.started.run), _MAX_NAME_COLS) + 2
        while len(parts) > 1:
            room = width - name if len(parts) > _NUM_ESSENTIAL_PARTS else width
            if line.width + sum(part.width for _, part in parts) <= room:
                break
            parts.remove(max(parts, key=itemgetter(0)))
        for _, part in parts:
            line.extend(part)
        return line

    def _progress(self, width: int) -> list[tuple[int, Line]]:
        """Return round, bar, step, worth of growth, rate and times, each with its order: the last is left out first.

        A run that does not train has no rate.
        """
        started, state = self.state.started, self.state
        assert started is not None
        wide = width >= 100
        round_ = self.line("  round " if wide else "  ", "dim").append(str(state.round), "bright")
        if state.search is not None:
            used, word, rest = state.search.describe_progress(state.seconds_trained).partition(" ")
            round_ = self.line("  ").append(used, "bright").append(word + rest, "dim")
        else:
            round_.append(f"/{started.rounds}", "dim")
        bar = self.line(" ").append_bar(state.fraction_done, (14 if wide else 8) if width < 160 else 28)
        step = self.line("  step " if wide else "  ", "dim")
        partway = _is_partway(self.view.source)
        step.append(f"{state.step + partway:>{len(str(started.steps))}}", "bright").append(f"/{started.steps}", "dim")
        step.append(", partway" if partway else "", "warning")
        if in_step := progress_in_step(self.view):
            step.append(f", next {in_step}" if wide else f" +{in_step}", "bright")
        rate = self.line("  ", "dim").append_cell(compact_cell(state.steps_per_second)).append(" env-steps/s", "dim")
        times = self.line("  ").extend(self._times(wide=wide))
        text = self.view.growth_text if width >= MIN_GROWTH_COLS else ""
        growth = [(3, self.line("  ").append(text, "bright"))] if text else []
        rates = [(4, rate)] if self.view.status.name not in _STATES_WITHOUT_RATE else []
        return [(0, round_), (5, bar), (1, step), *growth, *rates, (2, times)]

    def _times(self, *, wide: bool) -> Line:
        """Return elapsed time and time left; of a recording, its position."""
        source, state = self.view.source, self.state
        if source.playback is not None and not source.following:
            elapsed, duration = (
                format_duration(math.floor(seconds)) for seconds in (source.playback.elapsed, source.playback.duration)
            )
            return self.line(elapsed).append(f" of {duration}", "dim")
        line = self.line(format_duration(state.elapsed))
        status = self.view.status
        if state.cause is not None or status.has_ended or status.name in _STATES_WITHOUT_RATE:
            return line.append(" elapsed", "dim")
        line.append(" elapsed, " if wide else ", ", "dim")
        return line.append(format_duration(state.seconds_left)).append(" left", "dim")


def progress_in_step(view: ViewState) -> str:
    """Return how far a long step is, estimated from the time since the last event; empty for a short step."""
    source, state = view.source, view.source.state
    if not source.live or source.playback is not None or view.status.name != "running":
        return ""
    elapsed = view.frame_stats.age
    usual = median(state.walls[-_USUAL_STEPS:]) if state.walls else 0.0
    if (usual or elapsed) < _MIN_LONG_STEP_S:
        return ""
    return f"≈{min(100 * elapsed / usual, 99):.0f} %" if usual else format_duration(elapsed)


def _time_behind(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Tabs(Panel):
    """Numbers and names of the screens; without room, only the open screen has its name.

    A click on a tab opens its screen.

    Args:
        view: State that all panels share.
        open_screen: Name of the open screen; None if it has no tab.
    """

    def __init__(self, view: ViewState, open_screen: str | None) -> None:
        super().__init__(view)
        self._open_screen = open_screen
        self._drawn_style = ("", False, 0)
        """Result of `_style` for which the layout was made."""
        self._tab_ranges: list[tuple[range, str]] = []
        """Columns that each tab occupies, for clicks."""

    def cache_key(self) -> Hashable:
        """Return the gap after a tab, whether all tabs have names, and the screens: only the size also changes them."""
        return self._style(self.app.size.width)

    def update(self) -> None:
        """Draw the tabs, and change their width if the names come or go."""
        if self._drawn_style != self._style(self.app.size.width):
            self.refresh(layout=True)
        super().update()

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002 (Textual's signature)
        """Return the width of all tabs, columns."""
        self._drawn_style = self._style(viewport.width)
        return self._draw_tabs(*self._drawn_style).width

    def draw_lines(self, size: Size) -> list[Line]:  # noqa: ARG002 (the width follows from the content)
        """Draw one line."""
        return [self._draw_tabs(*self._style(self.app.size.width))]

    def _style(self, width: int) -> tuple[str, bool, int]:
        """Return the gap after a tab, True if all tabs have names, and the number of tabs."""
        minimum = _NAMED_COLS if self.state.active_anomalies() else _NAMED_HEALTHY_COLS
        minimum += sum(len(name) + 3 for name in self._names() if SCREEN_INFO[name].is_search)
        return "  " if width >= _WIDE_COLS else " ", width >= minimum, len(self._names())

    def _names(self) -> list[str]:
        """Return the screens of the run. A growth has one that other runs lack."""
        is_growth = self.state.search is not None
        return [name for name, info in SCREEN_INFO.items() if is_growth or not info.is_search]

    def _draw_tabs(self, gap: str, named: bool, _: int) -> Line:
        line = self.line()
        self._tab_ranges = []
        for name in self._names():
            info = SCREEN_INFO[name]
            start, is_open = line.width, name == self._open_screen
            line.append(info.key, "key" if is_open else "dim")
            if named or is_open:
                line.append(f" {name}", "bright" if is_open else "dim")
            self._tab_ranges.append((range(start, line.width), name))
            line.append(gap)
        return line

    async def on_click(self, event: Click) -> None:
        """Open the screen of the clicked tab."""
        offset = event.get_content_offset(self)
        for columns, name in self._tab_ranges:
            if offset is not None and offset.x in columns:
                await self.run_action(f"app.go('{name}')")
