"""The time line of a replay: where the play head is, how fast it goes, and what it has passed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Click
from textual.geometry import Size

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.symbols import SEVERITIES, clock
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.playback import Playback

HEAD = "●"
CHECKPOINT = "C"


class Scrubber(Panel, can_focus=True):
    """One line; nothing for a live run. A click goes there."""

    DEFAULT_CSS = """
    Scrubber { height: 1; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.SCRUBBER)]

    def on_mount(self) -> None:
        """Take no room in a live run."""
        self.display = self.view.source.playback is not None
        self._track = range(0)

    def key(self) -> Hashable:
        """The play head, and whether it has the focus."""
        playback = self.view.source.playback
        if playback is None:
            return None
        return playback.position, playback.length, playback.playing, playback.speed, self.has_focus

    def draw(self, size: Size) -> list[Line]:
        """Play or hold, speed, the line, the time."""
        playback = self.view.source.playback
        if playback is None:
            return []
        line = self.line().add("▶ " if playback.playing else "❚❚", "curve")
        line.add(f" {playback.speed:g}×".ljust(7))
        times = f"  {clock(playback.elapsed)} of {clock(playback.duration)}"
        room = max(size.width - line.width - len(times), 1)
        self._track = range(line.width, line.width + room)
        self._draw_track(line, playback, room)
        return [line.add(times, "dim")]

    def _draw_track(self, line: Line, playback: Playback, room: int) -> None:
        duration = playback.duration
        at = min(int(playback.elapsed / duration * room), room - 1) if duration > 0 else 0
        marks: dict[int, tuple[str, str]] = {at: (HEAD, "key" if self.has_focus else "bright")}
        state = self.state
        passed = [(saved.time, CHECKPOINT, "bright") for saved in state.checkpoints]
        for anomaly in state.anomalies.values():
            severity = anomaly.found.severity
            passed.append((anomaly.first_time, SEVERITIES[severity].glyph, severity))
        for when, glyph, role in passed:
            if duration > 0:
                marks.setdefault(min(int((when - state.start_time) / duration * room), room - 1), (glyph, role))
        for column in range(room):
            glyph, role = marks.get(column, ("━", "curve") if column < at else ("─", "faint"))
            line.add(glyph, role)

    def on_click(self, event: Click) -> None:
        """Go to the time under the pointer."""
        offset, playback = event.get_content_offset(self), self.view.source.playback
        if playback is not None and offset is not None and offset.x in self._track:
            share = (offset.x - self._track.start) / max(len(self._track) - 1, 1)
            playback.seek_time(share * playback.duration)

    def on_focus(self) -> None:
        """Show that Home and End are ours now."""
        self.update()

    def on_blur(self) -> None:
        """Show that they are not."""
        self.update()

    def action_start(self) -> None:
        """Go to the start."""
        if self.view.source.playback is not None:
            self.view.source.playback.to_start()

    def action_end(self) -> None:
        """Go to the end."""
        if self.view.source.playback is not None:
            self.view.source.playback.to_end()
