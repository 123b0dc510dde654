"""A session without an engine: a test emits the records and reads the requests."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from esper.common.control import Request, RequestQueue
from esper.recordings import events as ev
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.state.state import Record
from esper.sanctum.app import SanctumApp
from tests.factory import stamp
from tests.recordings.files.recordings import recording, write_segment


class FakeSession:
    """Stub of the engine thread."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self.control = RequestQueue()
        self.is_engine_alive = True
        self.start_stage = "loading torch"
        self.fatal_error: str | None = None
        self.directory: Path | None = None
        self._run_directory: RunDirectory | None = None
        self.started = False
        self._last_seq = 0
        self.say(*records)

    @property
    def run_directory(self) -> RunDirectory | None:
        """The run directory, if it is known. It is opened once."""
        if self._run_directory is None and self.directory is not None:
            self._run_directory = RunDirectory(self.directory)
        return self._run_directory

    def start(self) -> None:
        """Record the call."""
        self.started = True

    def keep(self, folder: Path, events: Iterable[Record]) -> list[Path]:
        """Create the checkpoint directories that the events name, and return their paths."""
        self.directory = folder
        saved = [Path(event.path) for event in events if isinstance(event, ev.CheckpointSaved)]
        there = [folder.joinpath(*path.parts[-2:]) for path in saved]
        for path in there:
            path.mkdir(parents=True)
        return there

    def record(self, folder: Path, events: Sequence[ev.AnyEvent]) -> Path:
        """Write the recording of the run, and return its file."""
        self.directory = folder
        return write_segment(folder, 1, recording(events))

    def say(self, *records: Record) -> None:
        """Emit records."""
        for record in records:
            self.records.put(record)
            self._last_seq = record.seq if isinstance(record, ev.Event) else self._last_seq

    def emit(self, *events: ev.AnyEvent) -> None:
        """Number events, and emit them."""
        self.say(*stamp(events, first=self._last_seq + 1))

    def asked(self) -> list[Request]:
        """Requests received since the last call."""
        requests: list[Request] = []
        while (request := self.control.get()) is not None:
            requests.append(request)
        return requests


def fall_silent(app: SanctumApp) -> None:
    """Let 1000 s pass without an event of the engine."""
    app.update_stats(time.monotonic())
    app.view.frame_stats.age += 1000.0
    app.update_stats(time.monotonic())
