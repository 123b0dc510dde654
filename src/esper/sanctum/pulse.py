"""The dashboard's own truth: how old what it shows is, how fast events come, what a frame costs it."""

from __future__ import annotations

from esper.sanctum.symbols import brief, span

PERIOD = 1.0
"""Seconds between two figures, so that they can be read."""


class Pulse:
    """Told at every look at the source; has figures from the first whole period on."""

    def __init__(self) -> None:
        self.text = ""
        """Age of the data, events a second, CPU milliseconds a frame."""
        self.age = 0.0
        """Seconds since anything new was heard."""
        self._seq = 0
        self._heard: float | None = None
        self._since: tuple[float, int, float] | None = None
        """When this period began, the event then, and the CPU time."""
        self._frames = 0

    def beat(self, now: float, seq: int, cpu: float) -> None:
        """Take a look in.

        Args:
            now: a clock that does not jump, seconds.
            seq: the last event.
            cpu: CPU time of the dashboard's thread, seconds.
        """
        if seq != self._seq or self._heard is None:
            self._seq, self._heard = seq, now
        self.age = now - self._heard
        self._frames += 1
        if self._since is None:
            self._since, self._frames = (now, seq, cpu), 0
        elif now - self._since[0] >= PERIOD:
            start, first, spent = self._since
            rate, cost = (seq - first) / (now - start), (cpu - spent) / self._frames * 1000
            age = span(self.age) if self.age >= 1 else f"{self.age:.1f}s"
            self.text = f"data {age} old  {brief(max(rate, 0.0)).text} events/s  {brief(cost, 2).text} ms/frame"
            self._since, self._frames = (now, seq, cpu), 0
