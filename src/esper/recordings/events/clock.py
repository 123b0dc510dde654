"""The clock of events: times of the wall clock, whose differences are those of the monotonic clock."""

from __future__ import annotations

from time import monotonic_ns, time_ns

MAX_DRIFT_NS = 1_000_000_000
"""Difference between the two clocks, in nanoseconds, from which on the wall clock counts as changed."""
_MAX_READING_NS = 100_000_000
"""Nanoseconds that reading both clocks may take: the process could be stopped between the two readings."""


class EventClock:
    """Clock that advances with the monotonic clock, and follows the wall clock only when that was changed.

    The wall clock changes against the monotonic one if it is set, or if the machine sleeps.
    """

    def __init__(self) -> None:
        self._offset_ns = _wall_offset_ns()

    def read(self) -> tuple[float, float]:
        """Return the time in seconds since the epoch, to the millisecond, and the change of the clock since the last
        call in seconds; 0 if it was not changed.
        """
        offset_ns = _wall_offset_ns()
        change_ms = 0
        if abs(offset_ns - self._offset_ns) >= MAX_DRIFT_NS:
            change_ms = (offset_ns - self._offset_ns) // 1_000_000
            self._offset_ns += change_ms * 1_000_000
        return (monotonic_ns() + self._offset_ns) // 1_000_000 / 1000, change_ms / 1000


def _wall_offset_ns() -> int:
    """Return the wall-clock time minus the monotonic time, in nanoseconds."""
    while True:
        before, wall, after = monotonic_ns(), time_ns(), monotonic_ns()
        if after - before < _MAX_READING_NS:
            return wall - before
