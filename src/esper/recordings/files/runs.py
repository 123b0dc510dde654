"""Run directories: their names, and how to find one."""

from __future__ import annotations

import difflib
import shlex
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from esper.common.system.disk import make_directory, numbered_paths, sync_directory
from esper.recordings.files.notes import read_notes
from esper.recordings.files.run_lock import is_live
from esper.recordings.files.segments import ReadError, list_segments, packed_path

LAST_ALIAS = "last"
"""Name that stands for the run that was written to last."""
FUTURE_S = 60.0
"""Seconds from which on a time of writing counts as ahead of the clock: clocks of file servers differ a little."""
MAX_SUGGESTIONS = 3
"""Number of run names that are suggested for one that was not found."""


def make_run_directory(task: str, now: datetime, telemetry_dir: Path) -> Path:
    """Create a run directory named after task and time, with a number if the name is taken. Safe between processes.

    Raises:
        OSError: The directory cannot be created.
    """
    make_directory(telemetry_dir)
    for path in numbered_paths(telemetry_dir, f"{task}-{now:%Y%m%d-%H%M%S}"):
        with suppress(FileExistsError):
            path.mkdir()
            sync_directory(telemetry_dir)
            return path
    raise AssertionError("the numbers do not end")


def move_output(output: Path, run: Path) -> None:
    """Move the output of a background process into the directory of its run, if another process has not done so."""
    with suppress(FileNotFoundError):
        output.rename(next(path for path in numbered_paths(run, "output", ".log") if not path.exists()))


def stem_of(recording: Path) -> str:
    """Return the name of a recording's directory or file, without endings such as `.jsonl.zst`."""
    return recording.resolve().name.partition(".")[0]


def safe_run_name(recorded: str | None, fallback: str) -> str:
    """Return the recorded name of a run if it can be a part of a file name, else the fallback.

    The name is text of a recording, perhaps of a stranger: a path in it would lead out of the directory of the file.
    """
    name = recorded or ""
    is_file_name = name.isprintable() and Path(name).name == name and name not in {"", ".."}
    return name if is_file_name else fallback


def find_demo(*, faults: bool = False) -> Path:
    """Return the run directory of a demo: inside an installed package, or at the root of a checkout.

    Args:
        faults: Return the run with faults instead of the one that learns.

    Raises:
        ReadError: The directory does not exist.
    """
    name = "demo-faults" if faults else "demo"
    places = [directory / name for directory in _shipped_directories()]
    for place in places:
        if place.is_dir():
            return place
    raise ReadError(f"the demo is missing: directory {places[0]} not found; install the package again")


def is_shipped(run: Path) -> bool:
    """Return True if a run directory ships with the package, whose files no command changes."""
    shipped = [directory / name for directory in _shipped_directories() for name in ("demo", "demo-faults")]
    return run.resolve() in shipped


def _shipped_directories() -> tuple[Path, Path]:
    """Return the directories that may contain demos: the installed package, and `telemetry` of a checkout."""
    package = Path(__file__).resolve().parents[2]
    return package, package.parents[1] / "telemetry"


def list_runs(telemetry_dir: Path) -> list[Path]:
    """Return the run directories, the one written to last first; empty if the telemetry directory does not exist.

    Live runs come first if other runs were written in the future, because the clock was set back since then.
    Directories that this user may not read are left out.
    """
    if not telemetry_dir.is_dir():
        return []
    runs: list[tuple[float, Path]] = []
    for path in telemetry_dir.iterdir():
        with suppress(PermissionError):
            if path.is_dir() and (when := last_write_time(path)) is not None:
                runs.append((when, path))
    runs.sort(reverse=True)
    if runs and is_in_future(runs[0][0], time.time()):
        runs.sort(key=lambda run: _is_surely_live(run[1]), reverse=True)
    return [path for _, path in runs]


def is_in_future(written: float, now: float) -> bool:
    """Return True if a time of writing is ahead of the clock, which was set back since then."""
    return written - now >= FUTURE_S


def _is_surely_live(run: Path) -> bool:
    with suppress(OSError):
        return is_live(run)
    return False


def resolve_run(text: str, telemetry_dir: Path) -> Path:
    """Return the path of a recording.

    Args:
        text: Run name, path, or `last`. A name is that of the directory or the one that the user gave to the run.
        telemetry_dir: Directory that contains the runs.

    Raises:
        ReadError: There is no such recording, and the message suggests similar names; or several runs have the name.
    """
    runs = list_runs(telemetry_dir)
    if text == LAST_ALIAS:
        if not runs:
            problem = "contains no runs" if telemetry_dir.exists() else "does not exist; give another --telemetry-dir"
            raise ReadError(f"cannot resolve `{LAST_ALIAS}`: {telemetry_dir} {problem}")
        return runs[0]
    for path in (Path(text), telemetry_dir / text):
        if path.exists():
            return path
    given_names = {run: name for run in runs if (name := _given_name(run))}
    if found := [run for run, name in given_names.items() if name == text]:
        if len(found) > 1:
            which = ", ".join(run.name for run in found)
            raise ReadError(f"{len(found)} runs in {telemetry_dir} have the name {text!r}; give one of these: {which}")
        return found[0]
    names = [run.name for run in runs]
    if nearest := difflib.get_close_matches(text, [*names, *given_names.values()], n=MAX_SUGGESTIONS):
        hint = f"did you mean {' or '.join(shlex.quote(name) for name in nearest)}?"
    else:
        hint = f"newest runs: {', '.join(names[:MAX_SUGGESTIONS])}" if names else "it contains no runs"
    raise ReadError(f"{text!r} is neither a file nor a run in {telemetry_dir}; {hint}")


def _given_name(run: Path) -> str:
    """Return the name that the user gave to a run; empty without one."""
    try:
        return read_notes(run).name
    except ReadError:  # damaged notes on one run must not hide the others; `runs` reports them
        return ""


def shortest_name(path: Path, telemetry_dir: Path) -> str:
    """Return the shortest text that `resolve_run` resolves to a recording: the name of the run, or a path."""
    path = path.resolve()
    if path.parent == telemetry_dir.resolve():
        return path.name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def last_write_time(run: Path) -> float | None:
    """Return when events or manifest of a run last changed, in seconds since the epoch; None if it is no run."""
    times: list[float] = []
    segments = list_segments(run)
    for path in (*segments, *map(packed_path, segments), run / "run.json"):  # a segment may be packed meanwhile
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)
