"""Base class of the events."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type"):
    """Base class of the telemetry events. The hub sets `seq` and `time` when an event is emitted."""

    seq: int = 0
    """Sequence number in the run, from 1, without gaps."""
    time: float = 0.0
    """Wall-clock time in seconds since the epoch, rounded down to milliseconds."""
