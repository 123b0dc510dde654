"""Output streams that are closed, full or frozen."""

from __future__ import annotations

import errno
import os
import select
import sys
import termios
from typing import TextIO

CLOSED_ERRNOS = frozenset({errno.EPIPE, errno.EIO})
"""Errors of a stream whose reader has seen enough, or whose terminal was closed."""
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a file for which there is no room."""
FROZEN_AFTER_S = 1.0
"""Seconds after which a terminal that takes nothing counts as frozen: who printed to it would wait for ever."""


def discard_broken_output() -> None:
    """Have what is still printed to such a stream go nowhere. Python itself would complain of it, at exit."""
    for stream in (sys.stdout, sys.stderr):
        if _is_unwritable(stream):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_frozen(stream: TextIO) -> bool:
    """Whether it is a terminal that is open, but takes nothing: waits a second for it."""
    return stream.isatty() and not select.select([], [stream], [], FROZEN_AFTER_S)[1]


def _is_unwritable(stream: TextIO) -> bool:
    try:
        stream.flush()
        termios.tcgetattr(stream.fileno())
    except OSError as error:
        if error.errno not in CLOSED_ERRNOS | DISK_FULL_ERRNOS:
            raise
        return True
    except termios.error as error:  # ENOTTY: it is no terminal, but a file or a pipe
        return error.args[0] in CLOSED_ERRNOS
    return is_frozen(stream)
