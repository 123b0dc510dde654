"""Writes every record of a run in a separate thread, and drops none.

The files on disk are valid at any moment, except for their last line. While the disk rejects writes, or the directory
is not at its path, records are kept in memory; if there are too many, the engine waits. A kill loses nothing that was
written; a loss of power loses at most the events since the last sync.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from esper.common.system.process import NamedThread
from esper.recordings.events import SCHEMA_VERSION
from esper.recordings.events.codec import encode_json, encode_lines
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_manifest import MANIFEST_FILE
from esper.recordings.files.segments import SegmentWriter, compress_segment, list_segments, segment_number, segment_path
from esper.recordings.state.state import Keyframe, Record, RunState, fold

MAX_SEGMENT_BYTES = 64 << 20
"""Size at which a segment is finished."""
MAX_PENDING_RECORDS = 20_000
"""Records in memory from which on the engine waits."""
WRITE_BATCH_RECORDS = 2_000
"""Maximum number of records per write; as many pending records wake the thread before FLUSH_INTERVAL_S is over."""
FLUSH_INTERVAL_S = 0.25
"""Seconds between writes."""
DEFAULT_SYNC_SECONDS = 5.0
"""Default of `--sync-seconds`."""
RETRY_INTERVAL_S = 1.0
"""Seconds between attempts while the disk rejects writes."""


class RecordingError(Exception):
    """A run cannot be recorded: its directory cannot be made or written, or another process records to it.

    The message is one sentence: which path, and why.
    """


def open_run_directory(path: Path) -> RunDirectory:
    """Open the directory of a run to record to it.

    Raises:
        RecordingError: It does not exist, or cannot be opened.
    """
    try:
        return RunDirectory(path)
    except OSError as error:
        raise RecordingError(_write_error(path, error)) from error


def check_run_directory(directory: RunDirectory) -> None:
    """Raise RecordingError if another directory, or none, is at the path of a run."""
    try:
        directory.check()
    except OSError as error:
        raise RecordingError(_write_error(directory.path, error)) from error


def write_manifest(directory: RunDirectory, manifest: dict[str, Any]) -> None:
    """Write `run.json` atomically, with the schema number of the events. The recorder restores it if it is deleted.

    Raises:
        RecordingError: The file cannot be written.
    """
    text = msgspec.json.format(encode_json({"schema": SCHEMA_VERSION, **manifest}), indent=2)
    try:
        directory.keep(MANIFEST_FILE, text + b"\n")
    except OSError as error:
        raise RecordingError(_write_error(directory.path, error)) from error


class Recorder:
    """Recorder of a new or resumed run. It writes to a new segment after the existing ones.

    The first record of a resumed run must be the Keyframe of its checkpoint; a new run starts with an empty RunState.

    Args:
        directory: Directory of the run.
        sync_seconds: Seconds between two syncs of the events to the disk.

    Raises:
        RecordingError: The directory cannot be written to.
    """

    def __init__(self, directory: RunDirectory, sync_seconds: float = DEFAULT_SYNC_SECONDS) -> None:
        self.directory = directory.path
        self._run_directory = directory
        self._sync_seconds = sync_seconds
        self._last_sync = time.monotonic()
        try:
            folder = directory.check()
            segments = list_segments(folder)
            (folder / "events.part").touch()
            (folder / "events.part").unlink()
        except OSError as error:
            raise RecordingError(_write_error(self.directory, error)) from error
        self._number = segment_number(segments[-1]) if segments else 0
        self._unpacked = [path for path in segments if path.exists()]
        """Segments to pack, including those that a killed run left unpacked."""
        self._packing_thread = threading.Thread()
        """Thread that packs segments; at most one is alive."""
        self._failure: str | None = None
        self.notices: deque[str] = deque()
        """Sentences for the user about losses. The hub removes and reports them."""
        self._incoming: deque[Record] = deque()
        self._wake_threshold = WRITE_BATCH_RECORDS
        self._commands: deque[_RecorderCommand] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._bug: Exception | None = None
        self._state = RunState()
        """State after the last record written."""
        self._segment: SegmentWriter | None = None
        self._batch: list[Record] = []
        """Records that are being written; kept until the write succeeds."""
        self._thread = NamedThread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the last write failed, one sentence for the user; None if it succeeded."""
        return self._failure

    def put(self, record: Record) -> None:
        """Queue a record for writing. Blocks while MAX_PENDING_RECORDS are queued.

        Raises:
            RecordingError: The recorder was closed, or ended by a bug.
        """
        self._incoming.append(record)
        if len(self._incoming) >= self._wake_threshold:
            self._apply_backpressure()

    def _apply_backpressure(self) -> None:
        """Wake the thread, and wait while too many records are queued."""
        if not self._wake.is_set():
            self._wake.set()
        while len(self._incoming) >= MAX_PENDING_RECORDS and self._thread.is_alive():
            time.sleep(0.002)
        self._check_alive()

    def flush(self) -> bool:
        """Write all queued records and sync them to the disk. Blocks.

        Returns:
            True if they were written; False if the disk rejects writes.

        Raises:
            RecordingError: The recorder was closed, or ended by a bug.
        """
        return self._execute(_RecorderCommand(sync=True)).written

    def snapshot(self) -> Keyframe:
        """Return the state after all queued records, even if they could not be written. Raises like `put`."""
        keyframe = self._execute(_RecorderCommand(snapshot=True)).keyframe
        assert keyframe is not None
        return keyframe

    def close(self) -> None:
        """Write the remaining records, pack the segment and end the thread. If it fails, `failure` names the losses."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _execute(self, command: _RecorderCommand) -> _RecorderCommand:
        self._commands.append(command)
        self._wake.set()
        while not command.done.wait(timeout=0.1):
            self._check_alive()
        return command

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise RecordingError(f"the recorder of {self.directory} is closed") from self._bug

    # The methods below run in the recorder's thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.wait(FLUSH_INTERVAL_S if self._failure is None else RETRY_INTERVAL_S)
                self._wake.clear()
                self._write_pending()
                self._run_commands()
                if time.monotonic() - self._last_sync >= self._sync_seconds:
                    self._sync()
            self._finish()
        except Exception as error:  # noqa: BLE001 - the next call raises it in the engine's thread
            self._bug = error
            self._failure = f"the recorder of {self.directory} failed with a bug: {error!r}"
        finally:
            self._wake_threshold = 0

    def _write_pending(self) -> bool:
        """Write all queued records. Returns False if the disk rejects writes, or the directory is not at its path."""
        try:
            folder = self._run_directory.check()
            while self._batch or self._incoming:
                self._fill_batch()
                self._write(folder)
            self._start_packing()
        except OSError as error:
            self._failure = _write_error(self.directory, error)
            return False
        self._failure = None
        return True

    def _fill_batch(self) -> None:
        """Dequeue the next batch, several events or one Keyframe, unless the last batch was not written yet."""
        if self._batch:
            return
        pop, batch = self._incoming.popleft, self._batch
        for _ in range(min(len(self._incoming), WRITE_BATCH_RECORDS)):
            record = pop()
            if type(record) is Keyframe:
                if batch:
                    self._incoming.appendleft(record)
                else:
                    batch.append(record)
                return
            batch.append(record)

    def _write(self, folder: Path) -> None:
        """Write the batch to the directory and apply it to the state. Raises OSError; then the batch is kept."""
        if self._segment is not None and self._segment.is_deleted:
            path = self._shown(self._segment.path)
            self.notices.append(f"{path} was deleted; its events are lost unless the file is restored")
            segment, self._segment = self._segment, None
            with suppress(OSError):
                segment.close()
        first = self._batch[0]
        if isinstance(first, Keyframe):
            self._begin_segment(folder, first)
        else:
            segment = self._segment or self._begin_segment(folder, Keyframe.from_state(self._state, first.time))
            segment.append(encode_lines(self._batch))
        self._state = fold(self._state, self._batch)
        self._batch = []
        if self._segment is not None and self._segment.size >= MAX_SEGMENT_BYTES:
            self._begin_segment(folder, Keyframe.from_state(self._state))

    def _begin_segment(self, folder: Path, keyframe: Keyframe) -> SegmentWriter:
        """Finish the segment and begin the next one with a Keyframe. Raises OSError; then nothing has changed."""
        writer = SegmentWriter(segment_path(folder, self._number + 1), encode_json(keyframe) + b"\n")
        self._number += 1
        self._finish_segment()
        self._segment = writer
        return writer

    def _finish_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._unpacked.append(segment.path)
        try:
            segment.close()
        except OSError as error:  # its descriptor is closed nevertheless
            path = self._shown(segment.path)
            self.notices.append(f"{path} could not be closed and may lack events: {error.strerror}")

    def _shown(self, segment: Path) -> Path:
        """Return the path of a segment for the user."""
        return self.directory / segment.name

    def _start_packing(self) -> None:
        """Pack finished segments in another thread, because each takes seconds."""
        if self._unpacked and not self._packing_thread.is_alive():
            unpacked, self._unpacked = self._unpacked, []
            self._packing_thread = NamedThread(target=_compress_all, args=(unpacked,), name="packer", daemon=True)
            self._packing_thread.start()

    def _run_commands(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            command.written = self._write_pending()
            if command.sync and command.written:
                command.written = self._sync()
            if command.snapshot:
                # No event arrived since the command: the thread that sent it is the only one that emits events.
                pending = [*self._batch, *self._incoming.copy()]
                command.keyframe = Keyframe.from_state(
                    fold(Keyframe.from_state(self._state).decode_state(), pending) if pending else self._state
                )
            command.done.set()

    def _sync(self) -> bool:
        """Sync the lines of the segment to the disk, and restore `run.json`. Returns False if that fails."""
        self._last_sync = time.monotonic()
        try:
            for name in self._run_directory.restore_kept():
                self.notices.append(f"{self.directory / name} was deleted; it is written again")
            if self._segment is not None:
                self._segment.sync()
        except OSError as error:
            self._failure = _write_error(self.directory, error)
            return False
        return True

    def _finish(self) -> None:
        self._write_pending()
        if self._failure:
            time.sleep(RETRY_INTERVAL_S)
            self._write_pending()
        self._run_commands()
        with suppress(OSError):  # `_sync` reports it
            self._run_directory.restore_kept()  # without a notice, which would count as a loss below
        self._sync()
        self._finish_segment()
        lost = len(self._batch) + len(self._incoming)
        if not self._run_directory.is_deleted:  # else all events are lost, and `failure` says so
            if self._failure and lost:
                self._failure = f"{self._failure}; the last {lost} events are lost"
            elif self.notices:  # the hub does not read them any more
                self._failure = "; ".join(self.notices)
        if self._packing_thread.is_alive():
            self._packing_thread.join()
        with suppress(OSError):
            self._run_directory.check()
            _compress_all(self._unpacked)


def _compress_all(segments: Iterable[Path]) -> None:
    for path in segments:
        # If the disk is full, the plain file stays. It is as readable, and the next recorder packs it.
        with suppress(OSError):
            compress_segment(path)


class _RecorderCommand:
    """A command to the recorder's thread, and its result."""

    def __init__(self, *, sync: bool = False, snapshot: bool = False) -> None:
        self.sync = sync
        self.snapshot = snapshot
        self.done = threading.Event()
        self.written = False
        self.keyframe: Keyframe | None = None


def _write_error(directory: Path, error: OSError) -> str:
    return f"cannot record to {directory}: {error.strerror}"
