"""PrintedLines: standard output of the threads of a run, for its log."""

from __future__ import annotations

import io
import sys
import threading
from collections import deque
from typing import Self

MAX_LINES = 100
"""Maximum number of lines that are kept until they are logged, usually after a step."""


class PrintedLines(io.TextIOBase):
    """A context in which `sys.stdout` keeps the lines that other threads than the main thread print.

    The user's code runs in these threads. The main thread, which shows the run, prints as before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque()
        self._fragments: dict[int, str] = {}
        """Unfinished line of each thread."""
        self._dropped = 0
        self._lock = threading.Lock()
        self._original = sys.stdout

    def __enter__(self) -> Self:
        self._original = sys.stdout
        sys.stdout = self
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stdout is self:  # the dashboard replaces it too, and may have ended before
            sys.stdout = self._original

    def write(self, text: str, /) -> int:
        """Keep the finished lines of a text; from the main thread, print it."""
        thread = threading.get_ident()
        if thread == threading.main_thread().ident:
            return self._original.write(text)
        with self._lock:
            *lines, self._fragments[thread] = (self._fragments.get(thread, "") + text).split("\n")
            for line in filter(str.strip, lines):
                if len(self._lines) < MAX_LINES:
                    self._lines.append(line)
                else:
                    self._dropped += 1
        return len(text)

    def flush(self) -> None:
        """Flush the output of the main thread."""
        self._original.flush()

    def isatty(self) -> bool:
        """Return True if the main thread prints to a terminal."""
        return self._original.isatty()

    def fileno(self) -> int:
        """Return the file descriptor to which the main thread prints."""
        return self._original.fileno()

    def take(self) -> list[str]:
        """Return the lines since the last call, and a line that counts those that were not kept."""
        with self._lock:
            lines, self._lines = list(self._lines), deque[str]()
            if self._dropped:
                lines.append(f"{self._dropped} more lines")
                self._dropped = 0
        return lines
