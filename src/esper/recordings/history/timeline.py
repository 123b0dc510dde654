"""The timeline of a history: recorded time, and marks (anomalies, checkpoints, bookmarks)."""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, MutableSequence
from enum import IntEnum
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from esper.common.domain import Stage
from esper.recordings import events as ev


class MarkKind(IntEnum):
    """Kind of a mark. If several marks share a cell of the timeline, the first kind listed here is shown."""

    BOOKMARK = 0
    """Set by the user."""
    DIVERGENCE = 1
    """The first event that differs in the run that this one is compared with."""
    ROLLBACK = 2
    NOT_FINITE = 3
    """An anomaly whose value is NaN or infinite."""
    ANOMALY = 4
    CHECKPOINT = 5
    PAUSE = 6
    SKIP = 7
    """A gradient overflowed: the batch was skipped and the loss scale fell."""
    FOSSILIZED = 8
    CULLED = 9
    PLANTED = 10
    ROUND = 11
    """A round started."""


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
"""Kinds of marks that the keys for the next and the previous mark visit if no group is selected."""
ANOMALY_KINDS = frozenset({MarkKind.NOT_FINITE, MarkKind.ANOMALY})
"""Kinds of marks that anomalies set."""
MARK_GROUPS: dict[str, frozenset[MarkKind]] = {
    "anomalies": frozenset({MarkKind.BOOKMARK, MarkKind.DIVERGENCE, MarkKind.ROLLBACK, *ANOMALY_KINDS}),
    "rollbacks": frozenset({MarkKind.ROLLBACK}),
    "checkpoints": frozenset({MarkKind.CHECKPOINT}),
    "seeds": frozenset({MarkKind.PLANTED, MarkKind.FOSSILIZED, MarkKind.CULLED}),
    "bookmarks": frozenset({MarkKind.BOOKMARK}),
    "all": frozenset(MarkKind),
}
"""Groups of kinds to which the marks can be limited, the default one first. Starts of rounds are drawn in each."""
DEFAULT_MARK_GROUP = next(iter(MARK_GROUPS))
_NO_ENV = -1


class Mark(NamedTuple):
    """A notable position of a history."""

    kind: MarkKind
    position: int
    """Position after the event that set the mark."""
    elapsed: float
    """Recorded seconds from the first event."""
    env: int | None = None
    """Env that the event is about; None if it is about none."""
    rule: str = ""
    """Rule of the anomaly; empty for other kinds."""


class MarkFilter(NamedTuple):
    """Condition for marks to be drawn, and to be visited by the keys for the next and the previous mark."""

    group: str = DEFAULT_MARK_GROUP
    """Key of `MARK_GROUPS`."""
    muted_rules: frozenset[str] = frozenset()
    """Rules whose anomalies have no mark."""

    def shows(self, mark: Mark) -> bool:
        """Return True if a mark is drawn."""
        return mark.kind in MARK_GROUPS[self.group] and mark.rule not in self.muted_rules

    def stops_at(self, mark: Mark) -> bool:
        """Return True if the keys for the next and the previous mark stop at a mark."""
        return (self.group != "all" or mark.kind in NAVIGABLE_KINDS) and self.shows(mark)


