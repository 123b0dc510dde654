"""The time line: where the play head is, how fast it goes, and what happened when."""

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

PLAYHEAD_GLYPH = "●"
HEAT_GLYPHS = "▁▂▃▄▅▆▇█"
"""How many of the anomalies fall into a cell, against the cell with most."""


class Timeline(Panel, can_focus=True):
    """A line of signs, and where there is room one of anomalies above it; nothing in the present of a live run.

    It is dragged with the mouse.
    """

    DEFAULT_CSS = """
    Timeline { height: 1; padding: 0 1; }
    Timeline.-heat { height: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.TIMELINE)]

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._track = range(0)
        self._dragged = False
        self._cells: tuple[Hashable, list[Mark | None], list[int]] = (None, [], [])

    def on_mount(self) -> None:
        """Take no room where there is no play head."""
        self.display = self.view.source.playback is not None

    def update(self) -> None:
        """Come and go with the play head; a second line where the screen has one to spare."""
        playback = self.view.source.playback
        self.display = playback is not None
        warm = playback is not None and self.app.size.height >= 34
        self.set_class(warm, "-heat")
        super().update()

    def cache_key(self) -> Hashable:
        """The play head, what is marked, and whether it has the focus."""
        playback = self.view.source.playback
        if playback is None:
            return None
        history = playback.history
        place = (playback.position, playback.playing, playback.speed)
        return (*place, history.length, history.is_fully_read, len(history.marks), self.has_focus)

    def draw_lines(self, size: Size) -> list[Line]:
        """Play or hold, speed, the line, the time."""
        playback = self.view.source.playback
        if playback is None:
            return []
        line = self.line().append("▶ " if playback.playing else "❚❚", "curve")
        speed = "max" if playback.speed == float("inf") else f"{playback.speed:g}×"
        line.append(f" {speed}".ljust(7))
        reading = "" if playback.history.is_fully_read else "…"
        times = f"  {format_clock(playback.elapsed)} of {format_clock(playback.duration)}{reading}"
        room = max(size.width - line.width - len(times), 1)
        self._track = range(line.width, line.width + room)
        signs, heat = self._spread(playback, room)
        lines = [self._draw_heat(heat)] if size.height > 1 else []
        self._draw_track(line, playback, signs)
        return [*lines, line.append(times, "dim")]

    def _spread(self, playback: Playback, room: int) -> tuple[Sequence[Mark | None], Sequence[int]]:
        """For each cell of the line, what it shows, and how many anomalies fall into it."""
        history = playback.history
        key = (id(history), history.length, len(history.marks), room)
        if self._cells[0] != key:
            signs: list[Mark | None] = [None] * room
            heat = [0] * room
            for mark in history.marks:
                cell = _cell(mark.elapsed, history.duration, room)
                shown = signs[cell]
                if shown is None or mark.kind < shown.kind:
                    signs[cell] = mark
                heat[cell] += mark.kind in ANOMALY_KINDS
            self._cells = (key, signs, heat)
        return self._cells[1], self._cells[2]

    def _draw_heat(self, heat: Sequence[int]) -> Line:
        line, most = self.line(), max(heat, default=0)
        line.append("anomalies".ljust(self._track.start), "dim")
        for count in heat:
            line.append(HEAT_GLYPHS[(len(HEAT_GLYPHS) - 1) * count // most] if count else " ", "warning")
        return line

    def _draw_track(self, line: Line, playback: Playback, signs: Sequence[Mark | None]) -> None:
        at = _cell(playback.elapsed, playback.duration, len(signs))
        for column, mark in enumerate(signs):
            if column == at:
                line.append(PLAYHEAD_GLYPH, "key" if self.has_focus else "bright")
            elif mark is not None:
                symbol, role = MARK_SYMBOLS[mark.kind]
                line.append(symbol.glyph, role)
            else:
                line.append(*("━", "curve") if column < at else ("─", "faint"))

    # The mouse

    def on_mouse_down(self, event: MouseDown) -> None:
        """Go there, and take hold of the play head."""
        self._dragged = True
        self.capture_mouse()
        self._follow(event)

    def on_mouse_move(self, event: MouseMove) -> None:
        """Drag it along."""
        if self._dragged:
            self._follow(event)

    def on_mouse_up(self, event: MouseUp) -> None:
        """Let go."""
        if self._dragged:
            self._dragged = False
            self.release_mouse()
            self._follow(event)

    def _follow(self, event: MouseDown | MouseMove | MouseUp) -> None:
        playback = self.view.source.playback
        if playback is None or not self._track:
            return
        column = event.x - self.gutter.left - self._track.start
        share = min(max(column / max(len(self._track) - 1, 1), 0.0), 1.0)
        try:
            playback.seek_time(share * playback.duration)
        except ReadError as error:
            self.notify(str(error), severity="error", markup=False)
        self.update()  # the other panels follow with the next tick

    def on_focus(self) -> None:
        """Show that Home and End are ours now."""
        self.update()

    def on_blur(self) -> None:
        """Show that they are not."""
        self.update()

    async def action_start(self) -> None:
        """Go to the start."""
        await self.run_action("app.replay_start")

    async def action_end(self) -> None:
        """Go to the end."""
        await self.run_action("app.replay_end")


def _cell(elapsed: float, duration: float, room: int) -> int:
    return min(int(elapsed / duration * room), room - 1) if duration > 0 else 0
