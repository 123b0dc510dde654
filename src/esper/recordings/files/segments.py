"""Segment files: JSON Lines while written, zstd when finished."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import zstandard

from esper.common.system.disk import open_regular, replace_synced, sync_directory

READ_CHUNK_BYTES = 1 << 18
"""Bytes read and decoded at a time: some hundred events."""
PACKED_READ_BYTES = 1 << 14
"""Bytes of a packed file read at a time, in a frame that states a size up to MAX_FRAME_BYTES."""
SMALL_READ_BYTES = 1 << 9
"""The same in other frames. One byte of them may unpack to 32 KiB."""
MAX_FRAME_BYTES = 1 << 25
"""Unpacked bytes of a frame that are held back until its checksum is verified; a recorder's frames are far smaller."""
MAX_LINE_BYTES = 1 << 25
"""Bytes without a line end after which a file cannot be a recording. Keyframes of 1,024 envs have a few megabytes."""
FRAME_HEADER_BYTES = 18
"""Maximum size of the header of a zstd frame; every frame of a recorder is longer."""
ZSTD_FRAME_BYTES = 1 << 17
"""Unpacked bytes of a zstd frame: the maximum that is unpacked to read one line, and that one flipped bit destroys."""
PACKED_RATIO = 10
"""Usual bytes of text per byte of a packed file, so that packed and plain files count alike."""
ZSTD_LEVEL = 9
"""Compression level. A segment takes less than a second on a core that may also drive a lane. At level 15 it would be
8 % smaller and take five times as long."""

_MAGIC = zstandard.MAGIC_NUMBER.to_bytes(4, "little")
_SEGMENT_NAME = re.compile(r"events-(\d+)\.jsonl(\.zst)?")
_KEYFRAME_SEQ = re.compile(rb'\{"type":"Keyframe","seq":(\d+)')


class ReadError(Exception):
    """A recording does not exist or cannot be read, or it has no such round or env.

    The message is one sentence. For a damaged file it has the position in the file, and what was expected there.
    """


def segment_path(directory: Path, number: int) -> Path:
    """Return the plain path of a segment of a run. Segments are numbered from 1."""
    return directory / f"events-{number:05d}.jsonl"


def packed_path(plain: Path) -> Path:
    """Return the path of a segment after it was packed."""
    return plain.with_name(plain.name + ".zst")


def plain_path(path: Path) -> Path:
    """Return the path that a segment had before it was packed, which identifies it."""
    return path.with_suffix("") if path.suffix == ".zst" else path


def is_packed(path: Path) -> bool:
    """Return True if a file starts with the magic number of zstd, whatever its name. Raises OSError."""
    with open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def list_segments(directory: Path) -> list[Path]:
    """Return the plain paths of the segments of a run in order, packed ones included. Raises OSError."""
    found = (_SEGMENT_NAME.fullmatch(path.name) for path in directory.iterdir())
    return [segment_path(directory, number) for number in sorted({int(match[1]) for match in found if match})]


def is_segment_name(name: str) -> bool:
    """Return True if a file of a run with this name is a segment, plain or packed."""
    return _SEGMENT_NAME.fullmatch(name) is not None


def segment_number(path: Path) -> int:
    """Return the number in a path that `list_segments` returned."""
    match = _SEGMENT_NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


@lru_cache(maxsize=4096)
def first_seq(path: Path) -> int:
    """Return the event number of the Keyframe that a segment opens with; 0 if there is none.

    Args:
        path: Plain path.

    Raises:
        ReadError: The file cannot be read.
    """
    match = _KEYFRAME_SEQ.match(Segment(path).remainder(0))
    return int(match[1]) if match else 0


