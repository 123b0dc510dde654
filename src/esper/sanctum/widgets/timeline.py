"""Timeline of a replay: playhead, speed, marks and time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from textual.events import MouseDown, MouseMove, MouseUp
from textual.geometry import Size

from esper.common.formatting import format_clock
from esper.common.plots.axis import next_nice
from esper.common.plots.sparkline import BLOCK_CHARS
from esper.recordings.files.segments import ReadError
from esper.recordings.history.playback import Playback
from esper.recordings.history.timeline import ANOMALY_KINDS, MARK_GROUPS, Mark, MarkKind
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.symbols import HELD_PLAYBACK_GLYPH, MARK_SYMBOLS
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel

PLAYHEAD_GLYPH = "●"
HEAT_GLYPHS = BLOCK_CHARS
"""Number of anomalies in a cell of the timeline, relative to the cell with the most."""
_MIN_ROWS_FOR_HEAT = 34
"""Minimum height of the terminal for the line of anomalies; with the focus, the legend of the marks is in its place."""
_MIN_ROWS_FOR_LEGEND = 50
"""Minimum height of the terminal for a third line, the legend of the marks."""
_MIN_ROUND_COLS = 4
"""Minimum mean distance of two ticks at the starts of rounds, columns."""
_MAX_FRACTION_AHEAD = 0.25
"""Fraction of the bar by which a live run may be ahead of its end, before the bar is drawn to a new scale."""
_MIN_AHEAD_S = 10.0
"""The same in seconds, for a run that has just begun."""
_AHEAD_COLS = 17
"""Columns for the time that a live run is ahead of the bar."""


class Timeline(Panel, can_focus=True):
    """Bar with marks and the playhead, which can be dragged with the mouse; hidden if nothing is played back.

    On a high terminal a second line above the bar shows where anomalies are frequent.
    """

    BINDINGS = bindings(KeyCategory.TIMELINE)

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._track = range(0)
        """Columns of the bar."""
        self._bins: tuple[Hashable, list[Mark | None], list[int]] = (None, [], [])
        """Cached result of `_bin_marks`, with everything that it depends on."""
        self._frozen_end: float | None = None
        """End of the bar while the past of a live run is shown, recorded seconds."""

    def update(self) -> None:
        """Show or hide the timeline and its second line, and draw it."""
        playback = self.view.source.playback
        self.display = playback is not None
        if playback is None:
            self._frozen_end = None
        self.set_class(playback is not None and self.app.size.height >= _MIN_ROWS_FOR_HEAT, "-heat")
        self.set_class(playback is not None and self.app.size.height >= _MIN_ROWS_FOR_LEGEND, "-legend")
        super().update()

    def cache_key(self) -> Hashable:
        """Return position, speed, length and marks of the playback, and the focus; None if nothing is played back."""
        playback = self.view.source.playback
        if playback is None:
            return None
        history = playback.history
        playhead = (playback.position, playback.playing, playback.speed)
        return (
            *playhead,
            history.length,
            history.fraction_read,
            len(history.marks),
            self.has_focus,
            self.view.mark_filter,
        )

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the play or pause symbol, the speed, the bar and the time."""
        playback = self.view.source.playback
        if playback is None:
            return []
        line = self.line("▶ " if playback.playing else HELD_PLAYBACK_GLYPH, "curve")
        speed = "max" if playback.speed == float("inf") else f"{playback.speed:g}×"
        line.append(f" {speed}".ljust(7))
        fraction = self.view.source.fraction_read
        reading = "" if fraction is None else f", {100 * fraction:.0f} % read"
        end = self._end_of_bar(playback)
        times = f"  {format_clock(playback.elapsed)} of {format_clock(end)}{reading}"
        if self.view.source.live:
            ahead = int(playback.duration - end)
            times += (f", live +{format_clock(ahead)}" if ahead else "").ljust(_AHEAD_COLS)
        room = max(size.width - line.width - len(times), 1)
        self._track = range(line.width, line.width + room)
        marks, anomaly_counts = self._bin_marks(playback, room)
        lines = [self._draw_heat(anomaly_counts)] if size.height > 1 else []
        if size.height > 2 or (lines and self.has_focus):
            lines[-1 if size.height == 2 else 1 :] = [self._draw_legend(marks, size.width)]
        self._append_track(line, playback, marks)
        return [*lines, line.append(times, "dim")]

    def _bin_marks(self, playback: Playback, room: int) -> tuple[Sequence[Mark | None], Sequence[int]]:
        """Return for each cell of the bar its most important mark, and its number of anomalies."""
        history = playback.history
        mark_filter, end = self.view.mark_filter, self._end_of_bar(playback)
        key = (id(history), end, len(history.marks), room, mark_filter)
        if self._bins[0] != key:
            marks: list[Mark | None] = [None] * room
            anomaly_counts = [0] * room
            rounds: list[Mark] = []
            for mark in history.marks:
                if mark.elapsed > end:
                    break
                if mark.kind is MarkKind.ROUND:
                    rounds.append(mark)
                if mark.kind is MarkKind.ROUND or not mark_filter.shows(mark):
                    continue
                cell = _cell(mark.elapsed, end, room)
                known = marks[cell]
                if known is None or mark.kind < known.kind:
                    marks[cell] = mark
                anomaly_counts[cell] += mark.kind in ANOMALY_KINDS
            for mark in rounds[:: math.ceil(next_nice(len(rounds) * _MIN_ROUND_COLS / room))]:
                cell = _cell(mark.elapsed, end, room)
                marks[cell] = marks[cell] or mark
            self._bins = (key, marks, anomaly_counts)
        return self._bins[1], self._bins[2]

    def _draw_heat(self, anomaly_counts: Sequence[int]) -> Line:
        line, maximum = self.line(), max(anomaly_counts, default=0)
        line.append("anomalies".ljust(self._track.start), "dim")
        for count in anomaly_counts:
            line.append(HEAT_GLYPHS[(len(HEAT_GLYPHS) - 1) * count // maximum] if count else " ", "warning")
        return line

    def _end_of_bar(self, playback: Playback) -> float:
        """Return the recorded seconds at the end of the bar.

        The past of a live run keeps its scale while the run goes on, so that the marks do not move under the reader's
        eyes. It is drawn to a new scale when the run is far ahead, or the playhead beyond the end.
        """
        if not self.view.source.live:
            return playback.duration
        end = self._frozen_end
        if end is not None:
            limit = end + max(end * _MAX_FRACTION_AHEAD, _MIN_AHEAD_S)
            if playback.elapsed <= end <= playback.duration <= limit:
                return end
        self._frozen_end = playback.duration
        return playback.duration

    def _draw_legend(self, marks: Sequence[Mark | None], width: int) -> Line:
        """Draw the group of marks, and the symbols in the bar with their names, as far as they fit."""
        group = self.view.mark_group
        line = self.line(f"marks: {group}", "bright").append(
            f"  {self.view.key_names['timeline.kind']} next kind", "dim"
        )
        for kind in sorted({mark.kind for mark in marks if mark is not None}):
            symbol, role = MARK_SYMBOLS[kind]
            if line.width + len(symbol.name) + 4 <= width:
                line.append(f"  {symbol.glyph}", role).append(f" {symbol.name}", "dim")
        if not any(marks):
            line.append("  none", "dim")
        return line

    def _append_track(self, line: Line, playback: Playback, marks: Sequence[Mark | None]) -> None:
        at = _cell(playback.elapsed, self._end_of_bar(playback), len(marks))
        for column, mark in enumerate(marks):
            if column == at:
                line.append(PLAYHEAD_GLYPH, "key" if self.has_focus else "bright")
            elif mark is not None:
                symbol, role = MARK_SYMBOLS[mark.kind]
                if mark.kind is MarkKind.ROUND and column < at:
                    role = "curve"
                line.append(symbol.glyph, role)
            else:
                line.append(*("━", "curve") if column < at else ("─", "faint"))

    def on_mouse_down(self, event: MouseDown) -> None:
        """Move the playhead to the pointer and start dragging."""
        self.capture_mouse()
        self._seek_to_pointer(event)

    def on_mouse_move(self, event: MouseMove) -> None:
        """Move the playhead to the pointer while dragging."""
        if self.app.mouse_captured is self:
            self._seek_to_pointer(event)

    def on_mouse_up(self, event: MouseUp) -> None:
        """Stop dragging."""
        if self.app.mouse_captured is self:
            self.release_mouse()
            self._seek_to_pointer(event)

    def _seek_to_pointer(self, event: MouseDown | MouseMove | MouseUp) -> None:
        playback = self.view.source.playback
        if playback is None or not self._track:
            return
        column = event.x - self.gutter.left - self._track.start
        fraction = min(max(column / max(len(self._track) - 1, 1), 0.0), 1.0)
        try:
            playback.seek_time(fraction * self._end_of_bar(playback))
        except ReadError as error:
            self.notify(str(error), severity="error")
        self.update()  # the other panels are updated in the next tick

    def action_next_group(self) -> None:
        """Show and visit only the next kind of marks, or all kinds after the last."""
        groups = [*MARK_GROUPS]
        self.view.mark_group = groups[(groups.index(self.view.mark_group) + 1) % len(groups)]
        self.notify(f"Marks: {self.view.mark_group}", timeout=2)
        self.update()


def _cell(elapsed: float, duration: float, num_cells: int) -> int:
    """Return the cell of a time."""
    return min(int(elapsed / duration * num_cells), num_cells - 1) if duration > 0 else 0
