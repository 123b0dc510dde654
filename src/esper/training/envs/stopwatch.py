"""Timers: seconds per phase of a step, measured with the host clock or CUDA events."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch

LAUNCH = "launch"
"""Phase of a GPU lane: it ran only work that the host was still launching, and may have waited for the launches."""


class PhaseTimer:
    """Sums the duration of blocks per phase, measured with the host clock.

    One thread runs the blocks; another may call `pop_seconds` between them.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Generator[None, None, None]:
        """Return a context whose duration is added to a phase."""
        start = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - start)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._seconds[phase] += seconds

    def begin(self) -> None:
        """Start a group of blocks. Does nothing with the host clock."""

    def discard(self) -> None:
        """Discard the last group, because one of its blocks failed. Does nothing with the host clock."""

    def read_cuda_events(self) -> None:
        """Add the durations of the oldest group, which the device has finished. Does nothing with the host clock."""

    def pop_seconds(self) -> dict[str, float]:
        """Return the seconds per phase since the last call, and reset them."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(seconds)


class LaneLoad(NamedTuple):
    """How much of a step a lane worked, in fractions of its duration."""

    busy: float
    launching: float
    """Fraction in which a GPU ran only work that the host was still launching; 0 on a CPU."""


class StepTimer(PhaseTimer):
    """Timer of whole steps: adds the phases of the lanes to its own, and the rest of the time as `other`.

    Args:
        lanes: Timers of the lanes, which run in parallel.
    """

    def __init__(self, lanes: Sequence[PhaseTimer]) -> None:
        super().__init__()
        self._lanes = lanes
        self._since = time.perf_counter()

    def start_step(self) -> None:
        """Start a step, and discard the time since the last one, such as while the run was held."""
        self.end_step()

    def end_step(self) -> tuple[float, dict[str, float], list[LaneLoad]]:
        """End a step and start the next.

        Returns:
            Wall time of the step in seconds; seconds per phase, with `other` for the rest (a phase of lanes is its mean
            over them); and the load of each lane.
        """
        now = time.perf_counter()
        wall, self._since = now - self._since, now
        phases: defaultdict[str, float] = defaultdict(float, self.pop_seconds())
        loads: list[LaneLoad] = []
        for lane in self._lanes:
            seconds = lane.pop_seconds()
            launching = seconds.get(LAUNCH, 0.0)
            # The clock of a GPU may measure slightly more than the host's.
            loads.append(LaneLoad(min((sum(seconds.values()) - launching) / wall, 1.0), min(launching / wall, 1.0)))
            for phase, spent in seconds.items():
                phases[phase] += spent / len(self._lanes)
        phases["other"] = max(wall - sum(phases.values()), 0.0)
        return wall, dict(phases), loads


class Span(NamedTuple):
    """Start and end of a block, in seconds since the device began its group."""

    phase: str
    start: float
    end: float


class _Launched(NamedTuple):
    """A block whose work was launched."""

    phase: str
    start: torch.cuda.Event
    end: torch.cuda.Event
    until: float
    """Time of the host after the last launch."""


class _BlockGroup(NamedTuple):
    """Blocks that were launched together."""

    origin: torch.cuda.Event
    begun: float
    """Time of the host when the origin was launched; the device may reach it later."""
    blocks: list[_Launched]


class _MeasuredGroup(NamedTuple):
    """Times of a group that the device has finished."""

    origin: torch.cuda.Event
    reached: float
    """Time of the host when the device reached the origin."""
    end: float
    """End of the last block, in seconds since the origin."""


class CudaPhaseTimer(PhaseTimer):
    """Sums the duration of the GPU work that blocks launch, measured with CUDA events on the streams it runs on.

    The host only launches this work, so that its clock would measure the launches. While it still launches a block, a
    fast GPU runs each kernel at once and then waits for the next: the events, at the start and the end of the block, do
    not show these gaps. Only after the last launch is the GPU known to be busy with the block. The time before counts
    as `launch`, unless the GPU is known to be busy with another block: an upper limit of its idle time.

    Events are reused, so that a steady state creates none. A group can begin before the last one has been read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: deque[_BlockGroup] = deque()
        self._last: _MeasuredGroup | None = None
        """The group that was read last."""
        self._idle: list[torch.cuda.Event] = []

    @contextmanager
    def __call__(self, phase: str) -> Generator[None, None, None]:
        """Return a context that adds to a phase the time for which its work runs on the current stream."""
        start, end = self._event(), self._event()
        start.record()
        yield
        end.record()
        self._groups[-1].blocks.append(_Launched(phase, start, end, time.perf_counter()))

    def begin(self) -> None:
        """Start a group of blocks, on a stream that all of them wait for."""
        origin = self._event()
        origin.record()
        self._groups.append(_BlockGroup(origin, time.perf_counter(), []))

    def discard(self) -> None:
        """Discard the last group, because one of its blocks failed."""
        self._groups.pop()

    def read_cuda_events(self) -> None:
        """Add the durations of the oldest group. The caller has waited for all of its blocks.

        Two groups may run at the same time. The time that they share counts for the older one.
        """
        origin, begun, blocks = self._groups.popleft()
        counted_until = 0.0
        if self._last:
            since = self._last.origin.elapsed_time(origin) / 1000
            begun = max(begun, self._last.reached + since)
            counted_until = self._last.end - since
            self._idle.append(self._last.origin)
        spans: list[Span] = []
        for phase, start_event, end_event, launched in blocks:
            start, end = (max(origin.elapsed_time(each) / 1000, counted_until) for each in (start_event, end_event))
            certain = min(max(start, launched - begun), end)
            spans += [Span(LAUNCH, start, certain), Span(phase, certain, end)]
            self._idle += [start_event, end_event]
        self._last = _MeasuredGroup(origin, begun, max((span.end for span in spans), default=counted_until))
        for phase, seconds in split_overlaps(spans).items():
            self.add(phase, seconds)

    def _event(self) -> torch.cuda.Event:
        return self._idle.pop() if self._idle else torch.cuda.Event(enable_timing=True)


def split_overlaps(spans: Iterable[Span]) -> dict[str, float]:
    """Return the seconds per phase; overlapping spans split their common time equally, `launch` counts only alone.

    The sum is therefore the time in which anything ran, regardless of the number of streams.
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
        counted = {phase: count for phase, count in running.items() if count}
        if len(counted) > 1:
            counted.pop(LAUNCH, None)
        for phase, count in counted.items():
            seconds[phase] += (after - now) * count / sum(counted.values())
    return dict(seconds)
