"""Appends to one segment so that a reader finds only whole lines, and packs it when it is finished."""

from __future__ import annotations

import os
from pathlib import Path

import zstandard

from esper.telemetry.segments import packed_path

FRAME_BYTES = 1 << 20
"""Plain bytes in a zstd frame: the most that a reader unpacks to get at one line, and that a flipped bit costs."""
LEVEL = 9
"""Of compression: less than a second for a whole segment, on a core that may have a lane to drive. At level 15 it would
be 8 % smaller, and take five times as long."""


class SegmentWriter:
    """A segment being written. What `append` could not write whole is taken back before the next attempt."""

    def __init__(self, path: Path, opening: bytes) -> None:
        """Make the file, with its first lines. Raises OSError; then there is no file."""
        self.path = path
        self.size = 0
        """Bytes of whole lines."""
        self._torn = False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            self.append(opening)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, lines: bytes) -> None:
        """Write whole lines. Raises OSError; then the same lines may be appended again."""
        if self._torn:
            os.ftruncate(self._file, self.size)
        self._torn = True
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._torn = False
        self.size += len(lines)

    @property
    def vanished(self) -> bool:
        """The file is no longer where it was made, so what is written to it would be lost."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(there, os.fstat(self._file))

    def sync(self) -> None:
        """Return once the lines would survive a loss of power. Raises OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        """Write no more."""
        try:
            if self._torn:
                os.ftruncate(self._file, self.size)
        finally:
            os.close(self._file)


def pack(plain: Path) -> None:
    """Put a packed file in the place of a finished segment. Raises OSError; the plain file is then still there."""
    packed = packed_path(plain)
    partial = packed.with_name(packed.name + ".part")
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    try:
        with plain.open("rb") as source, partial.open("wb") as target:
            while piece := source.read(FRAME_BYTES):
                target.write(compressor.compress(piece))
            target.flush()
            os.fsync(target.fileno())
        partial.replace(packed)
    finally:
        partial.unlink(missing_ok=True)
    plain.unlink()
