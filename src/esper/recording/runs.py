"""Run directories: their names, and how to find one."""

from __future__ import annotations

import difflib
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from esper.recording.segments import ReadError, list_segments, packed_path

LAST_ALIAS = "last"
"""Stands for the run that was written to last."""
MAX_SUGGESTIONS = 3
"""Names offered in place of one that is not there."""


def make_run_directory(task: str, now: datetime, telemetry_dir: Path) -> Path:
    """A new directory, named by the task and the time, and a number where that is taken: no other run gets the same.

    Raises OSError.
    """
    telemetry_dir.mkdir(parents=True, exist_ok=True)
    name = candidate = f"{task}-{now:%Y%m%d-%H%M%S}"
    number = 1
    while True:
        try:
            (telemetry_dir / candidate).mkdir()
        except FileExistsError:
            number += 1
            candidate = f"{name}-{number}"
        else:
            return telemetry_dir / candidate


def list_runs(telemetry_dir: Path) -> list[Path]:
    """The run directories, the one written to last first; none if there is no such directory.

    One that may not be looked into, as another person's, is none of ours.
    """
    if not telemetry_dir.is_dir():
        return []
    runs: list[tuple[float, Path]] = []
    for path in telemetry_dir.iterdir():
        with suppress(PermissionError):
            if path.is_dir() and (when := last_write_time(path)) is not None:
                runs.append((when, path))
    return [path for _, path in sorted(runs, reverse=True)]


def resolve_run(text: str, telemetry_dir: Path) -> Path:
    """The recording that is meant: a path, the name of a run under the telemetry directory, or `last`.

    Raises ReadError if there is none, with the nearest names.
    """
    runs = list_runs(telemetry_dir)
    if text == LAST_ALIAS:
        if not runs:
            raise ReadError(f"there is no last run: {telemetry_dir} holds none yet")
        return runs[0]
    for path in (Path(text), telemetry_dir / text):
        if path.exists():
            return path
    names = [run.name for run in runs]
    if nearest := difflib.get_close_matches(text, names, n=MAX_SUGGESTIONS, cutoff=0.4):
        offer = f"did you mean {' or '.join(nearest)}"
    else:
        offer = f"the newest there: {', '.join(names[:MAX_SUGGESTIONS])}" if names else "it holds no runs yet"
    raise ReadError(f"there is no file {text!r}, nor a run of that name in {telemetry_dir}: {offer}")


def shortest_name(path: Path, telemetry_dir: Path) -> str:
    """What a person types to mean a recording: the name of a run under the telemetry directory, or else a path."""
    path = path.resolve()
    if path.parent == telemetry_dir.resolve():
        return path.name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def last_write_time(run: Path) -> float | None:
    """When a run's events, or its manifest, last changed; None for a directory that is no run."""
    times: list[float] = []
    segments = list_segments(run)
    for path in (*segments, *map(packed_path, segments), run / "run.json"):  # one may be packed while it is looked at
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)
