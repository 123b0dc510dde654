"""Lines of a recording turned into records, with what cannot be read named instead of dropped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec

from esper.telemetry import events as ev
from esper.telemetry.codec import decoder
from esper.telemetry.segments import Segment
from esper.telemetry.state import Keyframe, Record

KINDS: dict[str, type[ev.Event]] = {kind.__name__: kind for kind in (*get_args(ev.AnyEvent), Keyframe)}
"""The types of record that this version knows."""
LATEST_TIME = 1e11
"""A later wall-clock time (the year 5138) is damage."""

_OF_ENV = frozenset(get_args(ev.OfEnv))


class _Header(msgspec.Struct):
    """What an event of any version has."""

    type: str
    seq: int


_decode_events = decoder(ev.AnyEvent).decode_lines
_decode = decoder(Record).decode
_header: msgspec.json.Decoder[_Header] = decoder(_Header)


class Unreadable(NamedTuple):
    """A line that gives no record."""

    kind: str | None
    """The type that it claims to be; None where it is no event at all."""
    reason: str


Piece: TypeAlias = tuple[int, bytes, list[ev.AnyEvent] | Keyframe | Unreadable]
"""Offset of the byte after some lines, their text, and what they say: events, one a line, or what one line says."""


def scan(segment: Segment, offset: int, envs: int) -> Iterator[Piece]:
    """The whole lines of a segment from a byte on, many at a time where all is well with them.

    `envs` is how many envs the run has there; an event of another env is damage, as the fold would have no place for
    it. The same lines give the same records wherever the scan begins. Raises ReadError when the file cannot be read.
    """
    for end, text in segment.pieces(offset):
        events = _sound_events(text, envs)
        if events is not None:
            yield end, text, events
            continue
        at = end - len(text)
        for line in text.split(b"\n")[:-1]:
            at += len(line) + 1
            record = _read_line(line, envs)
            if isinstance(record, (Keyframe, Unreadable)):
                yield at, line, record
            else:
                if isinstance(record, ev.RunStarted):
                    envs = len(record.lanes)
                yield at, line, [record]


def _sound_events(text: bytes, envs: int) -> list[ev.AnyEvent] | None:
    """The events of some lines; None where one of them is to be looked at by itself."""
    try:
        events = _decode_events(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if len(events) != text.count(b"\n"):
        return None
    times = [event.time for event in events]
    told_of = {event.env for event in events if type(event) in _OF_ENV}
    if (
        not (math.isfinite(sum(times)) and min(times) >= 0 and max(times) < LATEST_TIME)
        or not all(0 <= env < envs for env in told_of)
        or ev.RunStarted in set(map(type, events))
    ):
        return None
    return events


def _read_line(line: bytes, envs: int) -> Record | Unreadable:
    try:
        record = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unreadable(_claimed_kind(line), str(error))
    if not 0 <= record.time < LATEST_TIME:
        return Unreadable(None, f"its time, {record.time}, is no time")
    match record:
        case ev.RunStarted() if envs and len(record.lanes) != envs:
            return Unreadable(None, f"it begins a run of {len(record.lanes)} envs, and this one has {envs}")
    return placed(record, envs)


def placed(record: Record, envs: int) -> Record | Unreadable:
    """The record, unless it is of an env that a run of so many does not have."""
    if isinstance(record, ev.OfEnv) and not 0 <= record.env < envs:
        return Unreadable(None, f"it is about env {record.env}, and the run has {envs}")
    return record


def unknown_fields(line: bytes, record: Record) -> list[str]:
    """Fields in the line of a record, and in its parts, that this version does not know."""
    written = msgspec.json.decode(line.decode("utf-8", "replace"))
    del written["type"]
    return sorted(set(_strange_keys(written, record)))


def _strange_keys(written: Any, read: Any) -> Iterator[str]:
    match read:
        case msgspec.Struct():
            known = {field: getattr(read, field) for field in read.__struct_fields__}
            yield from written.keys() - known.keys()
        case dict():
            known = read
        case list() | tuple():
            written, known = dict(enumerate(written)), dict(enumerate(read))
        case _:
            return
    for key in written.keys() & known.keys():
        yield from _strange_keys(written[key], known[key])


def _claimed_kind(text: bytes) -> str | None:
    try:
        return _header.decode(text).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
