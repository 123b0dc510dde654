"""Interface of a run to the live dashboard."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Protocol

from esper.sanctum.requests import RequestSink
from esper.telemetry.state import Record


class RunHandle(Protocol):
    """Run whose engine a live source starts and reads from."""

    records: queue.SimpleQueue[Record]

    @property
    def fatal_error(self) -> str | None:
        """Error message if the run could not be set up, else None."""
        ...

    @property
    def directory(self) -> Path | None:
        """Run directory; None before the run is set up."""
        ...

    @property
    def control(self) -> RequestSink:
        """Queue that accepts requests for the engine."""
        ...

    @property
    def is_engine_alive(self) -> bool:
        """True while the engine runs."""
        ...

    def start(self) -> None:
        """Start the engine in a thread, which also imports torch."""
        ...
