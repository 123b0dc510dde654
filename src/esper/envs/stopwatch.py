"""Seconds per phase of a step, by the host clock or by CUDA events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch


class PhaseTimer:
    """Sums the time of blocks by phase. One thread writes it; another may take it between its blocks."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of this block to a phase."""
        start = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - start)

    def add(self, phase: str, seconds: float) -> None:
        """Add what was measured elsewhere."""
        self._seconds[phase] += seconds

    def begin(self) -> None:
        """Blocks are about to be launched."""

    def read_cuda_events(self) -> None:
        """All that was launched in them since `begin` has been waited for."""

    def pop_seconds(self) -> dict[str, float]:
        """Seconds by phase since this was last called."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return dict(taken)


class StepTimer(PhaseTimer):
    """The same for the phases of a step, of which some are the lanes'.

    Args:
        lanes: the stopwatch of each; they run side by side.
    """

    def __init__(self, lanes: Sequence[PhaseTimer]) -> None:
        super().__init__()
        self._lanes = lanes
        self._since = time.perf_counter()

    def start_step(self) -> None:
        """The next step begins here: what came before, as while the run was held, is part of none."""
        self.end_step()

    def end_step(self) -> tuple[float, dict[str, float], list[float]]:
        """End a step; what follows is part of the next.

        Returns:
            Seconds of wall time; the same by phase, with `other` for the rest; each lane's busy share, 0 to 1.
        """
        now = time.perf_counter()
        wall, self._since = now - self._since, now
        phases = defaultdict(float, self.pop_seconds())
        shares = []
        for lane in self._lanes:
            seconds = lane.pop_seconds()
            # A GPU's own clock may tell of a little more than the host's.
            shares.append(min(sum(seconds.values()) / wall, 1.0))
            for phase, spent in seconds.items():
                phases[phase] += spent / len(self._lanes)
        phases["other"] = max(wall - sum(phases.values()), 0.0)
        return wall, dict(phases), shares


class Span(NamedTuple):
    """When a block ran, in seconds since `begin`."""

    phase: str
    start: float
    end: float


class CudaPhaseTimer(PhaseTimer):
    """The same for what the blocks launch on a GPU, by events on the streams that it runs on.

    The host only launches the work of a block: its own clock would say how long that took. Events are reused, so that
    none is created in the steady state.
    """

    def __init__(self) -> None:
        super().__init__()
        self._origin = torch.cuda.Event(enable_timing=True)
        self._running: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._idle: list[torch.cuda.Event] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add to a phase the time in which the work of this block runs on the current stream."""
        start, end = self._event(), self._event()
        start.record()
        yield
        end.record()
        self._running.append((phase, start, end))

    def begin(self) -> None:
        """To be called on a stream that all blocks wait for. What an error left unsettled is forgotten."""
        self._running.clear()
        self._origin.record()

    def read_cuda_events(self) -> None:
        """Read the events; all of them have happened."""
        elapsed = self._origin.elapsed_time  # milliseconds
        spans = [Span(phase, elapsed(start) / 1000, elapsed(end) / 1000) for phase, start, end in self._running]
        for phase, seconds in split_overlaps(spans).items():
            self.add(phase, seconds)
        self._idle += [event for _, start, end in self._running for event in (start, end)]
        self._running.clear()

    def _event(self) -> torch.cuda.Event:
        return self._idle.pop() if self._idle else torch.cuda.Event(enable_timing=True)


def split_overlaps(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds by phase, where what runs at the same time shares that time equally.

    So they sum to the time in which anything ran at all, however many streams there were.
    """
    changes: defaultdict[float, list[tuple[str, int]]] = defaultdict(list)
    for phase, start, end in spans:
        changes[start].append((phase, 1))
        changes[end].append((phase, -1))
    seconds: defaultdict[str, float] = defaultdict(float)
    running: defaultdict[str, int] = defaultdict(int)
    for now, after in pairwise(sorted(changes)):
        for phase, change in changes[now]:
            running[phase] += change
        total = sum(running.values())
        for phase, count in running.items():
            if count:
                seconds[phase] += (after - now) * count / total
    return dict(seconds)
