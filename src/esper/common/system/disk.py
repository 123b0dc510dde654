"""Files that survive a loss of power, and files that can be read without risk.

When a program is killed, the system completes its writes. After a loss of power, a file may lack its content unless it
was synced, and a directory may lack new, renamed and removed entries unless the directory was synced.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_synced(path: Path, content: bytes) -> None:
    """Write a file, and wait until its content is on the disk. Its directory is not synced. Raises OSError."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until the entries of a directory are on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_synced(source: Path, target: Path) -> None:
    """Rename a file or a directory within its parent directory, and sync the parent. Raises OSError."""
    source.replace(target)
    sync_directory(target.parent)


def write_replaced(path: Path, content: bytes) -> None:
    """Write a file under another name first, so that a kill leaves its old content or the new one. Raises OSError."""
    partial = path.with_name(f"{path.name}.part")
    write_synced(partial, content)
    replace_synced(partial, path)


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents if they do not exist, and sync the parent of each. Raises OSError."""
    if path.exists():
        return
    make_directory(path.parent)
    make_subdirectory(path)


def make_subdirectory(path: Path) -> None:
    """Create a directory in an existing one if it does not exist, and sync its parent. Raises OSError."""
    if not path.exists():
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def numbered_paths(directory: Path, stem: str, suffix: str = "") -> Iterator[Path]:
    """Yield the paths `stem`, `stem-2`, `stem-3` … with a suffix, for a name that may be taken."""
    yield directory / f"{stem}{suffix}"
    yield from (directory / f"{stem}-{number}{suffix}" for number in itertools.count(2))


def check_writable(directory: Path) -> None:
    """Check that files can be written to a directory, which need not exist yet. Nothing is left behind.

    A temporary file is created in the directory, or in the nearest parent that exists: the permissions of `/proc`, for
    example, allow root to write, and the system does not.

    Raises:
        OSError: The directory cannot be created or written.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        reason = errno.EEXIST if existing == directory else errno.ENOTDIR
        raise OSError(reason, os.strerror(reason), str(existing))
    with tempfile.TemporaryFile(dir=existing):
        pass


class UnsafeFileError(OSError):
    """A file is not a regular file, or has another size than expected. `strerror` says which."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. A link is followed. A FIFO would block, and a device may have no end.

    Raises:
        UnsafeFileError: It is not a regular file.
        OSError: It cannot be opened.
    """
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFileError(None, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, *, size: int | None = None, limit: float = math.inf) -> bytes:
    """Return the content of a regular file. Its size is checked before it is read.

    Args:
        path: File; a link is followed.
        size: Size in bytes that it must have; None for any size up to the limit.
        limit: Maximum size in bytes.

    Raises:
        UnsafeFileError: It is not a regular file, or its size is wrong.
        OSError: It cannot be read.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno()).st_size
        if size is not None and found != size:
            raise UnsafeFileError(None, f"it has {found:,} bytes instead of {size:,}", str(path))
        if found > limit:
            raise UnsafeFileError(None, f"it has {found:,} bytes; the limit is {limit:,}", str(path))
        try:
            return file.read(found)
        except MemoryError:
            raise UnsafeFileError(None, f"its {found:,} bytes do not fit into memory", str(path)) from None
