"""Where events come in, are numbered, dated and looked at, and go out to whoever listens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

from msgspec.structs import force_setattr, replace

from esper.telemetry.events import AnyEvent, Logged, RunStarted
from esper.telemetry.state import Keyframe, Record, RunState


class RecordSink(Protocol):
    """What keeps every record, and holds the engine up rather than lose one. The Recorder is one."""

    @property
    def failure(self) -> str | None:
        """Why nothing can be kept just now: a sentence for people."""
        ...

    @property
    def notices(self) -> deque[str]:
        """What was lost of what was kept, to be told and taken out: sentences for people."""
        ...

    def put(self, record: Record) -> None:
        """Take a record in; wait while there is no room."""
        ...

    def flush(self) -> bool:
        """Return once all that was put is safe; False if it cannot be made so."""
        ...

    def snapshot(self) -> Keyframe:
        """The state after all that was put."""
        ...


class Detector(Protocol):
    """Finds anomalies in the events of a run. The Inspector is one."""

    def check(self, event: AnyEvent) -> Sequence[AnyEvent]:
        """Return the anomalies that begin or end with an event."""
        ...

    def fold_remote(self, event: AnyEvent) -> None:
        """Process an event that the detector of another rank checks."""
        ...

    def resume(self, state: RunState) -> None:
        """Start again from a state of the run, which the detector then owns."""
        ...


class EventHub:
    """The one way from the engine to its listeners. Only the engine's thread emits; any thread may subscribe."""

    def __init__(self, sink: RecordSink, detector: Detector) -> None:
        self.seq = 0
        """Number of the last event."""
        self._sink = sink
        self._detector = detector
        self._put = sink.put
        self._queues: tuple[SimpleQueue[Record], ...] = ()
        self._reported_failure: str | None = None
        """The sink's failure that listeners have heard of."""

    @property
    def failure(self) -> str | None:
        """Why nothing can be recorded just now: a sentence for people."""
        return self._sink.failure

    def subscribe(self, queue: SimpleQueue[Record] | None = None) -> SimpleQueue[Record]:
        """Put every later record into a queue, a new one unless it is given. It never makes `emit` wait: drain it."""
        queue = SimpleQueue() if queue is None else queue
        self._queues = (*self._queues, queue)
        return queue

    def emit(self, event: AnyEvent) -> None:
        """Number and date a new event of an env or a device, and give it out; after it the anomalies that are in it."""
        self._send(event)
        for finding in self._detector.check(event):
            self._send(finding)
        self._tell_of_sink()

    def emit_global(self, event: AnyEvent) -> None:
        """Emit an event that is not of one env or device, but of the run."""
        self.emit(event)

    def stop_synchronising(self) -> None:
        """The run has failed: what is told from here on concerns nobody but this process."""

    def rewind(self, keyframe: Keyframe) -> None:
        """Go back to the state of a checkpoint: listeners get it, and the next event follows its number."""
        self.seq = keyframe.seq
        self._detector.resume(keyframe.decode_state())
        self._give(replace(keyframe, restored=self._clock()))

    def flush(self) -> bool:
        """Return once everything emitted is on disk, for good; False, and a Logged event, if it cannot be."""
        flushed = self._sink.flush()
        self._tell_of_sink()
        return flushed

    def snapshot(self) -> Keyframe:
        """The state after everything emitted so far: what a checkpoint keeps."""
        return self._sink.snapshot()

    def _clock(self) -> float:
        return time.time()

    def _send(self, event: AnyEvent) -> None:
        self.seq += 1
        # The event was made for this call and nobody else has it yet, so it may still be written to.
        force_setattr(event, "seq", self.seq)
        force_setattr(event, "time", int(time.time() * 1000) / 1000)
        self._give(event)

    def _give(self, record: Record) -> None:
        for queue in self._queues:
            queue.put(record)
        self._put(record)

    def _tell_of_sink(self) -> None:
        """What listeners have not heard of yet."""
        while self._sink.notices:
            self._send(Logged(severity="error", text=self._sink.notices.popleft()))
        failure = self._sink.failure
        if failure != self._reported_failure:
            self._reported_failure = failure
            told = ("error", failure) if failure else ("info", "recording goes on")
            self._send(Logged(severity=told[0], text=told[1]))


T = TypeVar("T")


class RankPeers(Protocol):
    """The ranks of a run, as this one sees them."""

    @property
    def rank(self) -> int:
        """Of this one."""
        ...

    def all_gather_object(self, item: T) -> list[T]:
        """What every rank gives, by rank. Returns when all have called it."""
        ...


class RankedSink(RecordSink, Protocol):
    """A sink that also knows what it is not to keep. The Recorder is one."""

    def apply_remote(self, event: AnyEvent) -> None:
        """Take in an event that another rank keeps."""
        ...


class RankedEventHub(EventHub):
    """The hub of one rank. What `emit` is given waits for the next `announce`, which all ranks call together."""

    def __init__(self, sink: RankedSink, detector: Detector, peers: RankPeers) -> None:
        super().__init__(sink, detector)
        self._hear = sink.apply_remote
        self._peers = peers
        self._pending: list[AnyEvent] = []
        """What this rank has told since the last announcement."""
        self._detached = False

    def emit_global(self, event: AnyEvent) -> None:
        """Give out what every rank has told, rank by rank, and after it rank 0's `event`; the others' is not used."""
        if self._detached:
            self.emit(event)
            return
        said, self._pending = self._pending, []
        if self._peers.rank == 0:
            self.emit(event)
        announced, self._pending = self._pending, []
        try:
            told = self._peers.all_gather_object((time.time(), said, announced))
        except Exception:
            self._pending = said  # for `part`: this rank has told it, whether the others hear it or not
            raise
        now, _, announced = told[0]
        for rank, (_, events, _) in enumerate(told):
            self._publish(events, now, rank)
        self._publish(announced, now, 0)

    def stop_synchronising(self) -> None:
        """Go on alone: what was told and is still to be told is this rank's word, not agreed on with the others."""
        self._detached = True
        said, self._pending = self._pending, []
        self._publish(said, time.time(), self._peers.rank)

    def _clock(self) -> float:
        return self._peers.all_gather_object(time.time())[0]

    def _send(self, event: AnyEvent) -> None:
        if self._detached:
            self._publish([event], time.time(), self._peers.rank)
        else:
            self._pending.append(event)

    def _publish(self, events: list[AnyEvent], now: float, rank: int) -> None:
        for event in events:
            self.seq += 1
            force_setattr(event, "seq", self.seq)
            force_setattr(event, "time", now)
            for queue in self._queues:
                queue.put(event)
            if rank != self._peers.rank:
                self._detector.fold_remote(event)
            # Every file begins with what the run is, so that it can be read by itself.
            if rank == self._peers.rank or isinstance(event, RunStarted):
                self._put(event)
            else:
                self._hear(event)