class Segment:
    """One file of a recording, read as lines from any offset on.

    Offsets count bytes of the plain text, so they stay valid when the recorder packs the file during reading.

    Args:
        path: Plain path. If there is no plain file, the packed file beside it is read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_truncated = False
        """The packed file ends within a frame."""
        self.is_corrupt = False
        """A part of the packed file could not be unpacked."""
        self._frames = [(0, 0)]
        """Known starts of zstd frames: offset in the plain text, offset in the packed file."""

    @property
    def damaged_paths(self) -> list[Path]:
        """The packed file, if it could not be unpacked completely."""
        return [packed_path(self.path)] if self.is_truncated or self.is_corrupt else []

    @property
    def is_finished(self) -> bool:
        """True if the file is packed; then nothing will be appended."""
        return not self.path.exists() and packed_path(self.path).exists()

    def line_blocks(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of complete lines from an offset on, each with the offset after it.

        Text after the last line end is left out.

        Raises:
            ReadError: The file cannot be opened, or has no line ends.
        """
        pending: list[bytes] = []
        pending_bytes = 0
        for chunk in self._chunks(offset):
            cut = chunk.rfind(b"\n") + 1
            if cut:
                block = b"".join([*pending, chunk[:cut]])
                pending, pending_bytes = [], 0
                offset += len(block)
                yield offset, block
            pending.append(chunk[cut:])
            pending_bytes += len(chunk) - cut
            if pending_bytes > MAX_LINE_BYTES:
                raise ReadError(f"{self.path} is not a recording: it has no line ends; expected JSON Lines of events")

    def remainder(self, offset: int) -> bytes:
        """Return the start of the text after an offset; empty at the end of the file."""
        return next(self._chunks(offset), b"")

    def fraction_before(self, offset: int) -> float:
        """Return the fraction of the file before an offset; of a packed file, before its frame. Raises OSError."""
        try:
            return min(offset / max(self.path.stat().st_size, 1), 1.0)
        except FileNotFoundError:
            _, packed = self._frames[bisect_right(self._frames, offset, key=lambda frame: frame[0]) - 1]
            return packed / packed_path(self.path).stat().st_size

    def describe_line(self, offset: int) -> str:
        """Return path and number, from 1, of the line that ends at an offset, for messages."""
        number, start = 0, 0
        for end, text in self.line_blocks(0):
            if end >= offset:
                number += text.count(b"\n", 0, offset - start)
                break
            number, start = number + text.count(b"\n"), end
        return f"{self.path}, line {number}"

    def _chunks(self, offset: int) -> Iterator[bytes]:
        try:
            file, packed = self._open()
            with file:
                yield from self._unpack(file, offset) if packed else _read(file, offset)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _open(self) -> tuple[BinaryIO, bool]:
        """Open the plain or the packed file, whichever exists. The second value is True for the packed one."""
        try:
            return open_regular(self.path), False
        except FileNotFoundError:
            return open_regular(packed_path(self.path)), True

    def _unpack(self, file: BinaryIO, offset: int) -> Iterator[bytes]:
        """Unpack from the nearest known frame before an offset on, and store the start of every further frame.

        The text of a frame is yielded after its checksum was verified; a damaged frame counts as empty.
        """
        position, packed = self._frames[bisect_right(self._frames, offset, key=lambda frame: frame[0]) - 1]
        while packed >= 0:
            file.seek(packed)
            frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                for text in _unpack_frame(file, frame):
                    for start in range(max(offset - position, 0), len(text), READ_CHUNK_BYTES):
                        yield text[start : start + READ_CHUNK_BYTES]
                    position += len(text)
            except zstandard.ZstdError:
                self.is_corrupt = True
                packed = _find_frame(file, packed + 1)
                continue
            if not frame.eof:
                has_frame = packed == 0 or file.tell() > packed  # an empty file lacks its first frame
                packed = _find_frame(file, packed + 1)
                if packed < 0:
                    self.is_truncated = has_frame
                else:  # the frame's length is damaged, so that it includes the next frame
                    self.is_corrupt = True
                continue
            packed = file.tell() - len(frame.unused_data)
            if position > self._frames[-1][0]:
                self._frames.append((position, packed))


def fraction_read(paths: Iterable[Path], segment: Segment, offset: int) -> float:
    """Return the fraction of a recording that was read, by the estimated bytes of its text.

    Args:
        paths: Plain paths of all segments, in order.
        segment: Segment that is being read.
        offset: Bytes of its text that were read.

    Raises:
        OSError: A file cannot be found.
    """
    sizes = {path: _text_size(path) for path in paths}
    read = sum(size for path, size in sizes.items() if path < segment.path)
    if segment.path in sizes:
        read += sizes[segment.path] * segment.fraction_before(offset)
    return read / max(sum(sizes.values()), 1)


