"""Stored results of simulations: one line of JSON each, in a file of the run directory or of the user's cache."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from platformdirs import user_cache_path

from esper.common.system.disk import make_directory
from esper.recordings.effects.results import Simulation
from esper.recordings.files.result_file import append_result, read_results
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.runs import is_shipped

RESULTS_FILE = "what-if.jsonl"
"""File of a run directory that holds the results of its simulations."""


class _Line(msgspec.Struct, kw_only=True):
    format: Literal[3]
    """Version of a line. Lines of another version are skipped."""
    simulation: Simulation


class EffectStore:
    """Results of simulations of one recording.

    Damaged lines are skipped, as are lines of another version. If the directory of the run cannot be written, is not at
    its path any more, or ships with the package, results go to the user's cache.

    Args:
        recording: Run directory, or one file of events.
        in_cache: Let all results go to the user's cache.
    """

    def __init__(self, recording: Path, *, in_cache: bool = False) -> None:
        directory = recording if recording.is_dir() else recording.parent
        name = hashlib.blake2b(os.fsencode(recording.resolve()), digest_size=8).hexdigest()
        self._paths = directory / RESULTS_FILE, user_cache_path("esper-sanctum") / "what-if" / f"{name}.jsonl"
        self._directory: RunDirectory | None = None
        if not (in_cache or is_shipped(directory)):
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
                lines = read_results(path, _Line, on_damage=lambda _: None)
                self._sizes[path], self._simulations[path] = size, [line.simulation for line in lines]
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
        line = _Line(format=3, simulation=simulation)
        if self._directory is not None:
            with suppress(OSError):
                append_result(self._directory.check() / RESULTS_FILE, line)
                return
        in_cache = self._paths[1]
        make_directory(in_cache.parent)
        append_result(in_cache, line)
