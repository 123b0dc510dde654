"""One-line information about a run for `runs`, read from its last segment only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

import msgspec

from esper.domain import TERMINAL_STATUSES
from esper.history.history import open_history
from esper.recording.run_lock import LOCK_FILE, is_live
from esper.recording.segments import ReadError, list_segments, packed_path
from esper.telemetry.state import RunState

LIVE_WINDOW_S = 60.0
"""Seconds after the last write during which a run without a lock counts as live."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Information about one run, as `runs --json` prints it. Fields that the recording does not contain are absent."""

    run: str
    """Name of the run's directory."""
    path: str
    state: str
    """live, paused, done, stopped, failed, crashed (not ended, but no process writes to it) or unreadable."""
    task: str | None = None
    policy: str | None = None
    round: int | None = None
    """Last started round, from 1."""
    rounds: int | None = None
    """Configured number of rounds."""
    best_score: float | None = None
    """Maximum validation score of any env at any step, a fraction."""
    bytes: int
    """Size of all files in the directory, including checkpoints."""
    started: float | None = None
    """Time of the first event, in seconds since the epoch."""
    written: float
    """Time of the last write to its events, in seconds since the epoch."""
    problem: str | None = None
    """Why the run is unreadable."""


def read_run_info(directory: Path, written: float, now: float) -> RunInfo:
    """Return information about a run, read from its last segment.

    Args:
        directory: Directory of the run.
        written: Time of the last write to its events, in seconds since the epoch.
        now: Current time, in seconds since the epoch.
    """
    name, path, size = directory.name, str(directory), _directory_bytes(directory)
    try:
        state, live = _last_state(directory), is_being_written(directory, written, now)
    except (ReadError, OSError) as error:
        return RunInfo(run=name, path=path, bytes=size, written=written, state="unreadable", problem=str(error))
    best_scores = [env.best_score for env in state.envs if env.best_score is not None]
    started = state.started
    return RunInfo(
        run=name,
        path=path,
        bytes=size,
        written=written,
        state=display_status(state.status, live=live),
        task=started.task if started else None,
        policy=started.policy if started else None,
        round=state.round if started else None,
        rounds=started.rounds if started else None,
        best_score=max(best_scores, default=None),
        started=state.start_time if started else None,
    )


def display_status(status: str, *, live: bool) -> str:
    """Return the name of the state of a run, as `runs` and `show` print it.

    Args:
        status: Status in its RunState.
        live: A process writes to the run.
    """
    if status in TERMINAL_STATUSES:
        return status
    if not live:
        return "crashed"
    return "paused" if status == "paused" else "live"


def is_being_written(directory: Path, written: float, now: float) -> bool:
    """Return True if a process writes to a run: it holds the lock or, if there is no lock file, wrote recently.

    Raises:
        OSError: The lock file cannot be opened.
    """
    return is_live(directory) or (not (directory / LOCK_FILE).exists() and now - written < LIVE_WINDOW_S)


def _last_state(directory: Path) -> RunState:
    """Return the state at the end of a recording, read from its last readable segment, which opens with a Keyframe.

    Raises:
        ReadError: No segment is readable, and at least one is damaged.
    """
    notices: list[str] = []
    for path in reversed(list_segments(directory)):
        history = open_history(path if path.exists() else packed_path(path))
        state = history.state_at(history.length)
        if state.started is not None:  # otherwise the file ends within its first line
            return state
        notices += history.notices
    if notices:
        raise ReadError(notices[0])
    return RunState()


def _directory_bytes(directory: Path) -> int:
    """Return the total size of the files in a directory. Links and files deleted meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(directory):  # unlike `rglob`, it skips directories that are deleted meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(parent, name))
                total += found.st_size if S_ISREG(found.st_mode) else 0
    return total
