"""Writes every record of a run in a thread of its own, and never drops one.

What is on disk is valid at any moment but for its last line. While the disk refuses, records wait in memory; when too
many wait, the engine waits as well.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

import msgspec

from esper.recording.segments import SegmentWriter, compress_segment, list_segments, segment_number, segment_path
from esper.telemetry.codec import encode_json, encode_lines
from esper.telemetry.events import SCHEMA_VERSION, AnyEvent
from esper.telemetry.state import Keyframe, Record, RunState

MAX_SEGMENT_BYTES = 64 << 20
"""Size at which a segment is finished."""
MAX_PENDING_RECORDS = 20_000
"""Records in memory at which the engine waits."""
WRITE_BATCH_RECORDS = 2_000
"""Records written at once; when so many wait, the thread does not sleep on."""
FLUSH_INTERVAL_S = 0.25
"""Seconds between writes."""
RETRY_INTERVAL_S = 1.0
"""Seconds between attempts while the disk refuses."""


class RecordingError(Exception):
    """A run that cannot be recorded. One sentence for people."""


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write `run.json`, whole or not at all, and the directory if need be; the schema number of the events is added.

    Raises RecordingError if it cannot be written.
    """
    path = directory / "run.json"
    partial = path.with_name("run.json.part")
    text = msgspec.json.format(encode_json({"schema": SCHEMA_VERSION, **manifest}), indent=2)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(text + b"\n")
        partial.replace(path)
    except OSError as error:
        raise RecordingError(_write_error(directory, error)) from error


