"""Pause, resume, checkpoint, stop: what keys and signals ask for, and the engine honours between steps.

The engine answers with an event (Paused, Resumed, CheckpointSaved, RunEnded); nobody should believe that a request was
honoured before that event has come.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from enum import Enum


class RequestKind(Enum):
    """What can be asked of a running engine."""

    PAUSE = "pause"
    RESUME = "resume"
    STEP = "step"
    """While paused: one step, then hold again."""
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    """Go back to a checkpoint, and go on from there."""
    STOP = "stop"
    """End the run, with a checkpoint."""
    ABANDON = "abandon"
    """End the run at once, without one."""


@dataclass(frozen=True)
class Request:
    """One request: what, and who asked (keyboard, signal)."""

    kind: RequestKind
    origin: str
    path: str | None = None
    """RESTORE: the directory of the checkpoint."""


class RequestQueue:
    """The engine's inbox. Any thread may ask; the engine's thread takes."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.stop_requested = False
        """Whether the end of the run was ever asked for."""

    def put(self, kind: RequestKind, origin: str, path: str | None = None) -> None:
        """Queue a request."""
        self.stop_requested |= kind in {RequestKind.STOP, RequestKind.ABANDON}
        self._inbox.put(Request(kind, origin, path))

    def get(self, timeout: float = 0.0) -> Request | None:
        """Take the oldest request; wait at most `timeout` seconds for one. None when there is none."""
        try:
            return self._inbox.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return None
