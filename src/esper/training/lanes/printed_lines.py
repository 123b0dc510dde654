"""PrintedLines: what the user's code prints, for the log of the run. Long lines are cut, and floods are counted."""

from __future__ import annotations

import io
import os
import sys
import threading
from contextlib import suppress
from typing import NamedTuple, Self, TextIO

from esper.common.formatting import strip_control

MAX_LINE_CHARACTERS = 1_000
MAX_LINES = 100
"""Maximum number of lines that are kept until they are logged, usually after a step."""
MAX_CHARACTERS = 10_000
"""Maximum length of these lines."""
FLOOD_DIVISOR = 10
"""Divisor of both limits after a step that exceeded them, so that the recording of a lasting flood stays small."""
MAX_UNFINISHED_LINES = 100


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


class Printed(NamedTuple):
    """Printed lines, and the number of those that were not kept."""

    lines: list[str]
    dropped: int

    def for_log(self) -> list[str]:
        """Return the lines, and a sentence about the others."""
        more = [f"{_count(self.dropped, 'more line')} in this step"] if self.dropped else []
        return self.lines + more


class _UnfinishedLine(NamedTuple):
    """Beginning of a line, and the number of characters that were not kept."""

    text: str = ""
    cut: int = 0

    def extend(self, text: str, start: int, end: int) -> _UnfinishedLine:
        """Return the line with a part of a text at its end."""
        kept = text[start : min(end, start + MAX_LINE_CHARACTERS - len(self.text))]
        return _UnfinishedLine(self.text + kept, self.cut + end - start - len(kept))

    def __str__(self) -> str:
        return f"{self.text} … {_count(self.cut, 'more character')}" if self.cut else self.text


class PrintedLines:
    """A context in which `sys.stdout` and `sys.stderr` keep the lines that the user's code prints.

    Args:
        of_main_thread: True in a worker process. Else the code runs in other threads than the main thread, which shows
            the run and prints as before.
    """

    def __init__(self, *, of_main_thread: bool = False) -> None:
        self._shown_thread = None if of_main_thread else threading.main_thread().ident
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._unfinished: dict[tuple[int, object], _UnfinishedLine] = {}
        """Unfinished line of each thread and stream."""
        self._lines: list[str] = []
        self._characters = 0
        self._blanks = 0
        """Number of blank lines, which are left out."""
        self._dropped = 0
        self._divisor = 1

    def __enter__(self) -> Self:
        self._streams = _Stream(self, sys.stdout), _Stream(self, sys.stderr)
        sys.stdout, sys.stderr = self._streams
        return self

    def __exit__(self, *_: object) -> None:
        output, errors = self._streams
        # The dashboard replaces them too, and may have ended before.
        sys.stdout = output.original if sys.stdout is output else sys.stdout
        sys.stderr = errors.original if sys.stderr is errors else sys.stderr
        with suppress(OSError):  # the lines were not logged, because the run did not start
            for line in self.take().for_log():
                output.original.write(f"{strip_control(line)}\n")

    def is_shown(self) -> bool:
        """Return True if the output of the current thread is shown and not kept.

        Lines that a forked child kept, such as the traceback of a process of a pool, would end with it.
        """
        return threading.get_ident() == self._shown_thread or os.getpid() != self._process

    def keep(self, text: str, stream: object) -> None:
        """Keep the finished lines of a text."""
        key = threading.get_ident(), stream
        with self._lock:
            unfinished, start = self._unfinished.pop(key, _UnfinishedLine()), 0
            while not self._is_full and (end := text.find("\n", start)) >= 0:
                self._add(str(unfinished.extend(text, start, end)))
                unfinished, start = _UnfinishedLine(), end + 1
            if dropped := text.count("\n", start):
                self._dropped += dropped
                unfinished, start = _UnfinishedLine(), text.rfind("\n") + 1
            unfinished = unfinished.extend(text, start, len(text))
            if unfinished.text and len(self._unfinished) < MAX_UNFINISHED_LINES:
                self._unfinished[key] = unfinished

    def add(self, printed: Printed) -> None:
        """Add the lines of a worker process."""
        with self._lock:
            for line in printed.lines:
                self._add(line)
            self._dropped += printed.dropped

    @property
    def _is_full(self) -> bool:
        is_long = self._characters >= MAX_CHARACTERS // self._divisor
        return is_long or len(self._lines) + self._blanks >= MAX_LINES // self._divisor

    def _add(self, line: str) -> None:
        if self._is_full:
            self._dropped += 1
        elif line.strip():
            self._lines.append(line)
            self._characters += len(line)
        else:
            self._blanks += 1

    def take(self) -> Printed:
        """Return the lines since the last call."""
        with self._lock:
            printed = Printed(self._lines, self._dropped)
            self._divisor = FLOOD_DIVISOR if self._dropped else 1
            self._lines, self._characters, self._blanks, self._dropped = [], 0, 0, 0
        return printed


class _Stream(io.TextIOBase):
    """Standard output or standard error of a process that runs the user's code."""

    def __init__(self, lines: PrintedLines, original: TextIO) -> None:
        super().__init__()
        self.lines = lines
        self.original = original

    def write(self, text: str, /) -> int:
        """Keep the finished lines of a text, or print it if it is of a thread that is shown."""
        if self.lines.is_shown():
            return self.original.write(text)
        self.lines.keep(text, self)
        return len(text)

    def flush(self) -> None:
        """Flush the output of the threads that are shown."""
        self.original.flush()

    def isatty(self) -> bool:
        """Return True if the shown threads print to a terminal."""
        return self.original.isatty()

    def fileno(self) -> int:
        """Return the file descriptor to which the shown threads print."""
        return self.original.fileno()


def print_for_worker(printed: Printed) -> None:
    """Print the lines of a worker process to `sys.stdout`, as if its envs had been trained in this process."""
    if isinstance(sys.stdout, _Stream):
        sys.stdout.lines.add(printed)
    else:
        for line in printed.for_log():
            sys.stdout.write(f"{line}\n")