class Marks:
    """Marks ordered by position, 33 bytes each."""

    def __init__(self) -> None:
        self._kinds = array("B")
        self._positions = array("Q")
        self._elapsed = array("d")
        self._envs = array("q")
        """Env of each mark; `_NO_ENV` if it has none."""
        self._rules: list[str] = []

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Mark]:
        return map(self._mark_at, range(len(self)))

    def add_for_event(self, event: ev.AnyEvent, position: int, elapsed: float) -> None:
        """Mark the position after an event, if its type sets marks."""
        kind_of = _KIND_OF_EVENT.get(type(event))
        kind = kind_of(event) if kind_of else None
        if kind is not None:
            env, rule = getattr(event, "env", None), getattr(event, "rule", "")
            self._insert(len(self), Mark(kind, position, elapsed, env, rule))

    def toggle(self, position: int, elapsed: float) -> bool:
        """Set or remove a bookmark at a position. Returns True if there is one now."""
        start, stop = bisect_left(self._positions, position), bisect_right(self._positions, position)
        for index in range(start, stop):
            if self._kinds[index] == MarkKind.BOOKMARK:
                for column in self._columns:
                    del column[index]
                return False
        self.add(Mark(MarkKind.BOOKMARK, position, elapsed))
        return True

    def add(self, mark: Mark) -> None:
        """Insert a mark in the order of positions."""
        self._insert(bisect_left(self._positions, mark.position), mark)

    def truncate_after(self, position: int) -> None:
        """Drop the marks after a position, because their events were undone."""
        kept = bisect_right(self._positions, position)
        for column in self._columns:
            del column[kept:]

    def next_navigable(self, position: int, mark_filter: MarkFilter) -> Mark | None:
        """Return the first mark after a position that the keys visit; None if there is none."""
        marks = map(self._mark_at, range(bisect_right(self._positions, position), len(self)))
        return next(filter(mark_filter.stops_at, marks), None)

    def previous_navigable(self, position: int, mark_filter: MarkFilter) -> Mark | None:
        """Return the last mark before a position that the keys visit; None if there is none."""
        marks = map(self._mark_at, reversed(range(bisect_left(self._positions, position))))
        return next(filter(mark_filter.stops_at, marks), None)

    @property
    def num_anomalies(self) -> int:
        """Number of anomaly marks."""
        return sum(kind in ANOMALY_KINDS for kind in self._kinds)

    def nth_anomaly(self, number: int) -> Mark | None:
        """Return the anomaly mark with that number, from 1; None if there are fewer."""
        found = (index for index, kind in enumerate(self._kinds) if kind in ANOMALY_KINDS)
        return next((self._mark_at(index) for count, index in enumerate(found, start=1) if count == number), None)

    @property
    def _columns(self) -> tuple[MutableSequence[Any], ...]:
        return self._kinds, self._positions, self._elapsed, self._envs, self._rules

    def _insert(self, index: int, mark: Mark) -> None:
        env = _NO_ENV if mark.env is None else mark.env
        values = (mark.kind, mark.position, mark.elapsed, env, sys.intern(mark.rule))
        for column, value in zip(self._columns, values, strict=True):
            column.insert(index, value)

    def _mark_at(self, index: int) -> Mark:
        env = None if self._envs[index] == _NO_ENV else self._envs[index]
        kind = MarkKind(self._kinds[index])
        return Mark(kind, self._positions[index], self._elapsed[index], env, self._rules[index])


_KIND_OF_STAGE = {
    Stage.GERMINATED.label: MarkKind.PLANTED,
    Stage.FOSSILIZED.label: MarkKind.FOSSILIZED,
    Stage.CULLED.label: MarkKind.CULLED,
}


_KIND_OF_EVENT: dict[type[ev.Event], Callable[[Any], MarkKind | None]] = {
    ev.SeedMoved: lambda event: _KIND_OF_STAGE.get(event.after),
    ev.EnvStepped: lambda event: MarkKind.SKIP if event.skipped_batches else None,
    ev.AnomalyFound: lambda event: MarkKind.ANOMALY if math.isfinite(event.value) else MarkKind.NOT_FINITE,
    ev.GovernorRolledBack: lambda _: MarkKind.ROLLBACK,
    ev.CheckpointSaved: lambda _: MarkKind.CHECKPOINT,
    ev.Paused: lambda _: MarkKind.PAUSE,
    ev.RoundStarted: lambda _: MarkKind.ROUND,
}


class RecordedClock:
    """Offsets between wall-clock and recorded time, in seconds, by position."""

    def __init__(self) -> None:
        self._offsets: list[tuple[int, float]] = [(0, 0.0)]

    @property
    def wall_offset_s(self) -> float:
        """Wall-clock time minus recorded time at the end of the history."""
        return self._offsets[-1][1]

    def set_offset(self, position: int, offset: float) -> None:
        """Set the offset from a position on."""
        self._offsets.append((position, offset))

    def truncate_after(self, position: int) -> None:
        """Drop the offsets set at or after a position, because the events there were undone."""
        while len(self._offsets) > 1 and self._offsets[-1][0] >= position:
            self._offsets.pop()

    def offset_at(self, index: int) -> float:
        """Return wall-clock time minus recorded time at an event, given its index from 0."""
        return self._offsets[bisect_right(self._offsets, index, key=itemgetter(0)) - 1][1]

    def constant_offset_ranges(self, length: int) -> Iterator[tuple[int, int, float]]:
        """Yield the ranges with one offset, for a history of `length` events.

        Each is its first position, the first position of the next range (`length + 1` for the last), and its offset.
        """
        for (start, offset), (end, _) in pairwise([*self._offsets, (length + 1, 0.0)]):
            yield start, end, offset
