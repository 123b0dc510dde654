"""Information about one run for lists of runs, from the end of its recording and from its notes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

import msgspec

from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings.files.notes import RunNotes, read_notes
from esper.recordings.files.reader import OtherSchemaError, RecordingReader
from esper.recordings.files.segments import ReadError, list_segments, packed_path
from esper.recordings.history.history import open_history
from esper.recordings.history.measures import measure_state
from esper.recordings.history.run_status import RunStatus, find_writer, judge_run
from esper.recordings.history.summary import flat_config
from esper.recordings.state.state import RunState

READING_STATE = "reading"
"""State of a run whose recording was not read yet."""
UNREADABLE_STATE = "unreadable"
"""State of a run whose recording cannot be read."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Information about one run, as `runs --json` prints it. Fields that the recording does not contain are absent."""

    run: str
    """Name of the run's directory."""
    path: str
    state: str
    """Name of the run's status (see `RunStatus`), unreadable or reading."""
    health: str = ""
    """The status in a few words: `silent for 12s`, `crashed, can be resumed`; empty if the run was not read."""
    name: str | None = None
    """Name that the user gave to the run."""
    tags: tuple[str, ...] = ()
    """Tags that the user gave to the run."""
    note: str | None = None
    """Text that the user wrote about the run."""
    archived: bool = False
    """True if lists hide the run."""
    study: str | None = None
    """Study of a sweep to which the run belongs."""
    trial: int | None = None
    """Number of its trial in the study."""
    task: str | None = None
    policy: str | None = None
    seed: int | None = None
    """Random seed."""
    config: dict[str, Any] = {}
    """Resolved configuration, keyed like `ppo.gamma`."""
    score_name: str | None = None
    """Name of the task's score."""
    score_scale: ScoreScale = PERCENT
    """Range and better end of the score."""
    envs: int | None = None
    """Number of envs."""
    steps: int | None = None
    """Number of steps of an episode."""
    round: int | None = None
    """Last started round, from 1."""
    rounds: int | None = None
    """Configured number of rounds; None for a growth, which ends with its search."""
    measures: dict[str, float] = {}
    """Numbers of the run, keyed by their names in `measures.py`; those that were not measured are absent."""
    scores: list[float] = []
    """Median final score of the episodes of each of the last finished rounds, in order."""
    bytes: int | None = None
    """Size of all files in the directory, including checkpoints; absent while it is unknown."""
    started: float | None = None
    """Time of the first event, in seconds since the epoch."""
    written: float
    """Time of the last write to its events, in seconds since the epoch."""
    problem: str | None = None
    """Why the run or its notes are unreadable."""

    @property
    def title(self) -> str:
        """Name that the user gave to the run, or else the name of its directory."""
        return self.name or self.run


class RunEnd:
    """State at the end of a recording. Later reads add only the events that were written since.

    Args:
        run: Directory of the run.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._reader = RecordingReader(run, from_last_segment=True)
        self._state = RunState()
        self._last = self._state
        """Result of the last read."""

    def read(self) -> RunState:
        """Return the state after the last readable event. The caller must not change it.

        Raises:
            ReadError: No segment is readable, and at least one is damaged; or the events have another version.
            OSError: The directory cannot be read.
        """
        try:
            self._state = self._reader.fold_into(self._state)
            is_damaged = bool(self._reader.notices.messages) or self._state.started is None
        except OtherSchemaError:
            raise
        except ReadError:
            is_damaged = True
        # An earlier segment may be intact.
        self._last = _state_of_damaged_recording(self._run) if is_damaged else self._state
        return self._last

    def judge(self, written: float, now: float) -> RunStatus:
        """Return the present status of the run, as last read. Arguments as for `read_run_info`. Raises OSError."""
        return judge_run(self._last, find_writer(self._run, written, now), silence=now - written, directory=self._run)


def read_run_info(directory: Path, written: float, now: float, end: RunEnd | None = None) -> RunInfo:
    """Return information about a run.

    Args:
        directory: Directory of the run.
        written: Time of the last write to its events, in seconds since the epoch.
        now: Current time, in seconds since the epoch.
        end: Reader of the recording that was used before for this run; None: a new one.
    """
    size = directory_bytes(directory)
    info = RunInfo(run=directory.name, path=str(directory), written=written, state=UNREADABLE_STATE, bytes=size)
    end = end or RunEnd(directory)
    try:
        state, status = end.read(), end.judge(written, now)
    except (ReadError, OSError) as error:
        return with_notes(msgspec.structs.replace(info, problem=str(error)))
    found = _recorded_values(state) if state.started else {}
    return with_notes(msgspec.structs.replace(info, state=status.name, health=status.brief, **found))


def with_notes(info: RunInfo) -> RunInfo:
    """Return the information with the current notes on the run."""
    problem = info.problem if info.state == UNREADABLE_STATE else None
    try:
        notes = read_notes(Path(info.path))
    except ReadError as error:
        notes, problem = RunNotes(), problem or str(error)
    return msgspec.structs.replace(
        info,
        name=notes.name or None,
        tags=notes.tags,
        note=notes.note or None,
        archived=notes.archived,
        study=notes.study or None,
        trial=notes.trial,
        problem=problem,
    )


def directory_bytes(directory: Path) -> int:
    """Return the total size of the files in a directory. Links and files deleted meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(directory):  # unlike `rglob`, it skips directories that are deleted meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(parent, name))
                total += found.st_size if S_ISREG(found.st_mode) else 0
    return total


def _recorded_values(state: RunState) -> dict[str, Any]:
    """Return the fields of RunInfo that follow from the state of a run that has started."""
    started = state.started
    assert started is not None
    return {
        "task": started.task,
        "policy": started.policy,
        "seed": started.seed,
        "config": flat_config(started.config),
        "score_name": started.score_name,
        "score_scale": started.score_scale,
        "envs": len(started.lanes),
        "steps": started.steps,
        "round": state.round,
        "rounds": None if started.search else started.rounds,
        "measures": measure_state(state),
        "scores": [final.median for final in state.scores_by_round],
        "started": state.start_time,
    }


def _state_of_damaged_recording(directory: Path) -> RunState:
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
