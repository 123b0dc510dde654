"""Reads the finished segments of a long recording ahead, in as many processes as there are cores.

A segment opens with the state from which it goes on, so it can be read by itself. Whether what came before ends in
that state is for the one who takes it to see.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, NamedTuple

from esper.garbage import spare_what_is_loaded
from esper.processes import another_python, cores
from esper.telemetry.segments import ReadError, Segment, packed_path

if TYPE_CHECKING:
    from esper.telemetry.reader import History

LEAST = 1 << 20
"""Bytes of a packed segment from which on it takes longer to read than a process to start."""
MOST = 8
"""Processes at a time: what they found waits in memory for its turn."""
NICENESS = 5
"""The run that is looked at may be training on the same cores."""

_PROGRAM = "from esper.telemetry.ahead import main; main()"


class Ahead:
    """Segments that are being read, or were and are yet to be taken."""

    def __init__(self) -> None:
        self._readers: dict[Path, _Reader] = {}
        weakref.finalize(self, _end, self._readers)

    def read(self, paths: Sequence[Path]) -> None:
        """Have those of the next few read that are finished and large, unless it is one alone.

        Args:
            paths: plain ones of what is next, in the order in which it will be taken.
        """
        many = min(cores(), MOST)
        worth = [path for path in paths[:many] if _worth(path)]
        if self._readers or len(worth) > 1:
            for path in worth:
                if path not in self._readers:
                    self._readers[path] = _start(path)

    def wait(self, path: Path, deadline: float) -> bool:
        """Wait for a segment until `perf_counter` comes to the deadline. False if it is still being read then."""
        if path in self._readers:
            try:
                self._readers[path].process.wait(max(deadline - perf_counter(), 0.0))
            except subprocess.TimeoutExpired:
                return False
        return True

    def take(self, path: Path) -> History | None:
        """The history that a segment is by itself.

        None where it was not read ahead, or could not be: then whoever reads it sees why.
        """
        if path not in self._readers:
            return None
        process, found = self._readers.pop(path)
        with found:
            if process.wait() != 0:
                return None
            found.seek(0)
            return pickle.load(found)


class _Reader(NamedTuple):
    """A process, and where it leaves what it has read."""

    process: subprocess.Popen[bytes]
    found: IO[bytes]


def _worth(path: Path) -> bool:
    return Segment(path).packed and packed_path(path).stat().st_size >= LEAST


def _start(path: Path) -> _Reader:
    found = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it is taken, or at the end)
    command, environment = another_python(_PROGRAM, str(path))
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=found, stderr=subprocess.DEVNULL, env=environment
    )
    return _Reader(process, found)


def _end(readers: dict[Path, _Reader]) -> None:
    for process, found in readers.values():
        process.kill()
        process.wait()
        found.close()


def main() -> None:
    """The process. Its argument is the path of the segment."""
    from esper.telemetry.reader import open_history

    os.nice(NICENESS)
    spare_what_is_loaded()
    try:
        history = open_history(Path(sys.argv[1]))
    except ReadError:
        sys.exit(1)
    pickle.dump(history, sys.stdout.buffer, protocol=5)
