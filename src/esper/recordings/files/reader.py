"""Reader of a recording: its records in order, while the recording may be written.

Every segment opens with a Keyframe, the state before its first event. So a recording can be read from its first
segment, or from its last one, which is enough for the present state, however long the run is. A state that another
version wrote in another format is computed from the events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from esper.common.domain import VERSION
from esper.recordings import events as ev
from esper.recordings.events.codec import DECODE_ERRORS
from esper.recordings.files.decoder import DecodedSegment, Notices, UnreadableLine, partial_line_message
from esper.recordings.files.run_manifest import MANIFEST_FILE, read_run_manifest
from esper.recordings.files.segments import ReadError, fraction_read, list_segments, plain_path
from esper.recordings.state.state import STATE_FORMAT, Keyframe, Record, RunState, fold


class Block(NamedTuple):
    """Records that were read together: one Keyframe, or several events."""

    segment: DecodedSegment
    start: int
    """Bytes of the segment before the block."""
    end: int
    """Bytes of the segment up to the end of the block."""
    events: list[ev.AnyEvent]
    """The events; empty for a Keyframe."""
    num_skipped: int = 0
    """Number of unreadable lines between these events and the ones before."""
    keyframe: Keyframe | None = None
    state: RunState | None = None
    """State of the Keyframe, a new object that the caller owns."""


class OtherSchemaError(ReadError):
    """The recording has another version of the events."""


class RecordingReader:
    """Reads a recording, as it grows. Lines that cannot be read are skipped and reported.

    Args:
        path: Run directory, or one file of events, plain or packed.
        from_last_segment: Begin with the Keyframe of the last segment instead of the first event, if this version can
            read it.
    """

    def __init__(self, path: Path, *, from_last_segment: bool = False) -> None:
        self.segment = DecodedSegment(plain_path(path))
        """Segment that is being read."""
        self.offset = 0
        """Bytes of the segment that were read."""
        self.is_fully_read = False
        """The last call of `blocks` has read everything that was recorded."""
        self.fraction_read = 0.0
        """Fraction of the recording that was read, by the bytes of its files; 1 after everything was read once."""
        self.notices = Notices(path)
        self._path = path
        self._is_schema_checked = False
        self._needs_keyframe = from_last_segment
        """Begin with the Keyframe of the last segment."""
        self._needs_all_events = False
        """The Keyframe of the last segment has the format of another version: begin with the first event."""
        self._is_complete = False
        """The segment was read to its end after it was finished."""
        self._num_envs = 0
        """Number of envs; 0 if not known yet."""
        self._seq = -1
        """Number of the last record; -1 before the first."""
        self._num_skipped = 0
        """Number of unreadable lines since the last events."""

    def blocks(self, within: float = math.inf) -> Iterator[Block]:
        """Yield the records since the last call.

        Args:
            within: Seconds after which no further block is read.

        Raises:
            ReadError: A file cannot be read, is not a recording, or holds events that this version cannot read.
        """
        self._check_schema()
        deadline, paths = perf_counter() + within, self._paths()
        if self._needs_keyframe and self._seq < 0 and paths:
            self.segment, self.offset = DecodedSegment(paths[-1]), 0
        self.is_fully_read = True
        self._report_deletion(paths)
        for path in paths:
            if self.is_fully_read and path > self.segment.path:
                self._begin_segment(path)
            if path == self.segment.path:
                yield from self._read_segment(deadline)
        if self._needs_all_events:
            self._needs_keyframe = self._needs_all_events = False
            self.segment, self.offset = DecodedSegment(paths[0]), 0
            yield from self.blocks(deadline - perf_counter())
            return
        self._update_fraction_read(paths)
        if self.is_fully_read and self.segment.path in paths:
            self.notices.check(has_start=self._num_envs > 0, is_intact=self._is_intact)

    def records(self) -> Iterator[Record]:
        """Yield the records since the last call, all of them. Raises like `blocks`.

        Keyframes that only repeat the state, as at the start of each further segment, are left out.
        """
        seq = self._seq
        for block in self.blocks():
            keyframe = block.keyframe
            if keyframe is None:
                yield from block.events
            elif keyframe.seq != seq or keyframe.restored:
                yield keyframe
            seq = self._seq

    def fold_into(self, state: RunState) -> RunState:
        """Return the state after all records since the last call, given the state before them. Raises like `blocks`.

        The given state is modified; the caller must not use it any more.
        """
        for block in self.blocks():
            state = block.state or fold(state, block.events)
        return state

    def paths_after(self) -> list[Path]:
        """Return the plain paths of the segments that come after the one being read. Raises ReadError."""
        return [path for path in self._paths() if path > self.segment.path]

    def _check_schema(self) -> None:
        """Raise OtherSchemaError if the events of the run have another version, which a single file does not name."""
        if self._is_schema_checked:
            return
        manifest = read_run_manifest(self._path)
        if manifest.schema not in (None, ev.SCHEMA_VERSION):
            raise OtherSchemaError(
                f"{self._path} has event schema {manifest.schema}; this is esper-sanctum {VERSION}, which reads schema "
                f"{ev.SCHEMA_VERSION}{manifest.advice}"
            )
        self._is_schema_checked = True

    def _paths(self) -> list[Path]:
        """Return the plain paths of the existing segments."""
        try:
            if not self._path.is_dir():
                return [plain_path(self._path)]
            paths = list_segments(self._path)
        except OSError as error:
            raise ReadError(f"cannot read {self._path}: {error.strerror}") from error
        if not paths and not self._needs_keyframe and not (self._path / MANIFEST_FILE).exists():
            raise ReadError(f"{self._path} is not a run: it contains neither run.json nor events-00001.jsonl")
        return paths

    def _report_deletion(self, paths: list[Path]) -> None:
        """Report that the segment was deleted, once another one can be read."""
        if self._seq >= 0 and self.segment.path not in paths and any(path > self.segment.path for path in paths):
            self.notices.replace(
                ("deleted", self.segment.path), f"{self.segment.path} was deleted; its unread events are lost"
            )

    def _begin_segment(self, path: Path) -> None:
        with suppress(ReadError):  # it was deleted
            if self.offset and self.segment.remainder(self.offset):
                before = self.segment.path
                self.notices.replace(("partial line", before), partial_line_message(before))
        self.segment = DecodedSegment(path)
        self.offset, self._is_complete = 0, False
        self.notices.begin_file()

    def _read_segment(self, deadline: float) -> Iterator[Block]:
        """Read the segment until its end or the deadline."""
        if self._is_complete:
            return
        is_finished = self.segment.is_finished  # checked before reading, because more may be appended until then
        found_keyframe = True
        while found_keyframe:
            found_keyframe = False
            for end, text, content in self.segment.scan(self.offset, self._num_envs):
                start, self.offset = self.offset, end
                if isinstance(content, UnreadableLine):
                    self._skip(end, content)
                elif isinstance(content, Keyframe):
                    block = self._open_keyframe(start, text, content)
                    if block is not None:
                        yield block
                    if self._needs_all_events:
                        return
                    found_keyframe = True  # scan again, with the number of envs in the Keyframe
                    break
                else:
                    yield self._add_events(start, text, content)
                if perf_counter() > deadline:
                    self.is_fully_read = False
                    return
        self._is_complete = is_finished
        for packed in self.segment.damaged_paths:
            self.notices.replace(packed, f"{packed} is damaged and could not be unpacked completely")

    def _open_keyframe(self, start: int, text: bytes, keyframe: Keyframe) -> Block | None:
        """Return the block of a Keyframe; None if it is damaged, which is reported, or has another format.

        Raises:
            ReadError: The state has the format of another version, and does not follow from the events.
        """
        if not keyframe.is_current:
            self._leave_out(keyframe)
            return None
        try:
            state = keyframe.decode_state()
        except DECODE_ERRORS as error:
            self._skip(self.offset, UnreadableLine(None, str(error)))
            return None
        self._check_types(text, [keyframe])
        self._num_envs, self._seq = len(state.envs), keyframe.seq
        return Block(self.segment, start, self.offset, [], keyframe=keyframe, state=state)

    def _leave_out(self, keyframe: Keyframe) -> None:
        """Read on without a state in the format of another version. Raises ReadError if the events do not give it."""
        if self._needs_keyframe and self._seq < 0:
            self._needs_all_events = True
        elif keyframe.restored or keyframe.seq != self._seq:
            raise ReadError(
                f"{self.segment.path} begins with a state that another version wrote in format {keyframe.format}, "
                f"but this version reads format {STATE_FORMAT}; open the run with the version that wrote it"
            )

    def _add_events(self, start: int, text: bytes, events: list[ev.AnyEvent]) -> Block:
        if self._needs_keyframe and self._seq < 0:
            raise ReadError(f"{self.segment.path} does not begin with the state of the run")
        if isinstance(events[0], ev.RunStarted):
            self._num_envs = len(events[0].lanes)
        self._check_types(text, events)
        self._seq = events[-1].seq
        skipped, self._num_skipped = self._num_skipped, 0
        return Block(self.segment, start, self.offset, events, skipped)

    def _check_types(self, text: bytes, records: Sequence[Record]) -> None:
        """Report fields of a newer version; not for the present state, because it takes as long as a Keyframe."""
        if self._needs_keyframe:
            self.notices.add_types(records)
        else:
            self.notices.check_new_types(text, records)

    def _skip(self, end: int, bad: UnreadableLine) -> None:
        """Report the line that ends at an offset as skipped. Raises ReadError if the file is not a recording."""
        segment = self.segment
        if self._needs_keyframe and self._seq < 0:
            raise ReadError(f"{segment.path} does not begin with the state of the run: {bad.reason}")
        self._num_skipped += 1
        self.notices.skip(bad, (segment.path, end), lambda: segment.describe_line(end))

    def _is_intact(self) -> bool:
        """Return True if the segment could be unpacked, and the text after its last line may begin a record."""
        beginning = b'{"type":"'
        remainder = self.segment.remainder(self.offset)[: len(beginning)]
        return not self.segment.damaged_paths and beginning.startswith(remainder)

    def _update_fraction_read(self, paths: list[Path]) -> None:
        if self.is_fully_read:
            self.fraction_read = 1.0
        elif self.fraction_read < 1:  # what a run writes later is read at once
            try:
                fraction = fraction_read(paths, self.segment, self.offset)
            except OSError as error:
                raise ReadError(f"cannot read {self._path}: {error.strerror}") from error
            self.fraction_read = max(self.fraction_read, min(fraction, 0.99))
