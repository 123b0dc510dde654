"""What the list of runs shows, read from the end of a recording only."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

import msgspec

from esper.domain import TERMINAL_STATUSES
from esper.history.history import open_history
from esper.recording.merged_ranks import rank_directories
from esper.recording.run_lock import LOCK_FILE, is_live
from esper.recording.segments import ReadError, list_segments, packed_path
from esper.telemetry.state import RunState

LIVE_WINDOW_S = 60.0
"""Seconds after the last write for which a run without a lock counts as live."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run, as `runs --json` prints it. What its recording does not tell is absent."""

    run: str
    """Its name: the directory."""
    path: str
    state: str
    """live, paused, done, stopped, failed; crashed: it has not ended, and nobody writes to it; or unreadable."""
    task: str | None = None
    policy: str | None = None
    round: int | None = None
    """The last that was begun."""
    rounds: int | None = None
    """What the run is to have."""
    best_accuracy: float | None = None
    """Greatest validation accuracy of any env at any step."""
    bytes: int
    """Size of everything in the directory, checkpoints too."""
    started: float | None = None
    """Seconds since the epoch."""
    written: float
    """When its events were last added to: seconds since the epoch."""
    problem: str | None = None
    """Why it is unreadable."""


def read_run_info(directory: Path, written: float, now: float) -> RunInfo:
    """Look at the last segment of a run.

    Args:
        directory: of the run.
        written: when its events were last added to, seconds since the epoch.
        now: seconds since the epoch.
    """
    known = {"run": directory.name, "path": str(directory), "bytes": _size(directory), "written": written}
    try:
        states = [_last_state(path) for path in (directory, *rank_directories(directory))]
        state, live = states[0], is_being_written(directory, written, now)
    except (ReadError, OSError) as error:
        return RunInfo(**known, state="unreadable", problem=str(error))
    bests = [env.best_accuracy for state in states for env in state.envs if env.best_accuracy is not None]
    started = state.started
    return RunInfo(
        **known,
        state=display_status(state.status, live=live),
        task=started.task if started else None,
        policy=started.policy if started else None,
        round=state.round if started else None,
        rounds=started.rounds if started else None,
        best_accuracy=max(bests, default=None),
        started=state.start_time if started else None,
    )


def display_status(status: str, *, live: bool) -> str:
    """What to call the state of a run.

    Args:
        status: that of its RunState.
        live: whether a process writes to it.
    """
    if status in TERMINAL_STATUSES:
        return status
    if not live:
        return "crashed"
    return "paused" if status == "paused" else "live"


def is_being_written(directory: Path, written: float, now: float) -> bool:
    """Whether a process writes to a run: it holds the lock or, where there is none, wrote a moment ago.

    Raises OSError if the lock may not be looked at.
    """
    return is_live(directory) or (not (directory / LOCK_FILE).exists() and now - written < LIVE_WINDOW_S)


def _last_state(directory: Path) -> RunState:
    """The state at the end of a recording. Every segment opens with a Keyframe, so the last one tells.

    Raises ReadError where none tells anything, and one is damaged.
    """
    damage: list[str] = []
    for path in reversed(list_segments(directory)):
        history = open_history(path if path.exists() else packed_path(path))
        state = history.state_at(history.length)
        if state.started is not None:  # else it was torn in its first line
            return state
        damage += history.notices
    if damage:
        raise ReadError(damage[0])
    return RunState()


def _size(directory: Path) -> int:
    """Bytes of its files; what goes while they are counted does not count, nor does what a link leads to."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            found = path.lstat()
            total += found.st_size if S_ISREG(found.st_mode) else 0
    return total
