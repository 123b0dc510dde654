"""A session without an engine: a test puts the records in, and reads what was asked."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from pathlib import Path

from esper.control import Control, Request
from esper.telemetry.state import Record


class FakeSession:
    """Stands in for the engine's thread."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self.control = Control()
        self.alive = True
        self.failure: str | None = None
        self.directory: Path | None = None
        self.started = False
        self.say(*records)

    def start(self) -> None:
        """Note that it was called."""
        self.started = True

    def say(self, *records: Record) -> None:
        """Let the engine emit."""
        for record in records:
            self.records.put(record)

    def asked(self) -> list[Request]:
        """What was asked since the last look."""
        requests: list[Request] = []
        while (request := self.control.take()) is not None:
            requests.append(request)
        return requests
