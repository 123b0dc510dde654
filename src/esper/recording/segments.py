"""Segment files: JSON Lines while written, zstd when finished."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

READ_CHUNK_BYTES = 1 << 18
"""Bytes read at a time, to be decoded together: some hundred events."""
PACKED_READ_BYTES = 1 << 14
"""Bytes of a packed file read at a time: they grow up to thirtyfold."""
MAX_FRAME_BYTES = 1 << 26
"""Plain bytes of a frame that are held until its checksum was found right; a recorder's frames are far smaller."""
MAX_LINE_BYTES = 1 << 28
"""Bytes without a line's end after which a file cannot be a recording."""

_MAGIC = zstandard.MAGIC_NUMBER.to_bytes(4, "little")
_SEGMENT_NAME = re.compile(r"events-(\d+)\.jsonl(\.zst)?")


class ReadError(Exception):
    """A recording that cannot be read. One sentence: which file, where in it, and what would be right."""


def segment_path(directory: Path, number: int) -> Path:
    """Where a segment of a run is written. Segments are numbered from 1."""
    return directory / f"events-{number:05d}.jsonl"


def packed_path(plain: Path) -> Path:
    """Where a segment is once it is packed."""
    return plain.with_name(plain.name + ".zst")


def is_packed(path: Path) -> bool:
    """Whether a file begins as a packed one does, whatever its name. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def list_segments(directory: Path) -> list[Path]:
    """The segments of a run in order, each by its plain path, whether it is packed or not. Raises OSError."""
    found = (_SEGMENT_NAME.fullmatch(path.name) for path in directory.iterdir())
    return [segment_path(directory, number) for number in sorted({int(match[1]) for match in found if match})]


def plain_path(path: Path) -> Path:
    """Where a segment was before it was packed: the name by which it is known."""
    return path.with_suffix("") if path.suffix == ".zst" else path


def segment_number(path: Path) -> int:
    """The number in a segment's name, which `list_segments` gave."""
    match = _SEGMENT_NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


