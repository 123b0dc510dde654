"""Timeline of a replay: playhead, speed, marks and time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.events import MouseDown, MouseMove, MouseUp
from textual.geometry import Size

from esper.formatting import format_clock
from esper.history.playback import Playback
from esper.history.timeline import ANOMALY_KINDS, Mark
from esper.recording.segments import ReadError
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.symbols import MARK_SYMBOLS
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel
from esper.text_plot import BLOCK_CHARS

PLAYHEAD_GLYPH = "●"
HEAT_GLYPHS = BLOCK_CHARS
"""Number of anomalies in a cell of the timeline, relative to the cell with the most."""
_MIN_ROWS_FOR_HEAT = 34
"""Minimum height of the terminal for the line of anomalies."""


class Timeline(Panel, can_focus=True):
    """Bar with marks and the playhead, which can be dragged with the mouse; hidden if nothing is played back.

    On a high terminal a second line above the bar shows where anomalies are frequent.
    """

    DEFAULT_CSS = """
    Timeline { height: 1; padding: 0 1; }
    Timeline.-heat { height: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.TIMELINE)]

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._track = range(0)
        """Columns of the bar."""
        self._dragging = False
        self._bins: tuple[Hashable, list[Mark | None], list[int]] = (None, [], [])
        """Cached result of `_bin_marks`, with everything that it depends on."""

    def on_mount(self) -> None:
        """Hide the timeline if nothing is played back."""
        self.display = self.view.source.playback is not None

    def update(self) -> None:
        """Show or hide the timeline and its second line, and draw it."""
        playback = self.view.source.playback
        self.display = playback is not None
        self.set_class(playback is not None and self.app.size.height >= _MIN_ROWS_FOR_HEAT, "-heat")
        super().update()

    def cache_key(self) -> Hashable:
        """Return position, speed, length and marks of the playback, and the focus; None if nothing is played back."""
        playback = self.view.source.playback
        if playback is None:
            return None
        history = playback.history
        playhead = (playback.position, playback.playing, playback.speed)
        return (*playhead, history.length, history.fraction_read, len(history.marks), self.has_focus)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the play or pause symbol, the speed, the bar and the time."""
        playback = self.view.source.playback
        if playback is None:
            return []
        line = self.line().append("▶ " if playback.playing else "❚❚", "curve")
        speed = "max" if playback.speed == float("inf") else f"{playback.speed:g}×"
        line.append(f" {speed}".ljust(7))
        fraction = self.view.source.fraction_read
        reading = "" if fraction is None else f", {100 * fraction:.0f} % read"
        times = f"  {format_clock(playback.elapsed)} of {format_clock(playback.duration)}{reading}"
        room = max(size.width - line.width - len(times), 1)
        self._track = range(line.width, line.width + room)
        marks, anomaly_counts = self._bin_marks(playback, room)
        lines = [self._draw_heat(anomaly_counts)] if size.height > 1 else []
        self._append_track(line, playback, marks)
        return [*lines, line.append(times, "dim")]

    def _bin_marks(self, playback: Playback, room: int) -> tuple[Sequence[Mark | None], Sequence[int]]:
        """Return for each cell of the bar its most important mark, and its number of anomalies."""
        history = playback.history
        key = (id(history), history.length, len(history.marks), room)
        if self._bins[0] != key:
            marks: list[Mark | None] = [None] * room
            anomaly_counts = [0] * room
            for mark in history.marks:
                cell = _cell(mark.elapsed, history.duration, room)
                known = marks[cell]
                if known is None or mark.kind < known.kind:
                    marks[cell] = mark
                anomaly_counts[cell] += mark.kind in ANOMALY_KINDS
            self._bins = (key, marks, anomaly_counts)
        return self._bins[1], self._bins[2]

    def _draw_heat(self, anomaly_counts: Sequence[int]) -> Line:
        line, maximum = self.line(), max(anomaly_counts, default=0)
        line.append("anomalies".ljust(self._track.start), "dim")
        for count in anomaly_counts:
            line.append(HEAT_GLYPHS[(len(HEAT_GLYPHS) - 1) * count // maximum] if count else " ", "warning")
        return line

    def _append_track(self, line: Line, playback: Playback, marks: Sequence[Mark | None]) -> None:
        at = _cell(playback.elapsed, playback.duration, len(marks))
        for column, mark in enumerate(marks):
            if column == at:
                line.append(PLAYHEAD_GLYPH, "key" if self.has_focus else "bright")
            elif mark is not None:
                symbol, role = MARK_SYMBOLS[mark.kind]
                line.append(symbol.glyph, role)
            else:
                line.append(*("━", "curve") if column < at else ("─", "faint"))

    def on_mouse_down(self, event: MouseDown) -> None:
        """Move the playhead to the pointer and start dragging."""
        self._dragging = True
        self.capture_mouse()
        self._seek_to_pointer(event)

    def on_mouse_move(self, event: MouseMove) -> None:
        """Move the playhead to the pointer while dragging."""
        if self._dragging:
            self._seek_to_pointer(event)

    def on_mouse_up(self, event: MouseUp) -> None:
        """Stop dragging."""
        if self._dragging:
            self._dragging = False
            self.release_mouse()
            self._seek_to_pointer(event)

    def _seek_to_pointer(self, event: MouseDown | MouseMove | MouseUp) -> None:
        playback = self.view.source.playback
        if playback is None or not self._track:
            return
        column = event.x - self.gutter.left - self._track.start
        fraction = min(max(column / max(len(self._track) - 1, 1), 0.0), 1.0)
        try:
            playback.seek_time(fraction * playback.duration)
        except ReadError as error:
            self.notify(str(error), severity="error", markup=False)
        self.update()  # the other panels are updated in the next tick

    def on_focus(self) -> None:
        """Highlight the playhead, because Home and End now apply to this panel."""
        self.update()

    def on_blur(self) -> None:
        """Remove the highlight."""
        self.update()

    async def action_start(self) -> None:
        """Move the playhead to the start."""
        await self.run_action("app.replay_start")

    async def action_end(self) -> None:
        """Move the playhead to the end."""
        await self.run_action("app.replay_end")


def _cell(elapsed: float, duration: float, num_cells: int) -> int:
    """Return the cell of a time."""
    return min(int(elapsed / duration * num_cells), num_cells - 1) if duration > 0 else 0
