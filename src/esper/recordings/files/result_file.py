"""Files of computed results: one line of JSON for each, which is on the disk before the caller continues.

A line is written with one call, so that a kill leaves at most one partial line, at the end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from esper.common.system.disk import open_regular, read_regular, sync_directory
from esper.recordings.events.codec import DECODE_ERRORS, encode_json, make_decoder

T = TypeVar("T")

MAX_BYTES = 1 << 30
"""Maximum size of a file that is read."""
_BLOCK_BYTES = 1 << 12
"""Bytes that are read at once, from the end of a file on, to find its last whole line."""


def append_result(path: Path, result: object) -> None:
    """Append a result, and wait until it is on the disk. Several processes may append to one file.

    Args:
        path: File in an existing directory.

    Raises:
        OSError: The file cannot be written, or the disk is full.
    """
    line = encode_json(result) + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a kill or a full disk left a partial line
            line = b"\n" + line
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if not size:
        sync_directory(path.parent)


def read_results(path: Path, kind: type[T], on_damage: Callable[[int], None]) -> list[T]:
    """Return the results in a file, oldest first.

    Args:
        kind: Type of a result.
        on_damage: Called with the number, from 1, of each line that is not of this type; the line is left out.

    Raises:
        OSError: The file cannot be read.
    """
    decoder = make_decoder(kind)
    results: list[T] = []
    for number, line in enumerate(read_regular(path, limit=MAX_BYTES).splitlines(), 1):
        try:
            results.append(decoder.decode(line))
        except DECODE_ERRORS:
            on_damage(number)
    return results


def remove_partial_line(path: Path) -> None:
    """Remove what a kill left of the last line. No other process may write to the file. Raises OSError."""
    with open_regular(path) as file:
        size = whole = file.seek(0, os.SEEK_END)
        while whole > 0:
            start = max(0, whole - _BLOCK_BYTES)
            file.seek(start)
            end_of_line = file.read(whole - start).rfind(b"\n") + 1
            whole = start + end_of_line
            if end_of_line:
                break
    if whole < size:
        os.truncate(path, whole)
