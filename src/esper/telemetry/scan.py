"""Lines of a recording turned into records, with what cannot be read named instead of dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, get_args

import msgspec

from esper.telemetry import events as ev
from esper.telemetry.codec import decoder
from esper.telemetry.segments import Segment
from esper.telemetry.state import Keyframe, Record

KINDS: dict[str, type[ev.Event]] = {kind.__name__: kind for kind in (*get_args(ev.AnyEvent), Keyframe)}
"""The types of record that this version knows."""
LATEST_TIME = 1e11
"""A later wall-clock time (the year 5138) is damage."""

_OF_ENV = frozenset({ev.EnvStepped, ev.SeedMoved, ev.GateRefused, ev.GovernorRolledBack, ev.EpisodeEnded})


class _Header(msgspec.Struct):
    """What an event of any version has."""

    type: str
    seq: int


_decode = decoder(Record).decode
_header: msgspec.json.Decoder[_Header] = decoder(_Header)


class Unreadable(NamedTuple):
    """A line that gives no record."""

    kind: str | None
    """The type that it claims to be; None where it is no event at all."""
    reason: str


Line: TypeAlias = tuple[int, bytes, Record | Unreadable]
"""Offset of the byte after a line, its text, and what it says."""


def scan(segment: Segment, offset: int, envs: int) -> Iterator[Line]:
    """The whole lines of a segment from a byte on.

    `envs` is how many envs the run has there; an event of another env is damage, as the fold would have no place for
    it. The same lines give the same records wherever the scan begins. Raises ReadError when the file cannot be read.
    """
    for end, text in segment.lines(offset):
        try:
            record = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield end, text, Unreadable(_claimed_kind(text), str(error))
            continue
        kind = type(record)
        if not 0 <= record.time < LATEST_TIME:
            yield end, text, Unreadable(None, f"its time, {record.time}, is no time")
        elif kind in _OF_ENV and not 0 <= record.env < envs:
            yield end, text, Unreadable(None, f"it is about env {record.env}, and the run has {envs}")
        else:
            if kind is ev.RunStarted:
                envs = len(record.lanes)
            yield end, text, record


def unknown_fields(text: bytes, kind: type[ev.Event]) -> list[str]:
    """Fields of a readable line that this version does not know."""
    fields = msgspec.json.decode(text.decode("utf-8", "replace"))
    return sorted(set(fields) - {"type", *kind.__struct_fields__})


def _claimed_kind(text: bytes) -> str | None:
    try:
        return _header.decode(text).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
