"""The recordings of all ranks of a run, read as one stream.

All ranks number their events in one sequence, so the recordings are merged by number, which is also the order of time.
Where the run restored a checkpoint, every rank's recording has a Keyframe with the time of the restore; all records
before it come first.

Memory is bounded: one line of each rank is read ahead, and a cursor to read on from is stored once per
READ_CHUNK_BYTES.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from esper.recording.decoder import DecodedSegment, ScannedLines, UnreadableLine, check_env_index
from esper.recording.read_progress import ReadBytes, count_read_bytes
from esper.recording.run_lock import writer_has_exited
from esper.recording.segments import READ_CHUNK_BYTES, ReadError, list_segments, segment_path
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, Record

_RANK_DIRECTORY_NAME = re.compile(r"rank-(\d+)")


def rank_directories(run: Path) -> list[Path]:
    """Return the directories that ranks 1 and up record to, ordered by rank. Raises OSError."""
    found = [(int(match[1]), path) for path in run.iterdir() if (match := _RANK_DIRECTORY_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


class _RankCursor(NamedTuple):
    """Read position in the recording of one rank."""

    path: Path
    offset: int
    restored_at: float
    """Time of the last restore before the position; 0.0 if there was none."""
    seq: int
    """Number of the last event."""
    envs: int
    """Number of envs of the run; 0 if not known yet."""


class _QueuedLine(NamedTuple):
    """Next line of one rank. Queued lines compare in the order of the merged stream."""

    restored_at: float
    seq: int
    is_keyframe: bool
    """The line holds the state after all events up to `seq`, those of other ranks included."""
    rank: int
    bytes: int
    """Bytes from the end of the rank's previous queued line to the end of this one."""
    after: _RankCursor
    text: bytes
    record: Record | UnreadableLine


class _MergeCursor(NamedTuple):
    """Read position in the merged stream."""

    offset: int
    rank_cursors: dict[int, _RankCursor]
    """Keyed by rank; ranks that were not read yet are absent."""
    restored_at: float
    seq: int


