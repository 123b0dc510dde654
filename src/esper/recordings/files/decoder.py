"""Decodes lines into records, and reports lines that cannot be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import msgspec

from esper.common.formatting import pluralise
from esper.recordings import events as ev
from esper.recordings.events.codec import DECODE_ERRORS, make_decoder
from esper.recordings.files.segments import ReadError, Segment, is_packed
from esper.recordings.state.state import Keyframe, Record

RECORD_TYPES: dict[str, type[ev.Event]] = {kind.__name__: kind for kind in (*get_args(ev.AnyEvent), Keyframe)}
"""Record types that this version knows, keyed by name."""
MAX_TIMESTAMP_S = 1e11
"""Latest valid wall-clock time, in the year 5138; a later one is damage."""
MAX_DAMAGE_NOTICES = 20
"""Number of damaged lines that are reported one by one."""
MAX_UNREADABLE_LINES = 50
"""Number of unreadable lines after which a type counts as another version's, or the file as no recording."""

_ENV_EVENT_TYPES: frozenset[type[ev.Event]] = frozenset(get_args(ev.EnvEvent))


class UnreadableLine(NamedTuple):
    """A line that could not be decoded into a record."""

    type_name: str | None
    """Event type that the line names; None if the line is no event at all."""
    reason: str


ScannedLines: TypeAlias = tuple[int, bytes, list[ev.AnyEvent] | Keyframe | UnreadableLine]
"""Offset after some lines, their text, and their content: one event per line, or one line's keyframe or defect."""


class DecodedSegment(Segment):
    """Segment whose lines are decoded into records."""

    def scan(self, offset: int, envs: int) -> Iterator[ScannedLines]:
        """Decode the complete lines from an offset on, as many at a time as are intact.

        The same lines give the same records, whatever offset the scan starts from.

        Args:
            offset: Bytes before the first line to decode, as returned by an earlier scan.
            envs: Number of envs of the run at that offset; 0 if not known yet. An event of another env is damage,
                because RunState could not apply it.

        Raises:
            ReadError: The file cannot be read.
        """
        for end, text in self.line_blocks(offset):
            events = _decode_batch(text, envs)
            if events is not None:
                yield end, text, events
                continue
            line_end = end - len(text)
            for line in text.split(b"\n")[:-1]:
                line_end += len(line) + 1
                record = _decode_line(line, envs)
                if isinstance(record, (Keyframe, UnreadableLine)):
                    yield line_end, line, record
                else:
                    if isinstance(record, ev.RunStarted):
                        envs = len(record.lanes)
                    yield line_end, line, [record]


def _check_env_index(record: Record, envs: int) -> Record | UnreadableLine:
    """Return the record, or an `UnreadableLine` if its env index is not below `envs`."""
    if isinstance(record, ev.EnvEvent) and not 0 <= record.env < envs:
        return UnreadableLine(None, f"it is about env {record.env}, but the run has {envs} envs")
    return record


