"""Progress of reading a recording, by the bytes of its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from esper.recording.segments import Segment, packed_path

PACKED_RATIO = 10
"""Usual bytes of text per byte of a packed file, so that packed and plain files count alike."""


class ReadBytes(NamedTuple):
    """Estimated bytes of text of a recording."""

    read: float
    total: float


def count_read_bytes(paths: Iterable[Path], segment: Segment, offset: int) -> ReadBytes:
    """Return how much of a recording was read.

    Args:
        paths: Plain paths of all segments, in order.
        segment: Segment that is being read.
        offset: Bytes of its text that were read.

    Raises:
        OSError: A file cannot be found.
    """
    read = total = 0.0
    for path in paths:
        size = _text_size(path)
        total += size
        if path < segment.path:
            read += size
        elif path == segment.path:
            read += min(offset, size) if path.exists() else size * segment.packed_fraction_before(offset)
    return ReadBytes(read, total)


def _text_size(plain: Path) -> int:
    """Return the bytes of a segment's text, estimated if it is packed. Raises OSError."""
    try:
        return plain.stat().st_size
    except FileNotFoundError:
        return packed_path(plain).stat().st_size * PACKED_RATIO
