"""The keys that move the play head: over a recording, and over the past of a live run, which goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from esper.sanctum.screens.go_to import GoTo
from esper.sanctum.widgets.panel import Visit
from esper.telemetry.playback import Playback

if TYPE_CHECKING:
    from textual.app import App

    from esper.sanctum.source import Source

    _Base = App[None]
else:
    _Base = object

SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, float("inf"))
"""Recorded seconds in a second of playing; the last is as fast as it goes."""


class TimeTravel(_Base):
    """Actions of the app. In a live run, the first of them that goes anywhere leaves its present."""

    source: Source
    look: Callable[[], None]

    def _past(self, *, enter: bool) -> Playback | None:
        """The play head; where there is none and `enter` asks for one, it is made, or it is said why not."""
        if self.source.playback is None and enter:
            refusal = self.source.look_back()
            if refusal:
                self.notify(refusal, severity="warning", markup=False)
        return self.source.playback

    def action_play(self) -> None:
        """Play, or hold; at the end, from the start."""
        if (playback := self._past(enter=False)) is not None:
            if not playback.playing and playback.position >= playback.length:
                playback.to_start()
            playback.playing = not playback.playing
            self.look()

    def action_replay_step(self, delta: int) -> None:
        """Hold, one step away."""
        if (playback := self._past(enter=delta < 0)) is not None:
            playback.playing = False
            playback.step(delta)
            self.look()

    def action_replay_round(self, delta: int) -> None:
        """Hold, one round away."""
        if (playback := self._past(enter=delta < 0)) is not None:
            playback.playing = False
            playback.step_round(delta)
            self.look()

    def action_replay_speed(self, delta: int) -> None:
        """The next slower or faster speed."""
        if (playback := self._past(enter=False)) is not None:
            slower = [speed for speed in SPEEDS if speed < playback.speed]
            faster = [speed for speed in SPEEDS if speed > playback.speed]
            playback.speed = (faster or [SPEEDS[-1]])[0] if delta > 0 else (slower or [SPEEDS[0]])[-1]
            self.look()

    def action_replay_start(self) -> None:
        """To the start."""
        if (playback := self._past(enter=True)) is not None:
            playback.to_start()
            self.look()

    def action_replay_end(self) -> None:
        """To the end; that of a live run is its present."""
        if self.source.live:
            self.source.rejoin()
        elif (playback := self._past(enter=False)) is not None:
            playback.to_end()
        self.look()

    def action_rejoin(self) -> None:
        """Back to the present of a live run."""
        self.source.rejoin()
        self.look()

    def action_mark(self, delta: int) -> None:
        """Hold, at the next bookmark or the one before."""
        if (playback := self._past(enter=delta < 0)) is not None:
            playback.playing = False
            if not playback.step_mark(delta):
                self.notify(f"There is no bookmark {'after' if delta > 0 else 'before'} this.", timeout=3)
            self.look()

    def action_bookmark(self) -> None:
        """Set a bookmark at the moment shown, or take it away; in the present, one stays there."""
        present = self.source.playback is None
        if (playback := self._past(enter=True)) is not None:
            there = playback.toggle_bookmark()
            if present:
                self.source.rejoin()
            self.notify("Bookmark set." if there else "Bookmark taken away.", timeout=2)
            self.look()

    def go_to_event(self, visit: Visit) -> None:
        """Hold, at the moment of an event; the present of a live run is left for it only if it is over."""
        if visit.seq is not None and (playback := self._past(enter=visit.over)) is not None:
            playback.playing = False
            playback.seek(visit.seq)

    def action_go_to(self) -> None:
        """Ask for a moment, and go there."""
        playback = self._past(enter=True)
        if playback is None or isinstance(self.screen, GoTo):
            return

        def go(position: int | None) -> None:
            if position is not None:
                playback.playing = False
                playback.seek(position)
            self.look()

        self.push_screen(GoTo(playback.history), go)