def unknown_fields(line: bytes, record: Record) -> list[str]:
    """Return the fields in the line of a record, nested ones included, that this version does not know."""
    written = msgspec.json.decode(line.decode("utf-8", "replace"))
    del written["type"]
    return sorted(set(_unknown_keys(written, record)))


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
    """Collects the notices about a recording: damage, missing events, and records of a newer version.

    Args:
        path: Recording, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._messages: dict[object, str] = {}
        """Messages keyed by their subject, so that a later one replaces an earlier one."""
        self._damaged = 0
        """Number of damaged lines."""
        self._types_read: set[str] = set()
        """Names of the types with at least one readable record, and of unknown types that were skipped."""
        self._types_in_file: set[type[Record]] = set()
        """Types with at least one readable record in the current file."""
        self._missing: dict[Path, tuple[int, int]] = {}
        """Keyed by file: seq of the first missing event, and number of missing events."""
        self._unread_types: dict[str, tuple[int, str]] = {}
        """Keyed by types without a readable record: number of unreadable lines, and message about the first one."""

    @property
    def messages(self) -> list[str]:
        """Sentences for the user, without line ends."""
        unlisted = self._damaged - MAX_DAMAGE_NOTICES
        return [*self._messages.values(), *([f"{unlisted} more lines are damaged"] if unlisted > 0 else [])]

    def replace(self, subject: object, message: str) -> None:
        """Add a message; it replaces an earlier one about the same subject."""
        self._messages[subject] = message

    def add_missing(self, path: Path, first: int, count: int) -> None:
        """Report that `count` events are missing in a file, the first of them with seq `first`."""
        begin, before = self._missing.get(path, (first, 0))
        total = before + count
        self._missing[path] = begin, total
        subject = pluralise(total, "event is", "events are")
        self._messages["missing", path] = f"{subject} missing in {path}, from event {begin} on"

    def begin_file(self) -> None:
        """Begin another file, which another version of the program may have written."""
        self._types_in_file = set()

    def add_types(self, records: Sequence[Record]) -> set[type[Record]]:
        """Note the types of records that were read, and return those of which the file had none before."""
        new: set[type[Record]] = set(map(type, records)) - self._types_in_file
        if new:
            self._types_in_file |= new
            self._types_read |= {kind.__name__ for kind in new}
        return new

    def check_new_types(self, text: bytes, records: Sequence[Record]) -> None:
        """Check the first record of each type in a file for fields of a newer version.

        Args:
            text: Lines of the records.
            records: One record per line.
        """
        new = self.add_types(records)
        if not new:
            return
        for line, record in zip(text.split(b"\n"), records, strict=False):
            kind = type(record)
            if kind in new:
                new.remove(kind)
                if fields := unknown_fields(line, record):
                    skipped = f"fields of {kind.__name__} that a newer version wrote were skipped: {', '.join(fields)}"
                    self._messages.setdefault(kind.__name__, skipped)

    def skip(self, bad: UnreadableLine, subject: object, location: Callable[[], str]) -> None:
        """Report a skipped line.

        Args:
            bad: The line.
            subject: Key that distinguishes the line from others.
            location: Returns path and number of the line; called only if a message needs them, as it reads the file.

        Raises:
            ReadError: The file is not a recording, or another version wrote it.
        """
        if bad.type_name is not None and bad.type_name not in RECORD_TYPES:
            self._messages[bad.type_name] = unknown_type_message(bad.type_name)
            self._types_read.add(bad.type_name)
            return
        if bad.type_name is not None and bad.type_name not in self._types_read:
            if bad.type_name not in self._unread_types:
                message = f"{location()}: this version cannot read {bad.type_name}: {bad.reason}"
                self._unread_types[bad.type_name] = (0, message)
            count, message = self._unread_types[bad.type_name]
            self._unread_types[bad.type_name] = (count + 1, message)
            if count + 1 >= MAX_UNREADABLE_LINES:
                raise ReadError(message)
        self._damaged += 1
        if self._damaged <= MAX_DAMAGE_NOTICES:
            self._messages[subject] = damaged_line_message(location(), bad.reason)
        if self._damaged >= MAX_UNREADABLE_LINES and not self._types_read:
            raise self._not_a_recording()

    def check(self, *, has_start: bool, is_intact: Callable[[], bool]) -> None:
        """Check, at the end of a file, that it is a recording of this version.

        Args:
            has_start: The start of the run was read.
            is_intact: Returns True if the file could be unpacked, and the text after the last line may be the start of
                a record; called only if no record was read.

        Raises:
            ReadError: The file is not a recording, or another version wrote it.
        """
        if not self._types_read and (self._damaged or not is_intact()):
            raise self._not_a_recording()
        for type_name, (count, message) in self._unread_types.items():
            # A single line may be damaged; several of one type are not. Without the first event there is no run.
            is_fatal = not has_start if type_name == ev.RunStarted.__name__ else count > 1
            if type_name not in self._types_read and is_fatal:
                raise ReadError(message)

    def _not_a_recording(self) -> ReadError:
        for subject, message in self._messages.items():
            if isinstance(subject, Path) and is_packed(subject):  # its message says that it is damaged
                return ReadError(message)
        expected = "expected the directory of a run, or JSON Lines of events"
        return ReadError(f"{self._path} is not a recording of esper-sanctum; {expected}")


class _Header(msgspec.Struct):
    """Fields that an event of any version has."""

    type: str
    seq: int


_event_decoder: msgspec.json.Decoder[ev.AnyEvent] = make_decoder(ev.AnyEvent)
_record_decoder: msgspec.json.Decoder[Record] = make_decoder(Record)
_header_decoder: msgspec.json.Decoder[_Header] = make_decoder(_Header)
# Looked up once, because they are called for every line.
_decode_events = _event_decoder.decode_lines
_decode_record = _record_decoder.decode


def _decode_batch(text: bytes, envs: int) -> list[ev.AnyEvent] | None:
    """Decode lines together; None if one of them needs a separate check."""
    try:
        events = _decode_events(text)
    except DECODE_ERRORS:
        return None
    if len(events) != text.count(b"\n"):
        return None
    times = [event.time for event in events]
    env_indices = {cast("ev.EnvEvent", event).env for event in events if type(event) in _ENV_EVENT_TYPES}
    if (
        not (math.isfinite(sum(times)) and min(times) >= 0 and max(times) < MAX_TIMESTAMP_S)
        or not all(0 <= env < envs for env in env_indices)
        or ev.RunStarted in set(map(type, events))
    ):
        return None
    return events


def _decode_line(line: bytes, envs: int) -> Record | UnreadableLine:
    try:
        record = _decode_record(line)
    except DECODE_ERRORS as error:
        return UnreadableLine(_claimed_type(line), str(error))
    if not 0 <= record.time < MAX_TIMESTAMP_S:
        return UnreadableLine(None, f"its time, {record.time}, is out of range")
    if isinstance(record, ev.RunStarted) and envs and len(record.lanes) != envs:
        return UnreadableLine(None, f"it starts a run of {len(record.lanes)} envs, but this run has {envs}")
    return _check_env_index(record, envs)


def _unknown_keys(written: Any, decoded: Any) -> Iterator[str]:
    match decoded:
        case msgspec.Struct():
            known: dict[Any, Any] = {field: getattr(decoded, field) for field in decoded.__struct_fields__}
            yield from written.keys() - known.keys()
        case dict():
            known = cast("dict[Any, Any]", decoded)
        case list() | tuple():
            written = dict(enumerate(cast("list[Any]", written)))
            known = dict(enumerate(cast("Sequence[Any]", decoded)))
        case _:
            return
    for key in written.keys() & known.keys():
        yield from _unknown_keys(written[key], known[key])


def _claimed_type(line: bytes) -> str | None:
    try:
        return _header_decoder.decode(line).type
    except DECODE_ERRORS:
        return None
