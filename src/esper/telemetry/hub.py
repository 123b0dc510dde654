"""Event hub: numbers and timestamps events, checks them for anomalies, and forwards them to sink and subscribers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

from msgspec.structs import force_setattr, replace

from esper.telemetry.events import AnyEvent, Logged, RunStarted
from esper.telemetry.state import Keyframe, Record, RunState


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

    def fold_remote(self, event: AnyEvent) -> None:
        """Process an event that the detector of another rank checks."""
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
        """Emit an event of the whole run, not of one env or lane."""
        self.emit(event)

    def stop_synchronising(self) -> None:
        """Stop synchronising events with other ranks after a failure. Does nothing for a single rank."""

    def rewind(self, keyframe: Keyframe) -> None:
        """Restore the state of a checkpoint and forward it to subscribers. The next event continues its numbering."""
        self.seq = keyframe.seq
        self._detector.resume(keyframe.decode_state())
        self._forward(replace(keyframe, restored=self._clock()))

    def flush(self) -> bool:
        """Wait until all emitted events are on disk. Log an event and return False if they cannot be written."""
        flushed = self._sink.flush()
        self._report_sink()
        return flushed

    def snapshot(self) -> Keyframe:
        """Return the state after all emitted events, for a checkpoint."""
        return self._sink.snapshot()

    def _clock(self) -> float:
        return time.time()

    def _send(self, event: AnyEvent) -> None:
        self.seq += 1
        # Writing to a frozen event is safe here: it was made for this call and has no other reference yet.
        force_setattr(event, "seq", self.seq)
        force_setattr(event, "time", int(time.time() * 1000) / 1000)
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

    @property
    def rank(self) -> int:
        """Rank of this process."""
        ...

    def all_gather_object(self, item: T) -> list[T]:
        """Return the items of all ranks, by rank. Blocks until every rank has called it."""
        ...


class RankedSink(RecordSink, Protocol):
    """Sink that also receives the events that other ranks record, such as `Recorder`."""

    def apply_remote(self, event: AnyEvent) -> None:
        """Process an event that another rank records."""
        ...


class RankedEventHub(EventHub):
    """Event hub of one of several ranks. Events wait for the next `emit_global`, which all ranks call together."""

    def __init__(self, sink: RankedSink, detector: Detector, peers: RankPeers) -> None:
        super().__init__(sink, detector)
        self._apply_remote = sink.apply_remote
        self._peers = peers
        self._pending: list[AnyEvent] = []
        """Events of this rank since the last `emit_global`."""
        self._detached = False

    def emit_global(self, event: AnyEvent) -> None:
        """Forward the pending events of all ranks by rank, then rank 0's `event`. Other ranks' events are ignored."""
        if self._detached:
            self.emit(event)
            return
        pending, self._pending = self._pending, []
        if self._peers.rank == 0:
            self.emit(event)
        global_events, self._pending = self._pending, []
        try:
            gathered = self._peers.all_gather_object((time.time(), pending, global_events))
        except Exception:
            self._pending = pending  # `stop_synchronising` publishes them, although other ranks may not have them
            raise
        now, _, global_events = gathered[0]
        for rank, (_, events, _) in enumerate(gathered):
            self._publish(events, now, rank)
        self._publish(global_events, now, 0)

    def stop_synchronising(self) -> None:
        """Publish pending and later events on this rank only, without agreement with the other ranks."""
        self._detached = True
        pending, self._pending = self._pending, []
        self._publish(pending, time.time(), self._peers.rank)

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
            # RunStarted is in the file of every rank, so that each file can be read alone.
            if rank == self._peers.rank or isinstance(event, RunStarted):
                self._put(event)
            else:
                self._apply_remote(event)
