"""Keyframe index: compressed states along a history, from which a seek reads on."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

import msgspec
import zstandard

from esper.recordings.files.decoder import DecodedSegment
from esper.recordings.state.state import RunState

INDEX_INTERVAL = 4_096
"""Number of events between two entries; it is doubled whenever there are more than MAX_INDEX_ENTRIES."""
MAX_INDEX_ENTRIES = 512
"""Number of entries above which every second one is dropped, except those that start a segment."""


class KeyframeIndex:
    """Index entries ordered by position, in bounded memory."""

    def __init__(self) -> None:
        self._entries: list[IndexEntry] = []
        self._interval = INDEX_INTERVAL

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> IndexEntry:
        return self._entries[index]

    def append(self, entry: IndexEntry) -> None:
        """Add an entry after the last one; drop every second entry if there are too many."""
        self._entries.append(entry)
        if len(self._entries) > MAX_INDEX_ENTRIES and not entry.starts_segment:
            self._entries = [kept for i, kept in enumerate(self._entries) if kept.starts_segment or i % 2 == 0]
            self._interval *= 2

    def is_due(self, position: int) -> bool:
        """Return True if a position is far enough after the last entry for another one."""
        return position - self._entries[-1].position >= self._interval

    def truncate_after(self, index: int) -> None:
        """Drop the entries after number `index`, because their events were undone."""
        del self._entries[index + 1 :]

    def last_index(self, field: str, limit: float) -> int:
        """Return the index of the last entry whose `position`, `seq` or `elapsed` is not above a limit."""
        return max(bisect_right(self._entries, limit, key=attrgetter(field)) - 1, 0)

    def end_of(self, index: int, length: int) -> int:
        """Return the position of the next entry, or the length of the history after the last one."""
        return self._entries[index + 1].position if index + 1 < len(self._entries) else length


class IndexEntry(NamedTuple):
    """A position from which a history can be read, and the state there."""

    position: int
    seq: int
    elapsed: float
    """Recorded seconds from the first event."""
    segment: DecodedSegment
    offset: int
    """Bytes of the segment before the position."""
    envs: int
    starts_segment: bool
    """A file or a Keyframe begins here. No read crosses this point, so the entry is never dropped."""
    state: bytes
    """Result of `compress_state`."""

    def open(self) -> RunState:
        """Return the state as a new object that the caller owns."""
        return _decode(zstandard.decompress(self.state))


def compress_state(state: RunState) -> bytes:
    """Return a state in the form in which an index entry stores it."""
    return zstandard.compress(_encode(state), level=1)  # a compressor per call: threads cannot share one


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunState).decode