class MergedRecording:
    """The recordings of all ranks merged into one stream; implements `RecordSource`.

    Offsets count bytes over all files.

    Args:
        run: Directory of the run.
    """

    is_finished = False
    """Always False: ranks may append further segments to finished ones."""

    def __init__(self, run: Path) -> None:
        self.path = segment_path(run, 1)
        self._run = run
        self._segments: dict[Path, DecodedSegment] = {}
        self._cursors = [_MergeCursor(0, {}, 0.0, 0)]
        self._end = self._cursors[0]

    @property
    def damaged_paths(self) -> list[Path]:
        """Packed files that could not be unpacked completely."""
        return [path for segment in self._segments.values() for path in segment.damaged_paths]

    @property
    def is_corrupt(self) -> bool:
        """True if a part of a packed file could not be unpacked."""
        return any(segment.is_corrupt for segment in self._segments.values())

    def remainder(self, offset: int) -> bytes:  # noqa: ARG002 (required by RecordSource)
        """Return nothing, because `scan` reports incomplete lines itself."""
        return b""

    def describe_line(self, offset: int) -> str:
        """Return path and number of the line that ends at an offset, for messages."""
        for end, line in self._merge(self._cursor_before(offset - 1)):
            if end >= offset:
                return self._segment(line.after.path).describe_line(line.after.offset)
        return str(self._run)

    def count_read_bytes(self, paths: Iterable[Path], offset: int) -> ReadBytes:  # noqa: ARG002 (required by RecordSource)
        """Return how much of all ranks' recordings was read, to the last stored cursor before an offset."""
        cursor, read, total = self._cursor_before(offset), 0.0, 0.0
        for rank, directory in enumerate(self._directories()):
            rank_paths = list_segments(directory)
            at = cursor.rank_cursors.get(rank) or _RankCursor(segment_path(directory, 1), 0, 0.0, 0, 0)
            of_rank = count_read_bytes(rank_paths, self._segment(at.path), at.offset)
            read, total = read + of_rank.read, total + of_rank.total
        return ReadBytes(read, total)

    def scan(self, offset: int, envs: int) -> Iterator[ScannedLines]:
        """Decode the complete lines of all ranks from an offset on, one at a time: see `RecordSource.scan`."""
        for end, line in self._merge(self._cursor_before(offset)):
            record = line.record
            if end <= offset:
                continue
            if isinstance(record, (Keyframe, UnreadableLine)):
                yield end, line.text, record
                continue
            if isinstance(record, ev.RunStarted):
                envs = len(record.lanes)
            # Checked here, because rank 0 may not have recorded the number of envs when the line was decoded.
            checked = check_env_index(record, envs)
            yield end, line.text, checked if isinstance(checked, UnreadableLine) else [record]

    def _merge(self, cursor: _MergeCursor) -> Iterator[tuple[int, _QueuedLine]]:
        """Yield the lines after a cursor with the offset of their ends; no lines that were undone before their turn."""
        directories = self._directories()
        # Looked up before the files are read: all other ranks have written everything that they will write.
        writers = self._active_writers(directories)
        streams = [self._lines(rank, path, cursor.rank_cursors.get(rank)) for rank, path in enumerate(directories)]
        offset, rank_cursors = cursor.offset, dict(cursor.rank_cursors)
        restored_at, seq = cursor.restored_at, cursor.seq
        queue = [line for stream in streams if (line := next(stream, None))]
        heapify(queue)
        while queue:
            line = queue[0]
            leaves_gap = line.restored_at == restored_at and line.seq > (seq if line.is_keyframe else seq + 1)
            is_copy = line.rank > 0 and isinstance(line.record, ev.RunStarted)
            is_repeated = is_copy and (line.restored_at, line.seq) <= (restored_at, seq)
            if leaves_gap or (is_copy and not is_repeated):
                # The set of writers is looked up again, because a rank may have been resumed since.
                missing_ranks = (writers | self._active_writers(directories)) - {queued.rank for queued in queue}
                if missing_ranks:
                    break
            if following := next(streams[line.rank], None):
                heapreplace(queue, following)
            else:
                heappop(queue)
            rank_cursors[line.rank] = line.after
            offset += line.bytes
            if is_repeated:
                continue
            if (line.restored_at, line.seq) >= (restored_at, seq):
                restored_at, seq = line.restored_at, line.seq
                yield offset, line
            elif line.restored_at == restored_at:
                late = UnreadableLine(None, "it was written after events that follow it")
                yield offset, line._replace(record=late)
            if line.is_keyframe or offset - self._cursors[-1].offset > READ_CHUNK_BYTES:
                self._store(_MergeCursor(offset, dict(rank_cursors), restored_at, seq))
        self._end = _MergeCursor(offset, rank_cursors, restored_at, seq)

    def _lines(self, rank: int, directory: Path, cursor: _RankCursor | None) -> Iterator[_QueuedLine]:
        """Yield the lines of one rank after a cursor; Keyframes only for rank 0, as every rank has a copy of them."""
        path, start, restored_at, seq, envs = cursor or _RankCursor(segment_path(directory, 1), 0, 0.0, 0, 0)
        size = 0
        paths = [later for later in list_segments(directory) if later >= path]
        for path in paths:
            segment, offset = self._segment(path), start
            for end, text, record in _split_lines(segment.scan(start, envs)):
                size, offset = size + end - offset, end
                is_keyframe = isinstance(record, Keyframe)
                if isinstance(record, Keyframe):
                    restored_at = record.restored or restored_at
                if isinstance(record, ev.RunStarted):
                    envs = len(record.lanes)
                if not isinstance(record, UnreadableLine):
                    seq = record.seq
                if rank == 0 or not is_keyframe:
                    after = _RankCursor(path, end, restored_at, seq, envs)
                    yield _QueuedLine(restored_at, seq, is_keyframe, rank, size, after, text, record)
                    size = 0
            start = 0
            if path != paths[-1] and segment.remainder(offset):
                partial = UnreadableLine(None, "the file ends in the middle of a line")
                after = _RankCursor(path, offset, restored_at, seq, envs)
                yield _QueuedLine(restored_at, seq, False, rank, size, after, b"", partial)

    def _directories(self) -> list[Path]:
        """Return the directories that the ranks record to, ordered by rank. Raises ReadError."""
        try:
            return [self._run, *rank_directories(self._run)]
        except OSError as error:
            raise ReadError(f"cannot read {self._run}: {error.strerror}") from error

    def _active_writers(self, directories: list[Path]) -> set[int]:
        """Return the ranks that may still write: not those that finished or were killed; none once rank 0 finished."""
        if self._has_finished(directories[0]):
            return set()
        return {
            rank for rank, path in enumerate(directories) if not (self._has_finished(path) or writer_has_exited(path))
        }

    def _has_finished(self, directory: Path) -> bool:
        paths = list_segments(directory)
        return bool(paths) and self._segment(paths[-1]).is_finished

    def _segment(self, path: Path) -> DecodedSegment:
        return self._segments.setdefault(path, DecodedSegment(path))

    def _store(self, cursor: _MergeCursor) -> None:
        if cursor.offset > self._cursors[-1].offset:
            self._cursors.append(cursor)

    def _cursor_before(self, offset: int) -> _MergeCursor:
        stored = self._cursors[bisect_right(self._cursors, offset, key=attrgetter("offset")) - 1]
        return self._end if stored.offset <= self._end.offset <= offset else stored


def _split_lines(blocks: Iterator[ScannedLines]) -> Iterator[tuple[int, bytes, Record | UnreadableLine]]:
    """Yield scanned lines one by one."""
    for end, text, content in blocks:
        if not isinstance(content, list):
            yield end, text, content
        elif len(content) == 1:
            yield end, text, content[0]
        else:
            line_end = end - len(text)
            for line, event in zip(text.split(b"\n"), content, strict=False):
                line_end += len(line) + 1
                yield line_end, line, event
