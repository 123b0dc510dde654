"""Where events come in, are numbered, dated and looked at, and go out to whoever listens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Protocol

from msgspec.structs import force_setattr, replace

from esper.telemetry.events import AnyEvent, Logged
from esper.telemetry.state import Keyframe, Record, RunState


class Sink(Protocol):
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

    def look(self, event: AnyEvent) -> Sequence[AnyEvent]:
        """Return the anomalies that begin or end with an event."""
        ...

    def hear(self, event: AnyEvent) -> None:
        """Process an event that the detector of another rank checks."""
        ...

    def resume(self, state: RunState) -> None:
        """Start again from a state of the run, which the detector then owns."""
        ...


class Hub:
    """The one way from the engine to its listeners. Only the engine's thread emits; any thread may subscribe."""

    def __init__(self, sink: Sink, detector: Detector) -> None:
        self.seq = 0
        """Number of the last event."""
        self._sink = sink
        self._detector = detector
        self._put = sink.put
        self._queues: tuple[SimpleQueue[Record], ...] = ()
        self._told: str | None = None
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
        for finding in self._detector.look(event):
            self._send(finding)
        self._tell_of_sink()

    def announce(self, event: AnyEvent) -> None:
        """Emit an event that is not of one env or device, but of the run."""
        self.emit(event)

    def part(self) -> None:
        """The run has failed: what is told from here on concerns nobody but this process."""

    def restore(self, keyframe: Keyframe) -> None:
        """Go back to the state of a checkpoint: listeners get it, and the next event follows its number."""
        self.seq = keyframe.seq
        self._detector.resume(keyframe.open())
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
        if failure != self._told:
            self._told = failure
            told = ("error", failure) if failure else ("info", "recording goes on")
            self._send(Logged(severity=told[0], text=told[1]))
