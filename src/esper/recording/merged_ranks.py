"""The recordings of all ranks of a run, read as one stream.

Every rank numbers its events in the one sequence of the run, so they are merged by number, which is by time. Where the
run went back to a checkpoint, every rank's file has a Keyframe that says when; what was recorded before goes first.

Memory stays bounded: one line of each rank is looked at ahead, and a place to read on from is kept for every so many
bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from esper.recording.decoder import DecodedSegment, ScannedLines, UnreadableLine, check_env_index
from esper.recording.run_lock import writer_has_exited
from esper.recording.segments import READ_CHUNK_BYTES, ReadError, list_segments, segment_path
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, Record

_RANK_DIRECTORY_NAME = re.compile(r"rank-(\d+)")


def rank_directories(run: Path) -> list[Path]:
    """Where the ranks after the first have recorded, in their order. Raises OSError."""
    found = [(int(match[1]), path) for path in run.iterdir() if (match := _RANK_DIRECTORY_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


class _RankCursor(NamedTuple):
    """How far one rank's recording was read."""

    path: Path
    offset: int
    restored_at: float
    """When the run last went back, before that."""
    seq: int
    """Of the last event."""
    envs: int
    """Of the run, as far as it was said."""


class _QueuedLine(NamedTuple):
    """The next line of one rank; ordered as the merged stream is."""

    restored_at: float
    seq: int
    keyframe: bool
    """It holds the state after all events up to its number, those of the other ranks too."""
    rank: int
    bytes: int
    """From the end of the one before it to its own."""
    after: _RankCursor
    text: bytes
    record: Record | UnreadableLine


class _MergeCursor(NamedTuple):
    """How far the merged stream was read: where each rank's then was, and what came last."""

    offset: int
    positions: dict[int, _RankCursor]
    restored_at: float
    seq: int


