"""Recorded time: wall-clock time, but it stands still while nothing is recorded, between a run and its resumption."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter


class RecordedTime:
    """From which positions of a history on, what wall-clock time is how far ahead of recorded time."""

    def __init__(self) -> None:
        self._shifts: list[tuple[int, float]] = [(0, 0.0)]

    @property
    def shift(self) -> float:
        """Wall-clock time less recorded time, now."""
        return self._shifts[-1][1]

    def set_shift(self, position: int, shift: float) -> None:
        """From this position on, it is another."""
        self._shifts.append((position, shift))

    def forget(self, position: int) -> None:
        """What begins at a position or after it was undone."""
        while len(self._shifts) > 1 and self._shifts[-1][0] >= position:
            self._shifts.pop()

    def shift_at(self, index: int) -> float:
        """Wall-clock time less recorded time at event number `index`, from 0."""
        return self._shifts[bisect_right(self._shifts, index, key=itemgetter(0)) - 1][1]

    def spans(self, length: int) -> Iterator[tuple[int, int, float]]:
        """Stretches with one shift: its first position, that of the next (beyond `length` for the last), the shift."""
        for (start, shift), (end, _) in pairwise([*self._shifts, (length + 1, 0.0)]):
            yield start, end, shift
