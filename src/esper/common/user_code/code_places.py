"""Places in code: those of the user's own code in a stack."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeAlias

_PACKAGE_PREFIX = f"{Path(__file__).parents[2]}{os.sep}"
"""Beginning of the paths of all files of the package esper."""
_LIBRARY_PREFIXES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Beginnings of the paths of Python's own modules and of installed packages."""

CodePlace: TypeAlias = tuple[str, int, str]
"""File, line and function."""


def find_own(places: Sequence[CodePlace], *, libraries: bool = True) -> CodePlace | None:
    """Return the innermost place in the user's own code; None if there is none.

    Args:
        places: Places of a stack, the innermost last.
        libraries: If there is none in the user's own code, return the innermost place in a library, unless code of this
            package is further in.
    """
    outside = [place for place in places if not is_in_package(place[0]) and not place[0].startswith("<")]
    own = [place for place in outside if not place[0].startswith(_LIBRARY_PREFIXES)]
    if own or not libraries or not outside or is_in_package(places[-1][0]):
        return own[-1] if own else None
    return outside[-1]


def is_in_package(filename: str) -> bool:
    """Return True for a file of this package."""
    return filename.startswith(_PACKAGE_PREFIX)


_waited_for: dict[int, Callable[[], CodePlace | None]] = {}
"""Functions that return where another process is, keyed by the thread that waits for it."""


@contextmanager
def waiting_for(find_place: Callable[[], CodePlace | None]) -> Generator[None]:
    """Context in which the current thread waits for the user's code in another process.

    Args:
        find_place: Returns the place of that process in the user's code; None if it is not known.
    """
    thread = threading.get_ident()
    _waited_for[thread] = find_place
    try:
        yield
    finally:
        del _waited_for[thread]


def find_in_thread(thread: int | None) -> CodePlace | None:
    """Return the innermost place in the user's own code that a thread is in, or for which it waits; None without one.

    Args:
        thread: Identifier of the thread; None if it has not started.
    """
    if find_place := _waited_for.get(thread or 0):
        return find_place()
    frames = frames_of_call(sys._current_frames().get(thread or 0))  # pyright: ignore[reportPrivateUsage]
    places = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in reversed(frames)]
    return find_own(places, libraries=False)


def describe_place(place: CodePlace) -> str:
    """Return a place in words, for example `in forward (mine.py, line 28)`."""
    file, line, function = place
    return f"in {function} ({Path(file).name}, line {line})"


def frames_of_call(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a call of the user's code, the innermost first; empty if this package did not call it.

    Args:
        frame: Innermost frame of the stack. Frames of this package that the code has called are left out.
    """
    frames: list[FrameType] = []
    while frame is not None and is_in_package(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None and not is_in_package(frame.f_code.co_filename):
        frames.append(frame)
        frame = frame.f_back
    return frames if frame is not None else []