class MergedRecording:
    """All ranks' recordings of a run, with the face of a Segment. An offset counts the bytes read of all of them."""

    is_finished = False
    """More may always be appended: another segment, if not another line."""

    def __init__(self, run: Path) -> None:
        self.path = segment_path(run, 1)
        self._run = run
        self._segments: dict[Path, DecodedSegment] = {}
        self._places = [_MergeCursor(0, {}, 0.0, 0)]
        self._end = self._places[0]

    @property
    def damaged_paths(self) -> list[Path]:
        """Packed files of which not all can be unpacked."""
        return [path for segment in self._segments.values() for path in segment.damaged_paths]

    @property
    def is_corrupt(self) -> bool:
        """A part of a packed file cannot be unpacked."""
        return any(segment.is_corrupt for segment in self._segments.values())

    def remainder(self, offset: int) -> bytes:  # noqa: ARG002 (as a Segment has it)
        """Nothing: `scan` tells what is torn."""
        return b""

    def describe_line(self, offset: int) -> str:
        """File and number of the line that ends before an offset."""
        for end, item in self._merge(self._place_before(offset - 1)):
            if end >= offset:
                return self._segment(item.after.path).describe_line(item.after.offset)
        return str(self._run)

    def scan(self, offset: int, envs: int) -> Iterator[ScannedLines]:
        """Decode the complete lines of all ranks from an offset on, one at a time: see `RecordSource.scan`."""
        for end, item in self._merge(self._place_before(offset)):
            record = item.record
            if end <= offset:
                continue
            if isinstance(record, (Keyframe, UnreadableLine)):
                yield end, item.text, record
                continue
            if isinstance(record, ev.RunStarted):
                envs = len(record.lanes)
            found = check_env_index(record, envs)  # rank 0 may not have said yet how many envs there are
            yield end, item.text, found if isinstance(found, UnreadableLine) else [record]

    def _merge(self, place: _MergeCursor) -> Iterator[tuple[int, _QueuedLine]]:
        """Every line from a place on, with the offset after it; not those of what was undone before it was written."""
        runs = self._directories()
        awaited = self._active_writers(
            runs
        )  # looked up before they are read: the others have written all that they will
        streams = [self._lines(rank, path, place.positions.get(rank)) for rank, path in enumerate(runs)]
        offset, positions, lap, seq = place.offset, dict(place.positions), place.restored_at, place.seq
        heads = [item for stream in streams if (item := next(stream, None))]
        heapify(heads)
        while heads:
            item = heads[0]
            missing = item.restored_at == lap and item.seq > (seq if item.keyframe else seq + 1)
            copy = item.rank > 0 and isinstance(item.record, ev.RunStarted)
            told = copy and (item.restored_at, item.seq) <= (lap, seq)
            # Looked up again, as one may have gone on since.
            if (missing or (copy and not told)) and (awaited | self._active_writers(runs)) - {
                head.rank for head in heads
            }:
                break
            if following := next(streams[item.rank], None):
                heapreplace(heads, following)
            else:
                heappop(heads)
            positions[item.rank] = item.after
            offset += item.bytes
            if told:
                continue
            if (item.restored_at, item.seq) >= (lap, seq):
                lap, seq = item.restored_at, item.seq
                yield offset, item
            elif item.restored_at == lap:
                late = UnreadableLine(None, "it was written long after those that follow it")
                yield offset, item._replace(record=late)
            if item.keyframe or offset - self._places[-1].offset > READ_CHUNK_BYTES:
                self._keep(_MergeCursor(offset, dict(positions), lap, seq))
        self._end = _MergeCursor(offset, positions, lap, seq)

    def _lines(self, rank: int, directory: Path, position: _RankCursor | None) -> Iterator[_QueuedLine]:
        """One rank's lines from a position on. The Keyframes, of which every rank has a copy, are rank 0's."""
        path, start, lap, seq, envs = position or (segment_path(directory, 1), 0, 0.0, 0, 0)
        size = 0
        paths = [later for later in list_segments(directory) if later >= path]
        for path in paths:
            segment, offset = self._segment(path), start
            for end, text, record in _split_lines(segment.scan(start, envs)):
                size, offset = size + end - offset, end
                keyframe = isinstance(record, Keyframe)
                if isinstance(record, Keyframe):
                    lap = record.restored or lap
                if isinstance(record, ev.RunStarted):
                    envs = len(record.lanes)
                if not isinstance(record, UnreadableLine):
                    seq = record.seq
                if rank == 0 or not isinstance(record, Keyframe):
                    yield _QueuedLine(
                        lap, seq, keyframe, rank, size, _RankCursor(path, end, lap, seq, envs), text, record
                    )
                    size = 0
            start = 0
            if path != paths[-1] and segment.remainder(offset):
                torn = UnreadableLine(None, "the file ends in the middle of a line")
                yield _QueuedLine(lap, seq, False, rank, size, _RankCursor(path, offset, lap, seq, envs), b"", torn)

    def _directories(self) -> list[Path]:
        """Where the ranks have recorded, by rank. Raises ReadError."""
        try:
            return [self._run, *rank_directories(self._run)]
        except OSError as error:
            raise ReadError(f"cannot read {self._run}: {error.strerror}") from error

    def _active_writers(self, runs: list[Path]) -> set[int]:
        """The ranks that may still write: none once rank 0 has finished, and none that has finished or was killed."""
        if self._finished(runs[0]):
            return set()
        return {rank for rank, path in enumerate(runs) if not (self._finished(path) or writer_has_exited(path))}

    def _finished(self, directory: Path) -> bool:
        paths = list_segments(directory)
        return bool(paths) and self._segment(paths[-1]).is_finished

    def _segment(self, path: Path) -> DecodedSegment:
        return self._segments.setdefault(path, DecodedSegment(path))

    def _keep(self, place: _MergeCursor) -> None:
        if place.offset > self._places[-1].offset:
            self._places.append(place)

    def _place_before(self, offset: int) -> _MergeCursor:
        if self._end.offset <= offset:
            return self._end
        return self._places[bisect_right(self._places, offset, key=attrgetter("offset")) - 1]


def _split_lines(pieces: Iterator[ScannedLines]) -> Iterator[tuple[int, bytes, Record | UnreadableLine]]:
    """The lines of pieces one by one."""
    for end, text, found in pieces:
        if not isinstance(found, list):
            yield end, text, found
        elif len(found) == 1:
            yield end, text, found[0]
        else:
            at = end - len(text)
            for line, event in zip(text.split(b"\n"), found, strict=False):
                at += len(line) + 1
                yield at, line, event
