"""The hub of a run of several ranks: each tells what befell its own envs, and rank 0 what befell the run.

All events of all ranks are numbered in one sequence, without gaps, on every rank alike, and dated by rank 0's clock.
Each rank records its own events; the others' it only hears, so that its RunState is that of the whole run.
"""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from msgspec.structs import force_setattr

from esper.telemetry.events import AnyEvent, RunStarted
from esper.telemetry.hub import Detector, Hub, Sink

T = TypeVar("T")


class Peers(Protocol):
    """The ranks of a run, as this one sees them."""

    @property
    def rank(self) -> int:
        """Of this one."""
        ...

    def collect(self, item: T) -> list[T]:
        """What every rank gives, by rank. Returns when all have called it."""
        ...


class HearingSink(Sink, Protocol):
    """A sink that also knows what it is not to keep. The Recorder is one."""

    def hear(self, event: AnyEvent) -> None:
        """Take in an event that another rank keeps."""
        ...


class SharedHub(Hub):
    """The hub of one rank. What `emit` is given waits for the next `announce`, which all ranks call together."""

    def __init__(self, sink: HearingSink, detector: Detector, peers: Peers) -> None:
        super().__init__(sink, detector)
        self._hear = sink.hear
        self._peers = peers
        self._said: list[AnyEvent] = []
        """What this rank has told since the last announcement."""
        self._parted = False

    def announce(self, event: AnyEvent) -> None:
        """Give out what every rank has told, rank by rank, and after it rank 0's `event`; the others' is not used."""
        if self._parted:
            self.emit(event)
            return
        said, self._said = self._said, []
        if self._peers.rank == 0:
            self.emit(event)
        announced, self._said = self._said, []
        try:
            told = self._peers.collect((time.time(), said, announced))
        except Exception:
            self._said = said  # for `part`: this rank has told it, whether the others hear it or not
            raise
        now, _, announced = told[0]
        for rank, (_, events, _) in enumerate(told):
            self._publish(events, now, rank)
        self._publish(announced, now, 0)

    def part(self) -> None:
        """Go on alone: what was told and is still to be told is this rank's word, not agreed on with the others."""
        self._parted = True
        said, self._said = self._said, []
        self._publish(said, time.time(), self._peers.rank)

    def _clock(self) -> float:
        return self._peers.collect(time.time())[0]

    def _send(self, event: AnyEvent) -> None:
        if self._parted:
            self._publish([event], time.time(), self._peers.rank)
        else:
            self._said.append(event)

    def _publish(self, events: list[AnyEvent], now: float, rank: int) -> None:
        for event in events:
            self.seq += 1
            force_setattr(event, "seq", self.seq)
            force_setattr(event, "time", now)
            for queue in self._queues:
                queue.put(event)
            if rank != self._peers.rank:
                self._detector.hear(event)
            # Every file begins with what the run is, so that it can be read by itself.
            if rank == self._peers.rank or isinstance(event, RunStarted):
                self._put(event)
            else:
                self._hear(event)
