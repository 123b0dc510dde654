"""The playhead: plays a history at any speed, and seeks in both directions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from esper.recordings.events import AnyEvent
from esper.recordings.history.history import History
from esper.recordings.history.timeline import Mark, MarkFilter
from esper.recordings.state.state import RunState

MAX_EVENTS_PER_ADVANCE = 5_000
"""Maximum number of events that one `advance` applies, so that the screen stays responsive at any speed."""
FORWARD_SEEK_LIMIT = 2_000
"""Number of events up to which a forward seek applies them one by one, which is faster than `History.state_at`."""


class Playback:
    """Playhead: a position in a history, and the RunState there. At position n, the first n events are applied.

    `state` is updated in place on the way forwards and replaced by another object on the way back, so callers must not
    keep a reference to it.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.state: RunState = history.state_at(0)
        self.position = 0
        self.playing = False
        self.speed = 1.0
        """Recorded seconds per second of playback; infinity plays as fast as possible."""
        self._visited: tuple[int, int] | None = None
        """Position of the mark that `seek_mark` visited last, and the position to which that led."""
        self._clock = 0.0
        self._upcoming: Iterator[AnyEvent] = history.events()
        self._next: AnyEvent | None = None

    @property
    def length(self) -> int:
        """Number of events in the history."""
        return self.history.length

    @property
    def elapsed(self) -> float:
        """Recorded seconds from the first event to the playhead. Gaps in the recording do not count."""
        return self._clock

    @property
    def duration(self) -> float:
        """Recorded seconds from the first event to the last."""
        return self.history.duration

    def advance(self, seconds: float) -> int:
        """Play for `seconds`, unless paused; playback stops at the end. Returns the number of applied events."""
        if not self.playing or seconds <= 0:
            return 0
        until = self._clock + seconds * self.speed
        start = self.position
        while (event := self._peek()) is not None:
            elapsed = self.history.elapsed(self.position, event.time)
            if elapsed > until:
                break
            if self.position - start == MAX_EVENTS_PER_ADVANCE:  # too many for one frame: the clock waits
                until = self._clock
                break
            self._clock = elapsed
            self._apply(event)
        else:
            until = self.duration
            self.playing = not self.history.is_fully_read
        self._clock = max(self._clock, until)
        return self.position - start

    def step(self, delta: int) -> None:
        """Seek to the `delta`-th end of a step after the playhead; before it if negative.

        Between two steps of a round, the playhead counts as at the end of the first.
        """
        history, origin = self.history, self.position
        last = bisect_right(history.steps, origin) - 1
        if delta < 0 <= last and not self.state.working:
            is_same_round = bisect_left(history.rounds, history.steps[last]) == bisect_left(history.rounds, origin)
            origin = history.steps[last] if is_same_round else origin
        self._seek_boundary(history.steps, delta, origin)

    def step_round(self, delta: int) -> None:
        """Seek to the `delta`-th start of a round after the playhead; before it if negative."""
        self._seek_boundary(self.history.rounds, delta, self.position)

    def seek(self, position: int) -> None:
        """Seek to a position, clamped to the history."""
        position = min(max(position, 0), self.length)
        if self.position <= position <= self.position + FORWARD_SEEK_LIMIT:
            while self.position < position and (event := self._peek()) is not None:
                self._apply(event)
        else:
            self.state = self.history.state_at(position)
            self.position = position
            self._restart_events()
        self._clock = self.history.elapsed(position - 1, self.state.time) if position else 0.0

    def seek_time(self, seconds: float) -> None:
        """Seek to that many recorded seconds after the first event, clamped to the history."""
        self.seek(self.history.position_at(seconds))
        self._clock = min(max(seconds, 0.0), self.duration)

    def seek_mark(self, delta: int, env: int, mark_filter: MarkFilter) -> Mark | None:
        """Seek to the end of the step of the next (1) or previous (-1) navigable mark. Returns None if there is none.

        Args:
            delta: Direction.
            env: Selected env. A mark of the step on the screen that is not about another env is skipped.
            mark_filter: Condition for marks to be visited.
        """
        marks, visited = self.history.marks, self._visited
        origin = visited[0] if visited is not None and visited[1] == self.position else self.position
        find = marks.next_navigable if delta > 0 else marks.previous_navigable
        while mark := find(origin, mark_filter):
            position = self.history.step_end(mark.position)
            if position != self.position or mark.env not in {None, env}:
                self.seek(position)
                self._visited = mark.position, position
                return mark
            origin = mark.position
        return None

    def toggle_bookmark(self) -> bool:
        """Set or remove a bookmark at the playhead. Returns True if there is one now."""
        return self.history.marks.toggle(self.position, self.elapsed)

    def seek_start(self) -> None:
        """Seek to the start; if it comes before RunStarted, to the position after the first event."""
        self.seek(0)
        if self.state.started is None:
            self.seek(min(1, self.length))

    def seek_end(self) -> None:
        """Seek to the position after the last event."""
        self.seek(self.length)

    def poll(self, within: float = math.inf) -> bool:
        """Read further events of the recording. A playhead at the end of a completely read history stays at the end.

        Args:
            within: Seconds after which the method returns.

        Returns:
            True if the history has changed.

        Raises:
            ReadError: A file cannot be read, is not a recording, or holds events that this version cannot read.
        """
        before, at_end = self.length, self.history.is_fully_read and self.position == self.length
        kept = self.history.poll(within)
        if kept == before == self.length:
            return False
        if kept < before:
            self._restart_events()
            self.seek(min(self.position, kept))
        if at_end:
            self.seek(self.length)
        return True

    def _seek_boundary(self, boundaries: Sequence[int], delta: int, origin: int) -> None:
        """Seek to a boundary. After the last one comes the end, unless it was not read yet: then do not move."""
        end = self.length if self.history.is_fully_read else self.position
        self.seek(_boundary(boundaries, origin, delta, end))

    def _restart_events(self) -> None:
        self._upcoming = self.history.events(self.position)
        self._next = None

    def _peek(self) -> AnyEvent | None:
        """Return the next event; None at the end."""
        if self._next is None:
            self._next = next(self._upcoming, None)
        if self._next is None and self.position < self.length:  # the history grew after the iterator was made
            self._restart_events()
            self._next = next(self._upcoming, None)
        return self._next

    def _apply(self, event: AnyEvent) -> None:
        self.state.apply(event)
        self.position += 1
        self._next = None
        if self.history.has_keyframe(self.position):  # the time of the state is that of the restore
            self.state = self.history.state_at(self.position)


def _boundary(boundaries: Sequence[int], position: int, delta: int, end: int) -> int:
    """Return the `delta`-th boundary after a position, before it if negative; the start or `end` if there is none."""
    if delta == 0:
        return position
    origin = bisect_right(boundaries, position) - 1 if delta > 0 else bisect_left(boundaries, position)
    index = origin + delta
    return 0 if index < 0 else end if index >= len(boundaries) else boundaries[index]
