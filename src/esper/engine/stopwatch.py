"""Where the time goes: seconds by phase."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums the time of blocks by phase. One thread writes it; another may take it between its blocks."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of this block to a phase."""
        start = time.perf_counter()
        yield
        self._seconds[phase] += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Seconds by phase since this was last called."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return dict(taken)
