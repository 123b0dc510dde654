"""Requests to a running trainer: pause, resume, step, checkpoint, restore, explain, stop.

Keys, signals and viewers put requests in a queue, and the engine handles them between two steps. It confirms each with
an event (`Paused`, `Resumed`, `CheckpointSaved`, `DecisionExplained`, `RunEnded`). A request has taken effect only once
that event has arrived.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from enum import Enum


class RequestKind(Enum):
    """Kinds of requests to a running engine."""

    PAUSE = "pause"
    RESUME = "resume"
    STEP = "step"
    """While paused: run one step, then pause again."""
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    """Restore a checkpoint and continue from it."""
    EXPLAIN = "explain"
    """Explain the last decision for an env."""
    STOP = "stop"
    """Save a checkpoint and end the run."""
    ABANDON = "abandon"
    """End the run at once, without a checkpoint."""


ENDING_KINDS = frozenset({RequestKind.STOP, RequestKind.ABANDON})
"""Requests that end the run."""


@dataclass(frozen=True)
class Request:
    """A request and its origin."""

    kind: RequestKind
    origin: str
    """Sender of the request, e.g. `keyboard` or `signal`."""
    path: str | None = None
    """Checkpoint directory of a RESTORE request."""
    env: int | None = None
    """Index of the env of an EXPLAIN request."""


class RequestQueue:
    """Queue of requests to the engine. Any thread may put requests; only the engine thread gets them."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._stopped_at: float | None = None
        """Time of `monotonic` of the first STOP or ABANDON request."""
        self.has_begun = False
        """True once the run has something to save, so that a stop waits for the engine."""

    def put(self, kind: RequestKind, origin: str, path: str | None = None, env: int | None = None) -> None:
        """Queue a request."""
        if kind in ENDING_KINDS and self._stopped_at is None:
            self._stopped_at = time.monotonic()
        self._inbox.put(Request(kind, origin, path, env))

    @property
    def stop_requested(self) -> bool:
        """True once a STOP or ABANDON request has been put."""
        return self._stopped_at is not None

    def seconds_since_stop(self) -> float | None:
        """Return the seconds since the first STOP or ABANDON request; None without one."""
        return None if self._stopped_at is None else time.monotonic() - self._stopped_at

    def has_request(self) -> bool:
        """Return True if a request waits."""
        return not self._inbox.empty()

    def get(self, timeout: float = 0.0) -> Request | None:
        """Return the oldest request, or None if none arrives within `timeout` seconds."""
        try:
            return self._inbox.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return None
