"""Decodes lines into records, and reports what cannot be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, get_args

import msgspec

from esper.recording.segments import ReadError, Segment, is_packed
from esper.telemetry import events as ev
from esper.telemetry.codec import make_decoder
from esper.telemetry.state import Keyframe, Record

RECORD_TYPES: dict[str, type[ev.Event]] = {kind.__name__: kind for kind in (*get_args(ev.AnyEvent), Keyframe)}
"""The types of record that this version knows."""
MAX_TIMESTAMP_S = 1e11
"""A later wall-clock time (the year 5138) is damage."""

_OF_ENV = frozenset(get_args(ev.EnvEvent))


class _Header(msgspec.Struct):
    """What an event of any version has."""

    type: str
    seq: int


_decode_events = make_decoder(ev.AnyEvent).decode_lines
_decode = make_decoder(Record).decode
_header: msgspec.json.Decoder[_Header] = make_decoder(_Header)


class UnreadableLine(NamedTuple):
    """A line that gives no record."""

    type_name: str | None
    """The type that it claims to be; None where it is no event at all."""
    reason: str


ScannedLines: TypeAlias = tuple[int, bytes, list[ev.AnyEvent] | Keyframe | UnreadableLine]
"""Offset of the byte after some lines, their text, and what they say: events, one a line, or what one line says."""


class RecordSource(Protocol):
    """Readable recording: one segment, or the recordings of all ranks merged into one stream."""

    path: Path
    """Plain path of the file; for merged recordings, that of the first segment of rank 0."""

    @property
    def is_finished(self) -> bool:
        """True if nothing will be appended any more."""
        ...

    @property
    def is_corrupt(self) -> bool:
        """True if a part of a packed file could not be unpacked."""
        ...

    @property
    def damaged_paths(self) -> list[Path]:
        """Packed files that could not be unpacked completely."""
        ...

    def scan(self, offset: int, envs: int) -> Iterator[ScannedLines]:
        """Decode the complete lines from an offset on.

        Args:
            offset: Bytes before the first line to decode, as returned by an earlier scan.
            envs: Number of envs of the run at that offset; 0 if not known yet. An event of another env is damage,
                because RunState could not apply it.

        Raises:
            ReadError: A file cannot be read.
        """
        ...

    def remainder(self, offset: int) -> bytes:
        """Return the start of the text after an offset; empty at the end."""
        ...

    def describe_line(self, offset: int) -> str:
        """Return path and number of the line that ends at an offset, for messages."""
        ...


class DecodedSegment(Segment):
    """Segment whose lines are decoded into records."""

    def scan(self, offset: int, envs: int) -> Iterator[ScannedLines]:
        """Decode the complete lines from an offset on, as many at a time as are intact: see `RecordSource.scan`.

        The same lines give the same records, whatever offset the scan starts from.
        """
        for end, text in self.line_blocks(offset):
            events = _decode_batch(text, envs)
            if events is not None:
                yield end, text, events
                continue
            line_end = end - len(text)
            for line in text.split(b"\n")[:-1]:
                line_end += len(line) + 1
                record = _read_line(line, envs)
                if isinstance(record, (Keyframe, UnreadableLine)):
                    yield line_end, line, record
                else:
                    if isinstance(record, ev.RunStarted):
                        envs = len(record.lanes)
                    yield line_end, line, [record]


def _decode_batch(text: bytes, envs: int) -> list[ev.AnyEvent] | None:
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
        not (math.isfinite(sum(times)) and min(times) >= 0 and max(times) < MAX_TIMESTAMP_S)
        or not all(0 <= env < envs for env in told_of)
        or ev.RunStarted in set(map(type, events))
    ):
        return None
    return events


def _read_line(line: bytes, envs: int) -> Record | UnreadableLine:
    try:
        record = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return UnreadableLine(_claimed_kind(line), str(error))
    if not 0 <= record.time < MAX_TIMESTAMP_S:
        return UnreadableLine(None, f"its time, {record.time}, is no time")
    match record:
        case ev.RunStarted() if envs and len(record.lanes) != envs:
            return UnreadableLine(None, f"it begins a run of {len(record.lanes)} envs, and this one has {envs}")
    return check_env_index(record, envs)


def check_env_index(record: Record, envs: int) -> Record | UnreadableLine:
    """The record, unless it is of an env that a run of so many does not have."""
    if isinstance(record, ev.EnvEvent) and not 0 <= record.env < envs:
        return UnreadableLine(None, f"it is about env {record.env}, and the run has {envs}")
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


MAX_DAMAGE_NOTICES = 20
"""Damaged lines told one by one."""
MAX_UNREADABLE_LINES = 50
"""Number of unreadable lines after which a type counts as another version's, or the file as no recording."""


