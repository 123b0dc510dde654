"""Event hub: numbers and timestamps events, checks them for anomalies, and forwards them to sink and subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

from msgspec.structs import force_setattr, replace

from esper.recordings.events import AnyEvent, ClockChanged, Logged
from esper.recordings.events.clock import EventClock
from esper.recordings.state.state import Keyframe, Record, RunState


class RecordSink(Protocol):
    """Destination of all records, such as `Recorder`. It blocks the engine rather than lose a record."""

    @property
    def failure(self) -> str | None:
        """Error that prevents recording at the moment, in one sentence; None if there is none."""
        ...

    @property
    def notices(self) -> deque[str]:
        """Sentences about lost records. The hub logs and removes them."""
        ...

    def put(self, record: Record) -> None:
        """Store a record. Block while there is no room."""
        ...

    def flush(self) -> bool:
        """Wait until all records are on disk. Return False if they cannot be written."""
        ...

    def snapshot(self) -> Keyframe:
        """Return the state after all stored records."""
        ...


class Detector(Protocol):
    """Finder of anomalies in the events of a run, such as `AnomalyDetector`."""

    def check(self, event: AnyEvent) -> Sequence[AnyEvent]:
        """Process an event, and return the anomalies that begin or end with it."""
        ...

    def resume(self, state: RunState) -> None:
        """Continue from a state of the run. The detector takes ownership of the state."""
        ...


class EventHub:
    """Distributor of the engine's events. Only the engine's thread may emit; any thread may subscribe."""

    def __init__(self, sink: RecordSink, detector: Detector) -> None:
        self.seq = 0
        """Sequence number of the last event."""
        self.warnings: deque[str] = deque()
        """Sentences from other threads, which the hub logs and removes."""
        self.take_printed: Callable[[], list[str]] = list
        """Returns the lines that the user's code has printed since the last call, which the hub logs."""
        self._sink = sink
        self._detector = detector
        self._clock = EventClock()
        self._put = sink.put
        self._queues: tuple[SimpleQueue[Record], ...] = ()
        self._reported_failure: str | None = None
        """Failure of the sink that was logged last."""

    @property
    def failure(self) -> str | None:
        """Error that prevents recording at the moment, in one sentence; None if there is none."""
        return self._sink.failure

    def subscribe(self, queue: SimpleQueue[Record] | None = None) -> SimpleQueue[Record]:
        """Put every later record into a queue, and return it. `emit` never waits for it, so the caller must drain it.

        Args:
            queue: Queue to fill; a new one if None.
        """
        queue = SimpleQueue() if queue is None else queue
        self._queues = (*self._queues, queue)
        return queue

    def emit(self, event: AnyEvent) -> None:
        """Number, timestamp and forward an event of an env or lane, then the anomalies that it starts or ends."""
        self._send(event)
        for finding in self._detector.check(event):
            self._send(finding)
        self._report_sink()

    def emit_global(self, event: AnyEvent) -> None:
        """Emit an event of the whole run, not of one env or lane. All ranks call it together; that of rank 0 counts."""
        self.collect()
        self.emit(event)

    def collect(self) -> None:
        """Emit the events of the other ranks since the last call, by rank. All ranks call it together."""

    def rewind(self, keyframe: Keyframe) -> None:
        """Restore the state of a checkpoint and forward it to subscribers. The next event continues its numbering."""
        self.seq = keyframe.seq
        self._detector.resume(keyframe.decode_state())
        now, _ = self._clock.read()  # a restored state starts its own times, so a change of the clock is no event
        self._forward(replace(keyframe, restored=now))

    def flush(self) -> bool:
        """Wait until all emitted events are on disk. Log an event and return False if they cannot be written."""
        flushed = self._sink.flush()
        self._report_sink()
        return flushed

    def snapshot(self) -> Keyframe:
        """Return the state after all emitted events, for a checkpoint."""
        return self._sink.snapshot()

    def _send(self, event: AnyEvent) -> None:
        now, change = self._clock.read()
        if change:
            self._stamp(ClockChanged(seconds=change), now)
        self._stamp(event, now)

    def _stamp(self, event: AnyEvent, now: float) -> None:
        self.seq += 1
        # Writing to a frozen event is safe here: it was made for this call and has no other reference yet.
        force_setattr(event, "seq", self.seq)
        force_setattr(event, "time", now)
        self._forward(event)

    def _forward(self, record: Record) -> None:
        for queue in self._queues:
            queue.put(record)
        self._put(record)

    def _report_sink(self) -> None:
        while self._sink.notices:
            self._send(Logged(severity="error", text=self._sink.notices.popleft()))
        while self.warnings:
            self._send(Logged(severity="warning", text=self.warnings.popleft()))
        for line in self.take_printed():
            self._send(Logged(severity="info", text=line))
        failure = self._sink.failure
        if failure != self._reported_failure:
            self._reported_failure = failure
            severity, text = ("error", failure) if failure else ("info", "recording resumed")
            self._send(Logged(severity=severity, text=text))


T = TypeVar("T")


class RankPeers(Protocol):
    """Collective operations of the ranks of a run."""

    def all_gather_object(self, item: T) -> list[T]:
        """Return the items of all ranks, by rank. Blocks until every rank has called it."""
        ...


class FirstRankEventHub(EventHub):
    """Event hub of rank 0, which numbers, checks and forwards the events of all ranks."""

    def __init__(self, sink: RecordSink, detector: Detector, peers: RankPeers) -> None:
        super().__init__(sink, detector)
        self._peers = peers

    def collect(self) -> None:
        """Emit the events of the other ranks since the last call, by rank. All ranks call it together."""
        no_events: list[AnyEvent] = []  # those of this rank were emitted at once
        for events in self._peers.all_gather_object(no_events):
            for event in events:
                self.emit(event)


class OtherRankEventHub(EventHub):
    """Event hub of a rank other than 0. It sends its events to rank 0, and neither checks nor records them."""

    def __init__(self, peers: RankPeers) -> None:
        unused = _Unused()
        super().__init__(unused, unused)
        self._peers = peers
        self._pending: list[AnyEvent] = []
        """Events since the last `collect`."""

    def emit_global(self, event: AnyEvent) -> None:  # noqa: ARG002 (rank 0 emits its own)
        """Send the pending events to rank 0. All ranks call it together; the event of rank 0 counts."""
        self.collect()

    def collect(self) -> None:
        """Send the pending events to rank 0. All ranks call it together."""
        pending, self._pending = self._pending, []
        self._peers.all_gather_object(pending)

    def _send(self, event: AnyEvent) -> None:
        self._pending.append(event)


class _Unused:
    """Sink and detector of a rank whose events are recorded and checked by rank 0."""

    failure = None

    def __init__(self) -> None:
        self.notices: deque[str] = deque()

    def put(self, record: Record) -> None:
        """Do nothing."""

    def flush(self) -> bool:
        return True

    def snapshot(self) -> Keyframe:
        raise AssertionError("only rank 0 has the state of the run")

    def check(self, event: AnyEvent) -> Sequence[AnyEvent]:  # noqa: ARG002
        return ()

    def resume(self, state: RunState) -> None:
        """Do nothing."""
