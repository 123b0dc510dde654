"""The play head: forwards, backwards, at any speed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from esper.history.history import History
from esper.telemetry.events import AnyEvent
from esper.telemetry.state import RunState

MAX_EVENTS_PER_ADVANCE = 5_000
"""Most events that one `advance` folds, so that a screen stays alive at any speed."""
FORWARD_SEEK_LIMIT = 2_000
"""Events ahead that are sooner folded than sought."""


class Playback:
    """A position in a history, and the RunState there. At position n, the first n events are applied.

    `state` is folded in place on the way forwards, and replaced by another object on the way back: read it anew each
    time.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.state: RunState = history.state_at(0)
        self.position = 0
        self.playing = False
        self.speed = 1.0
        """Recorded seconds in a second of playing; infinity is as fast as it goes."""
        self._clock = 0.0
        self._upcoming: Iterator[AnyEvent] = history.events()
        self._next: AnyEvent | None = None

    @property
    def length(self) -> int:
        """Number of events in the history."""
        return self.history.length

    @property
    def elapsed(self) -> float:
        """Recorded seconds from the first event to now. While nothing was recorded, this clock stood still."""
        return self._clock

    @property
    def duration(self) -> float:
        """Recorded seconds from the first event to the last."""
        return self.history.duration

    def advance(self, seconds: float) -> int:
        """Let `seconds` of playing pass, if it is playing; it stops at the end. Returns how many events were folded."""
        if not self.playing or seconds <= 0:
            return 0
        until = self._clock + seconds * self.speed
        start = self.position
        while (event := self._peek()) is not None:
            elapsed = self.history.elapsed(self.position, event.time)
            if elapsed > until:
                break
            if self.position - start == MAX_EVENTS_PER_ADVANCE:  # too much for one frame: the clock waits
                until = self._clock
                break
            self._clock = elapsed
            self._fold(event)
        else:
            until = self.duration
            self.playing = not self.history.is_fully_read
        self._clock = max(self._clock, until)
        return self.position - start

    def step(self, delta: int) -> None:
        """Go to the `delta`-th moment, after or before this one, at which a step had just ended."""
        self.seek(_boundary(self.history.steps, self.position, delta, self.length))

    def step_round(self, delta: int) -> None:
        """Go to the `delta`-th moment, after or before this one, at which a round was about to start."""
        self.seek(_boundary(self.history.rounds, self.position, delta, self.length))

    def seek(self, position: int) -> None:
        """Go to a position; one beyond either end is that end."""
        position = min(max(position, 0), self.length)
        if self.position <= position <= self.position + FORWARD_SEEK_LIMIT:
            while self.position < position and (event := self._peek()) is not None:
                self._fold(event)
        else:
            self.state = self.history.state_at(position)
            self.position = position
            self._look_ahead()
        self._clock = self.history.elapsed(position - 1, self.state.time) if position else 0.0

    def seek_time(self, seconds: float) -> None:
        """Go to so many recorded seconds after the first event."""
        self.seek(self.history.position_at(seconds))
        self._clock = min(max(seconds, 0.0), self.duration)

    def seek_mark(self, delta: int) -> bool:
        """Go to the next bookmark (1), or the one before (-1); False if there is none."""
        marks = self.history.marks
        mark = marks.next_navigable(self.position) if delta > 0 else marks.previous_navigable(self.position)
        if mark is not None:
            self.seek(mark.position)
        return mark is not None

    def toggle_bookmark(self) -> bool:
        """Set a bookmark here, or take it away; whether there is one now."""
        return self.history.marks.toggle(self.position, self.elapsed)

    def seek_start(self) -> None:
        """Go to before the first event; or after it, where that tells what runs."""
        self.seek(0)
        if self.state.started is None:
            self.seek(min(1, self.length))

    def seek_end(self) -> None:
        """Go to after the last event."""
        self.seek(self.length)

    def poll(self, within: float = math.inf) -> bool:
        """Pick up what was not read yet, or was appended since, for so many seconds; True if there was anything.

        A play head at the end of all that there was stays at the end. Raises ReadError as `open_history` does.
        """
        before, following = self.length, self.history.is_fully_read and self.position == self.length
        kept = self.history.poll(within)
        if kept == before == self.length:
            return False
        if self.position > kept:  # the moment shown was undone
            self.state = self.history.state_at(kept)
            self.position = kept
            self._look_ahead()
        elif self._next is None:
            self._look_ahead()
        self.seek(self.length if following else self.position)
        return True

    def _look_ahead(self) -> None:
        self._upcoming = self.history.events(self.position)
        self._next = None

    def _peek(self) -> AnyEvent | None:
        """The event that comes next; None at the end."""
        if self._next is None:
            self._next = next(self._upcoming, None)
        return self._next

    def _fold(self, event: AnyEvent) -> None:
        self.state.apply(event)
        self.position += 1
        self._next = None


def _boundary(boundaries: Sequence[int], position: int, delta: int, length: int) -> int:
    """The `delta`-th boundary after or before a position; beyond the last one the end, before the first the start."""
    if delta == 0:
        return position
    after = bisect_right(boundaries, position) - 1 if delta > 0 else bisect_left(boundaries, position)
    index = after + delta
    return 0 if index < 0 else length if index >= len(boundaries) else boundaries[index]