def partial_line_message(path: Path) -> str:
    """Return the notice for a file whose last line has no end."""
    return f"{path} ends in the middle of a line; that event is lost"


def damaged_line_message(location: str, reason: str) -> str:
    """Return the notice for a damaged line, given its path and number."""
    return f"{location} is damaged and was skipped: {reason}"


def unknown_type_message(type_name: str) -> str:
    """Return the notice for events of a type that this version does not know."""
    return f"events of the unknown type {type_name} were skipped; a newer version wrote them"


class Notices:
    """Hears of every file, of what was read for the first time, and of every line that was not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[object, str] = {}
        self._damaged = 0
        self._seen: set[str] = set()
        """Types of which a record was read."""
        self._met: set[type[Record]] = set()
        """Those of which one was read in this file."""
        self._missing: dict[Path, tuple[int, int]] = {}
        """For each file: the number of the first event that is not in it, though later ones are, and how many such."""
        self._refused: dict[str, tuple[int, str]] = {}
        """For each type of which none was read: how many lines were not, and why the first was not."""

    @property
    def messages(self) -> list[str]:
        """What there is to tell people."""
        more = (
            [f"{self._damaged - MAX_DAMAGE_NOTICES} more lines are damaged"]
            if self._damaged > MAX_DAMAGE_NOTICES
            else []
        )
        return [*self._told.values(), *more]

    def replace(self, about: object, sentence: str) -> None:
        """Say something of a thing, in place of what was said of it before."""
        self._told[about] = sentence

    def add_missing(self, path: Path, first: int, count: int) -> None:
        """Take note of so many events that should be in a file, and are not: those from a number on."""
        begin, before = self._missing.get(path, (first, 0))
        self._missing[path] = begin, before + count
        many = f"{before + count} events are" if before + count > 1 else "an event is"
        self._told["missing", path] = f"{many} missing in {path}, from number {begin} on"

    def begin_file(self) -> None:
        """What follows may have been written by another version."""
        self._met = set()

    def check_new_types(self, text: bytes, records: Sequence[Record]) -> None:
        """Look at the first record of each type in a file, one a line of the text, for signs of a newer version."""
        new = set(map(type, records)) - self._met
        if not new:
            return
        self._met |= new
        for line, record in zip(text.split(b"\n"), records, strict=False):
            kind = type(record)
            if kind in new:
                new.remove(kind)
                self._seen.add(kind.__name__)
                if fields := unknown_fields(line, record):
                    skipped = f"fields of {kind.__name__} that a newer version wrote were skipped: {', '.join(fields)}"
                    self._told.setdefault(kind.__name__, skipped)

    def skip(self, bad: UnreadableLine, at: object, where: Callable[[], str]) -> None:
        """Take note of a line that was not read.

        Args:
            bad: why not.
            at: tells the line from others.
            where: gives its file and number, for people.

        Raises:
            ReadError: this is no recording, or that of another version.
        """
        if bad.type_name is not None and bad.type_name not in RECORD_TYPES:
            self._told[bad.type_name] = unknown_type_message(bad.type_name)
            self._seen.add(bad.type_name)
            return
        if bad.type_name is not None and bad.type_name not in self._seen:
            if bad.type_name not in self._refused:
                self._refused[bad.type_name] = (0, f"{where()}: this version cannot read {bad.type_name}: {bad.reason}")
            count, first = self._refused[bad.type_name]
            self._refused[bad.type_name] = (count + 1, first)
            if count + 1 >= MAX_UNREADABLE_LINES:
                raise ReadError(first)
        self._damaged += 1
        if self._damaged <= MAX_DAMAGE_NOTICES:
            self._told[at] = damaged_line_message(where(), bad.reason)
        if self._damaged >= MAX_UNREADABLE_LINES and not self._seen:
            raise self._not_a_recording()

    def check(self, *, begun: bool, sound: bool) -> None:
        """What was read to its end must be a recording, and of this version.

        Args:
            begun: it is known what the run is.
            sound: the files could be unpacked, and what follows the last line may be the beginning of another.

        Raises:
            ReadError: it is neither.
        """
        if not self._seen and (self._damaged or not sound):
            raise self._not_a_recording()
        for kind, (count, first) in self._refused.items():
            # One line may be damaged. All of several are not, and without the first event there is no run.
            lost = not begun if kind == ev.RunStarted.__name__ else count > 1
            if kind not in self._seen and lost:
                raise ReadError(first)

    def _not_a_recording(self) -> ReadError:
        for about, sentence in self._told.items():
            if isinstance(about, Path) and is_packed(about):  # told to be damaged
                return ReadError(sentence)
        expected = "expected the directory of a run, or JSON Lines of events"
        return ReadError(f"{self._path} is not a recording of esper-sanctum; {expected}")
