"""The keys that move the play head: over a recording, and over the past of a live run, which goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from esper.sanctum.screens.go_to import GoTo
from esper.sanctum.view import GoToMoment
from esper.telemetry.playback import Playback
from esper.telemetry.segments import ReadError

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
    refresh_view: Callable[[], None]
    _wanted: Callable[[], None] | None = None
    """What was asked for while there was no play head yet."""

    def _past(self, enter: Callable[[], None] | None = None) -> Playback | None:
        """The play head. Where there is none and something is to be done with one, it is made; or it is said why not.

        Args:
            enter: what is to be done: `arrive` does it later where there is much to read first.
        """
        if self.source.playback is None and enter is not None:
            refusal = self.source.look_back()
            reading = self.source.playback is None and not refusal
            self._wanted = enter if reading else None
            if refusal:
                self.notify(refusal, severity="warning", markup=False)
            elif reading:
                self.notify("The past of this run is read first; End stays in its present.", timeout=3)
        return self.source.playback

    @property
    def reading(self) -> bool:
        """Whether something waits for the past to be read."""
        return self._wanted is not None

    def arrive(self) -> None:
        """Do what was asked for, once there is a play head: called at every tick."""
        if self._wanted is not None and self.source.playback is not None:
            wanted, self._wanted = self._wanted, None
            try:
                wanted()
            except ReadError as error:
                self.notify(str(error), severity="error", markup=False)

    def action_play(self) -> None:
        """Play, or hold; at the end, from the start."""
        if (playback := self._past()) is not None:
            if not playback.playing and playback.position >= playback.length:
                playback.to_start()
            playback.playing = not playback.playing
            self.refresh_view()

    def action_replay_step(self, delta: int) -> None:
        """Hold, one step away."""
        enter = partial(self.action_replay_step, delta) if delta < 0 else None
        if (playback := self._past(enter)) is not None:
            playback.playing = False
            playback.step(delta)
            self.refresh_view()

    def action_replay_round(self, delta: int) -> None:
        """Hold, one round away."""
        enter = partial(self.action_replay_round, delta) if delta < 0 else None
        if (playback := self._past(enter)) is not None:
            playback.playing = False
            playback.step_round(delta)
            self.refresh_view()

    def action_replay_speed(self, delta: int) -> None:
        """The next slower or faster speed."""
        if (playback := self._past()) is not None:
            slower = [speed for speed in SPEEDS if speed < playback.speed]
            faster = [speed for speed in SPEEDS if speed > playback.speed]
            playback.speed = (faster or [SPEEDS[-1]])[0] if delta > 0 else (slower or [SPEEDS[0]])[-1]
            self.refresh_view()

    def action_replay_start(self) -> None:
        """To the start."""
        if (playback := self._past(self.action_replay_start)) is not None:
            playback.to_start()
            self.refresh_view()

    def action_replay_end(self) -> None:
        """To the end; that of a live run is its present."""
        if self.source.live:
            self.action_rejoin()
        elif (playback := self._past()) is not None:
            playback.to_end()
        self.refresh_view()

    def action_rejoin(self) -> None:
        """Back to the present of a live run, or stay in it."""
        self._wanted = None
        self.source.rejoin()
        self.refresh_view()

    def action_mark(self, delta: int) -> None:
        """Hold, at the next bookmark or the one before."""
        enter = partial(self.action_mark, delta) if delta < 0 else None
        if (playback := self._past(enter)) is not None:
            playback.playing = False
            if not playback.step_mark(delta):
                self.notify(f"There is no bookmark {'after' if delta > 0 else 'before'} this.", timeout=3)
            self.refresh_view()

    def action_bookmark(self) -> None:
        """Set a bookmark at the moment shown, or take it away; in the present, one stays there."""
        self._bookmark(self.source.present.seq if self.source.playback is None else None)

    def _bookmark(self, present: int | None) -> None:
        """Do so; `present` is the event at which it was asked for in the present, None in the past."""
        if (playback := self._past(partial(self._bookmark, present))) is not None:
            if present is not None:
                playback.seek(present)
            there = playback.toggle_bookmark()
            if present is not None:
                self.source.rejoin()
            self.notify("Bookmark set." if there else "Bookmark taken away.", timeout=2)
            self.refresh_view()

    def go_to_event(self, target: GoToMoment) -> None:
        """Hold, at the moment of an event; the present of a live run is left for it only if it is over."""
        enter = partial(self.go_to_event, target) if target.over else None
        if target.seq is not None and (playback := self._past(enter)) is not None:
            playback.playing = False
            playback.seek(target.seq)

    def action_go_to(self) -> None:
        """Ask for a moment, and go there."""
        self._go_to(stay=self.source.live and self.source.playback is None)

    def _go_to(self, *, stay: bool) -> None:
        """Do so; who goes nowhere stays in the present, or else where they are."""
        playback = self._past(partial(self._go_to, stay=stay))
        if playback is None or isinstance(self.screen, GoTo):
            return

        def go(position: int | None) -> None:
            if position is not None:
                playback.playing = False
                playback.seek(position)
            elif stay:
                self.source.rejoin()
            self.refresh_view()

        self.push_screen(GoTo(playback.history), go)
