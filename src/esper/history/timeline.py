"""The time line of a history: recorded time, and marks on it (anomalies, checkpoints, bookmarks)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from esper.telemetry import events as ev


class MarkKind(IntEnum):
    """What happened there; where several share a place on the time line, the first of these is shown."""

    BOOKMARK = 0
    """Set by whoever watches."""
    DIVERGENCE = 1
    """The first event that another run, held against this one, has otherwise."""
    ROLLBACK = 2
    NOT_FINITE = 3
    """An anomaly whose value is NaN or infinite."""
    ANOMALY = 4
    CHECKPOINT = 5
    PAUSE = 6
    SKIP = 7
    """A loss scale fell: a gradient overflowed, and the batch taught nothing."""
    FOSSILIZED = 8
    CULLED = 9
    PLANTED = 10


NAVIGABLE_KINDS = frozenset(
    {
        MarkKind.BOOKMARK,
        MarkKind.DIVERGENCE,
        MarkKind.ROLLBACK,
        MarkKind.NOT_FINITE,
        MarkKind.ANOMALY,
        MarkKind.CHECKPOINT,
        MarkKind.FOSSILIZED,
    }
)
"""Where the keys for the next and the previous bookmark stop."""
ANOMALIES = frozenset({MarkKind.NOT_FINITE, MarkKind.ANOMALY})


class Mark(NamedTuple):
    """One moment."""

    kind: MarkKind
    position: int
    """After the event that it is about."""
    elapsed: float
    """Recorded seconds."""


class Marks:
    """Marks in the order of their positions, 17 bytes each."""

    def __init__(self) -> None:
        self._signs = array("B")
        self._positions = array("Q")
        self._elapsed = array("d")

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Mark]:
        for sign, position, elapsed in zip(self._signs, self._positions, self._elapsed, strict=True):
            yield Mark(MarkKind(sign), position, elapsed)

    def add_for_event(self, event: ev.AnyEvent, position: int, elapsed: float) -> None:
        """Mark the position after an event, if it is one of those that are looked for."""
        sign_of = _SIGNS.get(type(event))
        sign = sign_of(event) if sign_of else None
        if sign is not None:
            self._signs.append(sign)
            self._positions.append(position)
            self._elapsed.append(elapsed)

    def toggle(self, position: int, elapsed: float) -> bool:
        """Set a bookmark, or take the one that is there away; whether there is one now."""
        start, stop = bisect_left(self._positions, position), bisect_right(self._positions, position)
        for index in range(start, stop):
            if self._signs[index] == MarkKind.BOOKMARK:
                del self._signs[index], self._positions[index], self._elapsed[index]
                return False
        self.add(Mark(MarkKind.BOOKMARK, position, elapsed))
        return True

    def add(self, mark: Mark) -> None:
        """Put a mark in its place."""
        index = bisect_left(self._positions, mark.position)
        self._signs.insert(index, mark.kind)
        self._positions.insert(index, mark.position)
        self._elapsed.insert(index, mark.elapsed)

    def truncate_after(self, position: int) -> None:
        """Drop what lies after a position: it was undone."""
        kept = bisect_right(self._positions, position)
        del self._signs[kept:], self._positions[kept:], self._elapsed[kept:]

    def next_navigable(self, position: int) -> Mark | None:
        """The first after a position at which one stops."""
        for index in range(bisect_right(self._positions, position), len(self)):
            if self._signs[index] in NAVIGABLE_KINDS:
                return self._at(index)
        return None

    def previous_navigable(self, position: int) -> Mark | None:
        """The last before a position at which one stops."""
        for index in reversed(range(bisect_left(self._positions, position))):
            if self._signs[index] in NAVIGABLE_KINDS:
                return self._at(index)
        return None

    @property
    def num_anomalies(self) -> int:
        """How many there are."""
        return sum(sign in ANOMALIES for sign in self._signs)

    def nth_anomaly(self, number: int) -> Mark | None:
        """The anomaly of that number, from 1."""
        found = (index for index, sign in enumerate(self._signs) if sign in ANOMALIES)
        return next((self._at(index) for count, index in enumerate(found, start=1) if count == number), None)

    def _at(self, index: int) -> Mark:
        return Mark(MarkKind(self._signs[index]), self._positions[index], self._elapsed[index])


def _move(event: ev.SeedMoved) -> MarkKind | None:
    return {"germinated": MarkKind.PLANTED, "fossilized": MarkKind.FOSSILIZED, "culled": MarkKind.CULLED}.get(
        event.after
    )


_SIGNS: dict[type[ev.Event], Callable[[Any], MarkKind | None]] = {
    ev.SeedMoved: _move,
    ev.EnvStepped: lambda event: MarkKind.SKIP if event.skipped else None,
    ev.AnomalyFound: lambda event: MarkKind.ANOMALY if math.isfinite(event.value) else MarkKind.NOT_FINITE,
    ev.GovernorRolledBack: lambda _: MarkKind.ROLLBACK,
    ev.CheckpointSaved: lambda _: MarkKind.CHECKPOINT,
    ev.Paused: lambda _: MarkKind.PAUSE,
}


class RecordedClock:
    """From which positions of a history on, what wall-clock time is how far ahead of recorded time."""

    def __init__(self) -> None:
        self._shifts: list[tuple[int, float]] = [(0, 0.0)]

    @property
    def wall_offset_s(self) -> float:
        """Wall-clock time less recorded time, now."""
        return self._shifts[-1][1]

    def set_offset(self, position: int, shift: float) -> None:
        """From this position on, it is another."""
        self._shifts.append((position, shift))

    def truncate_after(self, position: int) -> None:
        """What begins at a position or after it was undone."""
        while len(self._shifts) > 1 and self._shifts[-1][0] >= position:
            self._shifts.pop()

    def offset_at(self, index: int) -> float:
        """Wall-clock time less recorded time at event number `index`, from 0."""
        return self._shifts[bisect_right(self._shifts, index, key=itemgetter(0)) - 1][1]

    def constant_offset_ranges(self, length: int) -> Iterator[tuple[int, int, float]]:
        """Stretches with one shift: its first position, that of the next (beyond `length` for the last), the shift."""
        for (start, shift), (end, _) in pairwise([*self._shifts, (length + 1, 0.0)]):
            yield start, end, shift
