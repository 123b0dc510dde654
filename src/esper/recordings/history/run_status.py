"""The status of a run, in one line: it starts, trains, is silent, stuck, paused, held or crashed, or it has ended.

Every screen and command takes the status from here. Importing this module needs no torch.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from esper.common.domain import TERMINAL_STATUSES
from esper.common.formatting import format_duration
from esper.common.system.process import is_stopped
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.events import AnomalyFound
from esper.recordings.events.sentences import name_call
from esper.recordings.files.run_lock import LOCK_FILE, is_live, read_holder
from esper.recordings.health.rules.lanes import STOPPED_MIN_S, check_stale, crash_anomaly
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state.state import RunState

LIVE_STATES = ("starting", "running", "silent", "stuck", "paused", "held")
"""Names of the states of a run that a process trains."""
LIVE_WINDOW_S = 60.0
"""Seconds after the last write during which a run without a lock counts as live."""
CADENCE_STEPS = 50
"""Number of last steps whose median duration is the usual one."""


class RunWriter(NamedTuple):
    """The process that trains a run."""

    is_starting: bool = False
    """True while it loads torch and builds the envs of a run that was begun before: no event reports it."""
    pid: int | None = None
    """Its number; None if it is not known, or is that of another machine."""


class RunStatus(NamedTuple):
    """Status of a run."""

    name: str
    """One of `LIVE_STATES`, crashed, done, stopped or failed."""
    note: str = ""
    """The call that is stuck, how long the run is silent, whether a crashed run can be resumed, or why a run has ended;
    empty for none."""
    can_resume: bool = False
    """True if the run has ended before its last round, and has a checkpoint from which `--resume` continues it."""
    anomaly: AnomalyFound | None = None
    """Anomaly of a silent or crashed run, which no event can report."""

    @property
    def has_ended(self) -> bool:
        """True if no process trains the run."""
        return self.name not in LIVE_STATES

    @property
    def brief(self) -> str:
        """The status in a few words: `silent for 12s`, `crashed, can be resumed`."""
        if self.name == "silent":
            return f"{self.name} {self.note}"
        return f"{self.name}, {self.note}" if self.name == "crashed" and self.note else self.name


def judge_run(
    state: RunState, writer: RunWriter | None, *, silence: float = 0.0, directory: Path | None = None
) -> RunStatus:
    """Return the status of a run.

    Args:
        state: State after the last event.
        writer: Process that trains the run; None if no process does.
        silence: Seconds since the last event.
        directory: Directory of the run, in which checkpoints are looked up; None if it is not known.
    """
    if writer is not None and writer.is_starting:
        return RunStatus("starting")
    can_resume = (writer is None and state.search is None and directory is not None) and _has_checkpoint(
        directory, state.seq
    )
    if state.status in TERMINAL_STATUSES:
        return RunStatus(state.status, state.reason or "", can_resume and state.status != "done")
    if writer is None:
        return RunStatus("crashed", "can be resumed" if can_resume else "", can_resume, crash_anomaly(can_resume))
    stopped = writer.pid if writer.pid is not None and silence >= STOPPED_MIN_S and is_stopped(writer.pid) else None
    anomaly = _find_silence(state, silence, stopped)
    silent = RunStatus("silent", f"for {format_duration(silence)}", anomaly=anomaly)
    if stopped is not None:
        return silent
    if state.status == "paused":
        return RunStatus("held" if state.cause is not None else "paused")
    if state.status == "running" and state.overdue:
        return RunStatus("stuck", name_call(next(iter(state.overdue.values()))), anomaly=anomaly)
    return silent if anomaly is not None else RunStatus(state.status)


def _find_silence(state: RunState, silence: float, stopped: int | None) -> AnomalyFound | None:
    """Return the anomaly of a silent run: its process is stopped, or no event came for many times a step's duration.

    Args:
        stopped: Number of the stopped process; None if it is not stopped, or its state is not known.
    """
    if silence < STOPPED_MIN_S:
        return None
    # A growth emits nothing while it trains the comparisons, tests the networks and writes them.
    is_finishing = state.search is not None and not state.search.trains_now
    # The first step of a process takes longer than the others: no step has its duration yet.
    is_first = state.started is None or state.timing is None or state.timing.seq < state.started.seq
    expects_events = state.status == "running" and not is_finishing and not is_first
    cadence = median(state.walls[-CADENCE_STEPS:]) if state.walls and expects_events else None
    return check_stale(cadence, silence, Thresholds.from_recording(state.started).limits, stopped)


@lru_cache(maxsize=64)
def _has_checkpoint(directory: Path, _seq: int) -> bool:
    """Return True if a run that has ended has a checkpoint. Read once per last event: screens ask at every tick."""
    with suppress(OSError):
        return bool(list_checkpoints(directory))
    return False


def find_writer(directory: Path, written: float, now: float) -> RunWriter | None:
    """Return the process that trains a run; None if no process does.

    Args:
        directory: Directory of the run.
        written: Time of the last write to its events, in seconds since the epoch.
        now: Current time, in seconds since the epoch.

    Raises:
        OSError: The lock file cannot be opened.
    """
    if not is_being_written(directory, written, now):
        return None
    holder = read_holder(directory)
    if holder is None:
        return RunWriter()
    return RunWriter(holder.is_starting, holder.pid if holder.host == socket.gethostname() else None)


def is_being_written(directory: Path, written: float, now: float) -> bool:
    """Return True if a process writes to a run: it holds the lock or, if there is no lock file, wrote recently.

    Raises:
        OSError: The lock file cannot be opened.
    """
    return is_live(directory) or (not (directory / LOCK_FILE).exists() and abs(now - written) < LIVE_WINDOW_S)