def _text_size(plain: Path) -> int:
    """Return the bytes of a segment's text, estimated if it is packed. Raises OSError."""
    try:
        return plain.stat().st_size
    except FileNotFoundError:
        return packed_path(plain).stat().st_size * PACKED_RATIO


def _unpack_frame(file: BinaryIO, frame: zstandard.ZstdDecompressionObj) -> Iterator[bytes]:
    """Yield the text of a frame, at once unless it exceeds MAX_FRAME_BYTES; its start if the file ends within it.

    Raises ZstdError if the frame is damaged.
    """
    held: list[bytes] = []
    size = 0
    read_bytes = _read_bytes(file)
    while not frame.eof and (data := file.read(read_bytes)):
        held.append(frame.decompress(data))
        size += len(held[-1])
        if size > MAX_FRAME_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _read_bytes(file: BinaryIO) -> int:
    """Return how many bytes of the frame at the current position to read at a time. Raises ZstdError."""
    header = file.read(FRAME_HEADER_BYTES)
    file.seek(-len(header), os.SEEK_CUR)
    if len(header) < FRAME_HEADER_BYTES:  # at the end of the file
        return PACKED_READ_BYTES
    size = zstandard.get_frame_parameters(header).content_size
    return PACKED_READ_BYTES if size <= MAX_FRAME_BYTES else SMALL_READ_BYTES  # an unknown size is a great number


def _find_frame(file: BinaryIO, start: int) -> int:
    """Return the offset of the next magic number of a frame, from `start` on; -1 if there is none."""
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


class SegmentWriter:
    """Writer of a new segment. A partial line left by a failed `append` is removed before the next attempt.

    Args:
        path: File to create; it must not exist.
        opening: First lines.

    Raises:
        OSError: The file cannot be created, written or synced; then it does not exist.
    """

    def __init__(self, path: Path, opening: bytes) -> None:
        self.path = path
        self.size = 0
        """Bytes of complete lines."""
        self._has_partial_line = False
        self._is_synced = False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            self.append(opening)
            self.sync()
            sync_directory(path.parent)
        except OSError:
            with suppress(OSError):  # not `close`, which syncs: a second error would leave the file behind
                os.close(self._file)
            path.unlink(missing_ok=True)
            raise

    def append(self, lines: bytes) -> None:
        """Write complete lines. Raises OSError; then the same lines can be appended again."""
        if self._has_partial_line:
            os.ftruncate(self._file, self.size)
        self._has_partial_line, self._is_synced = True, False
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._has_partial_line = False
        self.size += len(lines)

    @property
    def is_deleted(self) -> bool:
        """True if the file is no longer at its path, so that further writes would be lost."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(found, os.fstat(self._file))

    def sync(self) -> None:
        """Flush the lines to the disk, so that they survive a loss of power. Raises OSError."""
        if not self._is_synced:
            os.fsync(self._file)
            self._is_synced = True

    def close(self) -> None:
        """Remove a partial line, sync the others and close the file. Raises OSError."""
        try:
            if self._has_partial_line:
                os.ftruncate(self._file, self.size)
            self.sync()
        finally:
            os.close(self._file)


def compress_segment(plain: Path) -> None:
    """Replace a finished segment by a packed file. Raises OSError; then the plain file still exists."""
    packed = packed_path(plain)
    partial = packed.with_name(packed.name + ".part")
    try:
        with plain.open("rb") as source, partial.open("wb") as target:
            write_frames(iter(lambda: source.read(ZSTD_FRAME_BYTES), b""), target)
            target.flush()
            os.fsync(target.fileno())
        replace_synced(partial, packed)
    finally:
        partial.unlink(missing_ok=True)
    plain.unlink()


def write_frames(texts: Iterable[bytes], target: BinaryIO) -> None:
    """Write text as zstd frames of at most ZSTD_FRAME_BYTES, each with its size and a checksum. Raises OSError."""
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    for text in texts:
        for start in range(0, len(text), ZSTD_FRAME_BYTES):
            target.write(compressor.compress(text[start : start + ZSTD_FRAME_BYTES]))
