"""Display status of a run: what its recording says, and whether a process writes to it."""

from __future__ import annotations

from pathlib import Path

from esper.domain import TERMINAL_STATUSES
from esper.recording.run_lock import LOCK_FILE, is_live

LIVE_WINDOW_S = 60.0
"""Seconds after the last write during which a run without a lock counts as live."""


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
    return is_live(directory) or (not (directory / LOCK_FILE).exists() and abs(now - written) < LIVE_WINDOW_S)