class Segment:
    """One file of a recording, read as a stream of lines from any byte on.

    Offsets are those of the plain text, so they stay right when the recorder packs the file under a reader.
    """

    def __init__(self, path: Path) -> None:
        """`path` is that of the plain file; where there is none, the packed one beside it is read."""
        self.path = path
        self.is_truncated = False
        """The packed file ends too early."""
        self.is_corrupt = False
        """A part of the packed file cannot be unpacked."""
        self._frames = [(0, 0)]
        """Where zstd frames are known to start: offset in the plain text, and in the packed file."""

    @property
    def damaged_paths(self) -> list[Path]:
        """The packed file, if not all of it can be unpacked."""
        return [packed_path(self.path)] if self.is_truncated or self.is_corrupt else []

    @property
    def is_finished(self) -> bool:
        """Finished and packed: nothing will be appended."""
        return not self.path.exists() and packed_path(self.path).exists()

    def line_blocks(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Every whole line from a byte on, many at a time, with the offset after them.

        What follows the last line's end is left. Raises ReadError when the file cannot be opened, or has no lines.
        """
        rest: list[bytes] = []
        waiting = 0
        for chunk in self._chunks(offset):
            cut = chunk.rfind(b"\n") + 1
            if cut:
                piece = b"".join([*rest, chunk[:cut]])
                rest, waiting = [], 0
                offset += len(piece)
                yield offset, piece
            rest.append(chunk[cut:])
            waiting += len(chunk) - cut
            if waiting > MAX_LINE_BYTES:
                raise ReadError(f"{self.path} is not a recording: it has no lines; expected JSON Lines of events")

    def remainder(self, offset: int) -> bytes:
        """The beginning of what follows a byte; nothing at the end of the file."""
        return next(self._chunks(offset), b"")

    def describe_line(self, offset: int) -> str:
        """File and number, from 1, of the line that ends before a byte."""
        number, at = 0, 0
        for end, text in self.line_blocks(0):
            if end >= offset:
                number += text.count(b"\n", 0, offset - at)
                break
            number, at = number + text.count(b"\n"), end
        return f"{self.path}, line {number}"

    def _chunks(self, offset: int) -> Iterator[bytes]:
        try:
            file, packed = self._open()
            with file:
                yield from self._unpack(file, offset) if packed else _read(file, offset)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _open(self) -> tuple[BinaryIO, bool]:
        """The file that is there now, and whether it is the packed one."""
        try:
            return self.path.open("rb"), False
        except FileNotFoundError:
            return packed_path(self.path).open("rb"), True

    def _unpack(self, file: BinaryIO, offset: int) -> Iterator[bytes]:
        """Unpack from the nearest known frame on, and note every further frame on the way.

        A frame is given out when its checksum was found right; one that is damaged counts as empty.
        """
        at, packed = self._frames[bisect_right(self._frames, offset, key=lambda frame: frame[0]) - 1]
        while packed >= 0:
            file.seek(packed)
            frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                for text in _unpack_frame(file, frame):
                    for start in range(max(offset - at, 0), len(text), READ_CHUNK_BYTES):
                        yield text[start : start + READ_CHUNK_BYTES]
                    at += len(text)
            except zstandard.ZstdError:
                self.is_corrupt = True
                packed = _find_frame(file, packed + 1)
                continue
            if not frame.eof:
                begun = file.tell() > packed
                packed = _find_frame(file, packed + 1)
                if packed < 0:
                    self.is_truncated = begun
                else:  # its length is damaged, and it has swallowed what follows
                    self.is_corrupt = True
                continue
            packed = file.tell() - len(frame.unused_data)
            if at > self._frames[-1][0]:
                self._frames.append((at, packed))


def _unpack_frame(file: BinaryIO, frame: zstandard.ZstdDecompressionObj) -> Iterator[bytes]:
    """What a frame holds, or the beginning of it where the file ends too early: in one piece, unless that is too big.

    Raises ZstdError if the frame is damaged.
    """
    held: list[bytes] = []
    size = 0
    while not frame.eof and (data := file.read(PACKED_READ_BYTES)):
        held.append(frame.decompress(data))
        size += len(held[-1])
        if size > MAX_FRAME_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _find_frame(file: BinaryIO, start: int) -> int:
    """Where the next frame may start, from a byte on; -1 where none does."""
    file.seek(start)
    rest = b""
    while chunk := file.read(READ_CHUNK_BYTES):
        found = (rest + chunk).find(_MAGIC)
        if found >= 0:
            return start - len(rest) + found
        start += len(chunk)
        rest = (rest + chunk)[-3:]
    return -1


def _read(file: BinaryIO, offset: int) -> Iterator[bytes]:
    file.seek(offset)
    while chunk := file.read(READ_CHUNK_BYTES):
        yield chunk


ZSTD_FRAME_BYTES = 1 << 20
"""Plain bytes in a zstd frame: the most that a reader unpacks to get at one line, and that a flipped bit costs."""
ZSTD_LEVEL = 9
"""Of compression: less than a second for a whole segment, on a core that may have a lane to drive. At level 15 it would
be 8 % smaller, and take five times as long."""


class SegmentWriter:
    """A segment being written. What `append` could not write whole is taken back before the next attempt."""

    def __init__(self, path: Path, opening: bytes) -> None:
        """Make the file, with its first lines. Raises OSError; then there is no file."""
        self.path = path
        self.size = 0
        """Bytes of whole lines."""
        self._has_partial_line = False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            self.append(opening)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, lines: bytes) -> None:
        """Write whole lines. Raises OSError; then the same lines may be appended again."""
        if self._has_partial_line:
            os.ftruncate(self._file, self.size)
        self._has_partial_line = True
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._has_partial_line = False
        self.size += len(lines)

    @property
    def is_deleted(self) -> bool:
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
            if self._has_partial_line:
                os.ftruncate(self._file, self.size)
        finally:
            os.close(self._file)


def compress_segment(plain: Path) -> None:
    """Put a packed file in the place of a finished segment. Raises OSError; the plain file is then still there."""
    packed = packed_path(plain)
    partial = packed.with_name(packed.name + ".part")
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    try:
        with plain.open("rb") as source, partial.open("wb") as target:
            while piece := source.read(ZSTD_FRAME_BYTES):
                target.write(compressor.compress(piece))
            target.flush()
            os.fsync(target.fileno())
        partial.replace(packed)
    finally:
        partial.unlink(missing_ok=True)
    plain.unlink()
