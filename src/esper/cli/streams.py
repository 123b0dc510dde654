"""Standard output and standard error: text without control characters; streams that are closed, full or frozen."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import termios
from typing import TextIO

from esper.common.formatting import strip_control

CLOSED_ERRNOS = frozenset({errno.EPIPE, errno.EIO})
"""Errors of a pipe whose reader has exited, or of a terminal that was closed."""
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a full disk, an exceeded quota, or an exceeded file size."""
FROZEN_AFTER_S = 1.0
"""Seconds without accepting output after which a terminal counts as frozen. Printing to it would block for ever."""


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print lines, each control character in them replaced by a space: names and messages of users may contain some.

    Args:
        stream: Stream to print to; None for standard output.
    """
    print("\n".join(map(strip_control, text.split("\n"))), file=stream or sys.stdout, flush=True)


def print_json(value: bytes) -> None:
    """Print encoded JSON to standard output, with the control characters in its strings as escapes."""
    text = value.decode()
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text), flush=True)


def discard_broken_output() -> None:
    """Redirect each unwritable standard stream to the null device, or Python would print an error at exit."""
    for stream in (sys.stdout, sys.stderr):
        if _is_unwritable(stream):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_frozen(stream: TextIO) -> bool:
    """Return True if the stream is an open terminal that accepts no output. Waits up to `FROZEN_AFTER_S` for it."""
    return stream.isatty() and not select.select([], [stream], [], FROZEN_AFTER_S)[1]


def _is_unwritable(stream: TextIO) -> bool:
    try:
        stream.flush()
        termios.tcgetattr(stream.fileno())
    except OSError as error:
        if error.errno not in CLOSED_ERRNOS | DISK_FULL_ERRNOS:
            raise
        return True
    except termios.error as error:  # ENOTTY: not a terminal, but a file or a pipe
        return error.args[0] in CLOSED_ERRNOS
    return is_frozen(stream)
