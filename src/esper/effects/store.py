"""Stored results of simulations: one line of JSON each, in a file of the run directory or of the user's cache."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec
from platformdirs import user_cache_path

from esper.disk import make_directory, read_regular
from esper.effects.results import Simulation
from esper.recording.run_directory import RunDirectory
from esper.recording.runs import is_shipped
from esper.telemetry.codec import DECODE_ERRORS, encode_json, make_decoder

RESULTS_FILE = "what-if.jsonl"
"""File of a run directory that holds the results of its simulations."""
FORMAT = 1
"""Version of a line. Lines of another version are skipped."""
MAX_BYTES = 1 << 30
"""Maximum size of a file that is read."""


class _Line(msgspec.Struct, kw_only=True):
    format: int
    simulation: msgspec.Raw


class EffectStore:
    """Results of simulations of one recording.

    A result is written with one call and synced, so that a kill leaves at most one partial line, which is skipped, as
    are lines of another version. If the directory of the run cannot be written, is not at its path any more, or ships
    with the package, results go to the user's cache.

    Args:
        recording: Run directory, or one file of events.
    """

    def __init__(self, recording: Path) -> None:
        directory = recording if recording.is_dir() else recording.parent
        name = hashlib.blake2b(os.fsencode(recording.resolve()), digest_size=8).hexdigest()
        self._paths = directory / RESULTS_FILE, user_cache_path("esper-sanctum") / "what-if" / f"{name}.jsonl"
        self._directory: RunDirectory | None = None
        if not is_shipped(directory):
            with suppress(OSError):
                self._directory = RunDirectory(directory)
        self._sizes: dict[Path, int] = {}
        self._simulations: dict[Path, list[Simulation]] = {}

    def read(self) -> list[Simulation]:
        """Return all results, oldest first for each file. Files are read again only if their size has changed.

        Raises:
            OSError: A file cannot be read.
        """
        for path in self._paths:
            try:
                size = path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                self._simulations.pop(path, None)
                self._sizes.pop(path, None)
                continue
            if self._sizes.get(path) != size:
                content = read_regular(path, limit=MAX_BYTES)
                self._sizes[path] = len(content)
                self._simulations[path] = _decode(content)
        return [simulation for found in self._simulations.values() for simulation in found]

    @property
    def version(self) -> tuple[int, ...]:
        """Sizes of the files: another value means that `read` returns other results."""
        return tuple(path.stat().st_size if path.is_file() else 0 for path in self._paths)

    def add(self, simulation: Simulation) -> None:
        """Write a result; it is on the disk when the method returns.

        Raises:
            OSError: Neither the directory of the run nor the user's cache can be written.
        """
        line = encode_json(_Line(format=FORMAT, simulation=msgspec.Raw(encode_json(simulation)))) + b"\n"
        if self._directory is not None:
            with suppress(OSError):
                _append(self._directory.check() / RESULTS_FILE, line)
                return
        in_cache = self._paths[1]
        make_directory(in_cache.parent)
        _append(in_cache, line)


def _append(path: Path, line: bytes) -> None:
    """Append a line with one write, and wait until it is on the disk. Raises OSError."""
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


def _decode(content: bytes) -> list[Simulation]:
    found: list[Simulation] = []
    for line in content.splitlines():
        try:
            entry = msgspec.json.decode(line, type=_Line)
            if entry.format == FORMAT:
                found.append(_decoder.decode(entry.simulation))
        except DECODE_ERRORS:
            continue
    return found


_decoder = make_decoder(Simulation)
