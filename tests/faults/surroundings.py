"""Disturbs the surroundings of this process while it runs: its wall clock, and one of its next file operations.

Importing this module replaces functions of `time` and `os`. They read the disturbances from a file, which another
process may change at any time. Processes that are started later, such as workers, are not disturbed.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "ESPER_TEST_SURROUNDINGS"
"""Environment variable with the path of the file."""
_FORMAT = "dq"
"""Shift of the clock in seconds; number of file operations up to the one that fails, or 0."""
_OPERATIONS = ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "open", "pwrite", "ftruncate")


def disturb(path: Path, *, clock_s: float, fails_after: int = 0) -> None:
    """Write the disturbances of the processes that use the file.

    Args:
        clock_s: Shift of the wall clock in seconds.
        fails_after: Number of file operations up to the one that fails with an I/O error; 0: none fails.
    """
    path.touch()
    with path.open("r+b") as file:
        file.write(struct.pack(_FORMAT, clock_s, fails_after))


def _disturbed(function: Callable[..., Any], shared: mmap.mmap) -> Callable[..., Any]:
    def operation(*args: Any, **options: Any) -> Any:
        shift, count = struct.unpack_from(_FORMAT, shared)
        if count:
            struct.pack_into(_FORMAT, shared, 0, shift, count - 1)
            if count == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return function(*args, **options)

    return operation


def _replace_functions(path: str) -> None:
    with Path(path).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + struct.unpack_from(_FORMAT, shared)[0]
    time.time_ns = lambda: true_time_ns() + int(1e9 * struct.unpack_from(_FORMAT, shared)[0])
    for name in _OPERATIONS:
        setattr(os, name, _disturbed(getattr(os, name), shared))


if VARIABLE in os.environ:
    _replace_functions(os.environ[VARIABLE])