class Recorder:
    """Records a run, new or resumed, in a new segment after those that are there.

    A resumed run puts the Keyframe of its checkpoint first; a new one begins with the empty RunState.
    """

    def __init__(self, directory: Path) -> None:
        """Raises RecordingError if the directory cannot be made, or not be written to."""
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            segments = list_segments(directory)
            (directory / "events.part").touch()
            (directory / "events.part").unlink()
        except OSError as error:
            raise RecordingError(_write_error(directory, error)) from error
        self._number = segment_number(segments[-1]) if segments else 0
        self._finished = [path for path in segments if path.exists()]
        """Segments to pack: those that a killed run left are among them."""
        self._packer = threading.Thread()
        """Packs segments while it is alive; there is one at most."""
        self._failure: str | None = None
        self.notices: deque[str] = deque()
        """What of the recording was lost, for the one who tells of it to take out: sentences for people."""
        self._incoming: deque[Record | _RemoteEvent] = deque()
        self._wake_threshold = WRITE_BATCH_RECORDS
        self._requests: deque[_RecorderCommand] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._broken: Exception | None = None
        self._state = RunState()
        """As of the last record written."""
        self._segment: SegmentWriter | None = None
        self._batch: list[Record | _RemoteEvent] = []
        """Records on their way to the disk."""
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why nothing can be written just now: one sentence for people. None while all is well."""
        return self._failure

    def put(self, record: Record) -> None:
        """Take a record in; waits while too many wait already.

        Raises RecordingError when the recorder has ended: closed, or by a fault in the program.
        """
        self._incoming.append(record)
        if len(self._incoming) >= self._wake_threshold:
            self._apply_backpressure()

    def apply_remote(self, event: AnyEvent) -> None:
        """Take an event into the state that another rank of the run records. Waits, and raises, as `put` does."""
        self._incoming.append(_RemoteEvent(event))
        if len(self._incoming) >= self._wake_threshold:
            self._apply_backpressure()

    def _apply_backpressure(self) -> None:
        """Have those that wait written, and wait while they are too many."""
        if not self._wake.is_set():
            self._wake.set()
        while len(self._incoming) >= MAX_PENDING_RECORDS and self._thread.is_alive():
            time.sleep(0.002)
        self._check_alive()

    def flush(self) -> bool:
        """Return once everything put so far would survive a loss of power; False if it cannot be written now.

        Raises RecordingError as `put` does.
        """
        return self._ask(_RecorderCommand(sync=True)).written

    def snapshot(self) -> Keyframe:
        """The state after everything put so far, whether it could be written or not. Raises as `put` does."""
        keyframe = self._ask(_RecorderCommand(snapshot=True)).keyframe
        assert keyframe is not None
        return keyframe

    def close(self) -> None:
        """Write what is left, pack the segment, and end. If that cannot be, `failure` says what was lost."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _ask(self, request: _RecorderCommand) -> _RecorderCommand:
        self._requests.append(request)
        self._wake.set()
        while not request.done.wait(timeout=0.1):
            self._check_alive()
        return request

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise RecordingError(f"the recorder of {self.directory} has ended") from self._broken

    # What follows runs in the recorder's thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.wait(FLUSH_INTERVAL_S if self._failure is None else RETRY_INTERVAL_S)
                self._wake.clear()
                self._catch_up()
                self._answer()
            self._end()
        except Exception as error:  # noqa: BLE001 - it is raised again in the engine's thread, by the next call
            self._broken = error
            self._failure = f"the recorder of {self.directory} has broken down: {error!r}"
        finally:
            self._wake_threshold = 0

    def _catch_up(self) -> bool:
        """Write everything that has come. False while the disk refuses."""
        try:
            while self._batch or self._incoming:
                self._take()
                self._write()
            self._pack()
        except OSError as error:
            self._failure = _write_error(self.directory, error)
            return False
        self._failure = None
        return True

    def _take(self) -> None:
        """Take what comes next, unless something is still on its way: a batch of events, or one Keyframe."""
        if self._batch:
            return
        take, taken = self._incoming.popleft, self._batch
        for _ in range(min(len(self._incoming), WRITE_BATCH_RECORDS)):
            record = take()
            if type(record) is Keyframe:
                if taken:
                    self._incoming.appendleft(record)
                else:
                    taken.append(record)
                return
            taken.append(record)

    def _write(self) -> None:
        """Write what was taken, and fold it. Raises OSError; then it is still taken."""
        if self._segment is not None and self._segment.is_deleted:
            gone = "has vanished, with the events in it: they are lost unless it comes back"
            self.notices.append(f"{self._segment.path} {gone}")
            segment, self._segment = self._segment, None
            with suppress(OSError):
                segment.close()
        first = self._batch[0]
        if isinstance(first, Keyframe):
            self._begin_segment(first)
        else:
            own = [record for record in self._batch if type(record) is not _RemoteEvent]
            if own:
                segment = self._segment or self._begin_segment(Keyframe.from_state(self._state))
                segment.append(encode_lines(own))
        self._state = _fold(self._state, self._batch)
        self._batch = []
        if self._segment is not None and self._segment.size >= MAX_SEGMENT_BYTES:
            self._begin_segment(Keyframe.from_state(self._state))

    def _begin_segment(self, keyframe: Keyframe) -> SegmentWriter:
        """Finish the segment, and begin the next with a Keyframe. Raises OSError; then nothing has changed."""
        begun = SegmentWriter(segment_path(self.directory, self._number + 1), encode_json(keyframe) + b"\n")
        self._number += 1
        self._finish_segment()
        self._segment = begun
        return begun

    def _finish_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._finished.append(segment.path)
        try:
            segment.close()
        except OSError as error:  # its descriptor is gone all the same
            self.notices.append(f"{segment.path} could not be finished, and may lack events: {error.strerror}")

    def _pack(self) -> None:
        """Have finished segments packed, beside what goes on: it takes seconds each."""
        if self._finished and not self._packer.is_alive():
            finished, self._finished = self._finished, []
            self._packer = threading.Thread(target=_pack_all, args=(finished,), name="packer", daemon=True)
            self._packer.start()

    def _answer(self) -> None:
        while self._requests:
            request = self._requests.popleft()
            request.written = self._catch_up()
            if request.sync and request.written:
                request.written = self._sync()
            if request.snapshot:
                # No event can have come since: the one who asks is the one who emits.
                waiting = [*self._batch, *self._incoming.copy()]
                request.keyframe = Keyframe.from_state(
                    _fold(Keyframe.from_state(self._state).decode_state(), waiting) if waiting else self._state
                )
            request.done.set()

    def _sync(self) -> bool:
        try:
            if self._segment is not None:
                self._segment.sync()
        except OSError as error:
            self._failure = _write_error(self.directory, error)
            return False
        return True

    def _end(self) -> None:
        self._catch_up()
        if self._failure:
            time.sleep(RETRY_INTERVAL_S)
            self._catch_up()
        self._answer()
        self._sync()
        self._finish_segment()
        lost = len(self._batch) + len(self._incoming)
        if self._failure and lost:
            self._failure = f"{self._failure}; the last {lost} events are lost"
        elif self.notices:  # nobody takes them out any more
            self._failure = "; ".join(self.notices)
        if self._packer.is_alive():
            self._packer.join()
        _pack_all(self._finished)


def _pack_all(segments: Iterable[Path]) -> None:
    for path in segments:
        # Where there is no room for it, the plain file stays: it reads as well, and the next recorder packs it.
        with suppress(OSError):
            compress_segment(path)


@final
class _RemoteEvent(NamedTuple):
    """An event that changes the state, and is recorded elsewhere."""

    event: AnyEvent


class _RecorderCommand:
    """A question to the recorder's thread, and its answer."""

    def __init__(self, *, sync: bool = False, snapshot: bool = False) -> None:
        self.sync = sync
        self.snapshot = snapshot
        self.done = threading.Event()
        self.written = False
        self.keyframe: Keyframe | None = None


def _fold(state: RunState, records: Iterable[Record | _RemoteEvent]) -> RunState:
    """The state after the records; the one given is used up."""
    for record in records:
        if type(record) is _RemoteEvent:
            state.apply(record.event)
        elif type(record) is Keyframe:
            state = record.decode_state()
        else:
            state.apply(record)
    return state


def _write_error(directory: Path, error: OSError) -> str:
    return f"cannot record to {directory}: {error.strerror}"
