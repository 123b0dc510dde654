"""Sources of the run state that the dashboard shows: a run in this or another process, or a recording."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from esper.recordings.attach.session import AttachedRun
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import is_live
from esper.recordings.files.segments import ReadError
from esper.recordings.history.curve_store import CurveStore
from esper.recordings.history.divergence import GhostRun
from esper.recordings.history.history import History, open_history
from esper.recordings.history.playback import Playback
from esper.recordings.history.run_status import RunStatus, RunWriter, find_writer, judge_run
from esper.recordings.state.state import Record, RunState, fold
from esper.sanctum.requests import PendingRequests, RemotePendingRequests, RequestSink

CURVE_BUDGET_S = 0.04
"""Maximum seconds per tick spent on reading curves."""
CURVE_INTERVAL_S = 2.0
"""Seconds between two updates of the curves of a live run: a page of charts takes longer to draw than other screens."""
FIRST_READ_S = 0.02
"""Seconds of reading before a recording is shown; the rest is read in the next ticks."""
READ_BUDGET_S = 0.08
"""Maximum seconds per tick spent on reading a recording."""


class RunHandle(Protocol):
    """Run whose engine a live source starts and reads from."""

    records: queue.SimpleQueue[Record]

    @property
    def fatal_error(self) -> str | None:
        """Error message if the run could not be set up, else None."""
        ...

    @property
    def start_stage(self) -> str:
        """Present stage of the start of the run, in words; read until the first event arrives."""
        ...

    @property
    def directory(self) -> Path | None:
        """Run directory; None before the run is set up."""
        ...

    @property
    def run_directory(self) -> RunDirectory | None:
        """Run directory, held open; None before the run is set up."""
        ...

    @property
    def control(self) -> RequestSink:
        """Queue that accepts requests for the engine."""
        ...

    @property
    def is_engine_alive(self) -> bool:
        """True while the engine runs."""
        ...

    def start(self) -> None:
        """Start the engine in a thread, which also imports torch."""
        ...


class LiveSource:
    """Source of a run that trains in this process.

    Args:
        task: Reference of the task, if the user named it on the command line.
    """

    live = True
    following = False
    attached = False
    """True if the run trains in another process, and continues when the dashboard exits."""
    ghost_run = None

    def __init__(self, run: RunHandle, task: str | None = None) -> None:
        self._run = run
        self.task = task
        """Reference of the task, if the user named it on the command line: code of the user is imported only then."""
        self.live_state = RunState()
        """Present state of the run; differs from `state` while the past is shown."""
        self.playback: Playback | None = None
        """Playhead of the past; None while the present is shown."""
        self._messages: list[str] = []
        self.curves = CurveStore()
        """Curves of the run, read while panels ask for them."""
        self._curves_due = 0.0
        """Time of `monotonic` of the next update of curves that are up to date."""
        self._past: Playback | None = None
        """Last playback. Kept because it holds the history that was read, and the bookmarks."""
        self._entering = False
        """True while the past is read before it is shown."""
        self._reads_log = False
        """True while the past is read for its log lines."""
        self._is_unreadable = False
        """True after the recording could not be read: curves, which panels ask for again and again, are not read."""
        self.requests: PendingRequests = PendingRequests(run.control)
        self._pending_text = ""
        self._started = False

    @property
    def state(self) -> RunState:
        """State at the playhead; present state if there is none."""
        return self.live_state if self.playback is None else self.playback.state

    @property
    def alive(self) -> bool:
        """True if the engine runs, or has not been started yet."""
        return not self._started or self._run.is_engine_alive

    @property
    def notices(self) -> Sequence[str]:
        """Messages about damaged or skipped parts of the recording; none, because this process writes it."""
        return ()

    @property
    def writer(self) -> RunWriter | None:
        """Process that trains the run; None if no process does."""
        return RunWriter() if self.alive else None

    def status(self, silence: float = 0.0) -> RunStatus:
        """Return the present status of the run.

        Args:
            silence: Seconds since the last event.
        """
        return judge_run(self.live_state, self.writer, silence=silence, directory=self.directory)

    @property
    def outcome(self) -> RunStatus:
        """Status of the run after its last event."""
        return self.status()

    @property
    def directory(self) -> Path | None:
        """Run directory; None before the run is set up."""
        return self._run.directory

    def directory_for_files(self) -> Path:
        """Return the run directory for writing a file; the working directory before the run is set up.

        Raises:
            OSError: The run directory was deleted, moved or replaced.
        """
        directory = self._run.run_directory
        return Path() if directory is None else directory.check()

    @property
    def start_stage(self) -> str:
        """Present stage of the start of the run, in words."""
        return self._run.start_stage

    @property
    def failure(self) -> str | None:
        """Error message if the run could not be set up, else None. Printed once the terminal is restored."""
        return self._run.fatal_error

    def start(self) -> None:
        """Start the engine. Called once, after the first frame."""
        self._run.start()
        self._started = True

    def tick(self, seconds: float) -> bool:
        """Apply the waiting events, and move the playback. Return True if anything has changed.

        Events that arrive meanwhile wait for the next tick, so that a fast engine cannot block the screen.
        """
        records = self._run.records
        count = records.qsize()
        for _ in range(count):
            record = records.get_nowait()
            self.live_state = fold(self.live_state, [record])
            self.requests.mark_answered(record)
        wants_curves = self._wants_curves()
        try:
            moved = self._advance_playback(seconds, reads_past=self._reads_log or wants_curves)
            if wants_curves:
                playhead = None if self.playback is None else self.playback.position
                moved |= self.curves.update(self.history, playhead, CURVE_BUDGET_S)
                self._curves_due = time.monotonic() + CURVE_INTERVAL_S
        except ReadError as error:
            shown = "the past" if self.playback is not None or self._entering else "the recording"
            self._messages.append(f"Cannot show {shown} any longer: {error}")
            self.return_to_live()
            self._past, self._reads_log, self._is_unreadable = None, False, True
            moved = True
        # A request can be acknowledged or refused without an event.
        pending_text, self._pending_text = self._pending_text, self.requests.text
        return count > 0 or moved or pending_text != self._pending_text

    def _wants_curves(self) -> bool:
        """Return True if panels ask for curves that were not read, or not within the last interval."""
        if not self.curves.is_wanted or self._is_unreadable:
            return False
        past = self._past
        is_current = past is not None and past.history.is_fully_read and not self.curves.is_waiting
        return self.playback is not None or not is_current or time.monotonic() >= self._curves_due

    def _advance_playback(self, seconds: float, *, reads_past: bool) -> bool:
        """Read and play the past, and return True if anything has changed. Raises `ReadError`."""
        if self._entering:
            self._enter()
        elif reads_past and self.playback is None and self.live_state.seq:
            return self._read_past()
        playback = self.playback
        if playback is None:
            return False
        before = playback.position, playback.length, playback.playing, playback.speed
        playback.poll(READ_BUDGET_S)
        playback.advance(seconds)
        return before != (playback.position, playback.length, playback.playing, playback.speed)

    def start_playback(self) -> str | None:
        """Open the recording so far, at its end; a long recording opens within the next ticks.

        Returns:
            A message if that is impossible, else None.
        """
        if self.playback is None and not self._entering:
            if self._run.directory is None:
                return "No recording yet."
            try:
                self._enter()
            except ReadError as error:
                return f"Cannot show the past: {error}"
        return None

    def _enter(self) -> None:
        """Continue to read the past, and show its end once all is read. Raises `ReadError`."""
        self._read_past()
        assert self._past is not None
        self._entering = not self._past.history.is_fully_read
        if not self._entering:
            self.playback = self._past
            self.playback.playing = False
            self.playback.seek_end()

    def _read_past(self) -> bool:
        """Continue to read the past, and return True if it has changed. Raises `ReadError`."""
        if self._past is not None:
            return self._past.poll(READ_BUDGET_S)
        if self._run.directory is None:
            return False
        self._past = Playback(open_history(self._run.directory, READ_BUDGET_S))
        return True

    @property
    def fraction_read(self) -> float | None:
        """Fraction of the recording that was read, while it is read for the first time; else None."""
        is_reading = self._entering or self._reads_log or self.curves.is_wanted
        return _fraction_read(self._past.history) if self._past is not None and is_reading else None

    @property
    def history(self) -> History | None:
        """Recording, as far as it was read; None if none of it was."""
        return self._past.history if self._past is not None else None

    def pop_messages(self) -> list[str]:
        """Return the messages about a past that can no longer be shown, since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def read_log(self, wanted: bool) -> None:
        """Read the recording for its log lines in the next ticks, or do not read on."""
        self._reads_log = wanted

    def return_to_live(self) -> None:
        """Show the present again, and cancel the opening of the past."""
        self.playback = None
        self._entering = False
        self._curves_due = 0.0


class AttachSource(LiveSource):
    """Source of a run that trains in another process.

    Args:
        task: Reference of the task, if the user named it on the command line.
    """

    attached = True

    def __init__(self, session: AttachedRun, task: str | None = None) -> None:
        super().__init__(session, task)
        self.session = session
        self.requests = RemotePendingRequests(session.control, read_only=session.read_only)
        self._writer: RunWriter | None = RunWriter()

    @property
    def notices(self) -> Sequence[str]:
        """Messages about damaged or skipped parts of the recording."""
        return self.session.notices

    @property
    def writer(self) -> RunWriter | None:
        """Process that trained the run at the last tick; None if no process did."""
        return self._writer

    def tick(self, seconds: float) -> bool:
        """As for every live run. Also look up the process that trains it."""
        before, self._writer = self._writer, None
        if self.alive:  # until the last events were read
            with suppress(OSError):  # the lock file cannot be opened: the session reports it
                self._writer = find_writer(self.session.directory, -math.inf, time.time())
            self._writer = self._writer or RunWriter()
        return super().tick(seconds) or self._writer != before


class ReplaySource:
    """Source of a recording.

    Args:
        hold: Start paused at the current position.
        follow: Start at the end, and read on while the recording is written.
        ghost_run: Ghost run to overlay on the replay.
        task: Reference of the task, if the user named it on the command line.
    """

    live = False
    start_stage = ""
    attached = False
    requests = None
    alive = False

    def __init__(
        self,
        playback: Playback,
        *,
        hold: bool = False,
        follow: bool = False,
        ghost_run: GhostRun | None = None,
        task: str | None = None,
    ) -> None:
        self.playback = playback
        self.task = task
        self.ghost_run = ghost_run
        self.curves = CurveStore()
        """Curves of the run, read while panels ask for them."""
        self.failure: str | None = None
        """Error that ends the dashboard, and is printed once the terminal is restored."""
        self._hold = hold
        self._follow = follow
        self._seen: tuple[object, ...] = ()
        self._writer: RunWriter | None = RunWriter()
        """Process that trains the run, looked up at every tick at the end of the recording; None if no process does."""

    @property
    def state(self) -> RunState:
        """State at the playhead."""
        return self.playback.state

    def status(self, silence: float = 0.0) -> RunStatus:
        """Return the status of the run at the playhead: before the end of the recording, a process trained it.

        Args:
            silence: Seconds since the last event; ignored unless the recording is followed.
        """
        writer = self._writer if self._is_at_end else RunWriter()
        silence = silence if self.following else 0.0
        return judge_run(self.state, writer, silence=silence, directory=self.directory)

    @property
    def outcome(self) -> RunStatus:
        """Status of the run after its last event."""
        state = self.history.state_at(self.history.length)
        return judge_run(state, self._find_writer(state), directory=self.directory)

    @property
    def _is_at_end(self) -> bool:
        return self.playback.history.is_fully_read and self.playback.position == self.playback.length

    def _find_writer(self, state: RunState) -> RunWriter | None:
        """Return the process that trains the run. A recording in one file, such as an excerpt, has no known end."""
        if not self.directory.is_dir() or not state.seq or not self.history.is_fully_read:
            return RunWriter()
        with suppress(OSError):  # the lock file cannot be opened
            return find_writer(self.directory, state.time, time.time())
        return RunWriter()

    @property
    def directory(self) -> Path:
        """Run directory or recording file."""
        return self.playback.history.path

    @property
    def notices(self) -> Sequence[str]:
        """Messages about damaged or skipped parts of the recording."""
        return self.playback.history.notices

    @property
    def live_state(self) -> RunState:
        """State at the playhead, because a recording has no present."""
        return self.playback.state

    def start_playback(self) -> None:
        """Do nothing: a recording always has a playback."""

    def return_to_live(self) -> None:
        """Do nothing: a recording has no present."""

    def start(self) -> None:
        """Play, stay paused, or go to the end, as set."""
        if not self._follow:
            self.playback.playing = not self._hold
        elif self.fraction_read is None:
            self.playback.seek_end()

    @property
    def fraction_read(self) -> float | None:
        """Fraction of the recording that was read, while it is read for the first time; else None."""
        return _fraction_read(self.playback.history)

    @property
    def history(self) -> History:
        """Recording, as far as it was read."""
        return self.playback.history

    def pop_messages(self) -> list[str]:
        """Return no messages: an error of a replay ends the dashboard."""
        return []

    def read_log(self, wanted: bool) -> None:
        """Do nothing: a replay reads its whole recording."""

    @property
    def following(self) -> bool:
        """True if the end is shown, and the view moves on as the recording grows."""
        return self._follow and self.playback.position == self.playback.length

    def tick(self, seconds: float) -> bool:
        """Read new events, and move the playhead if it plays. Return True if anything has changed."""
        playback, has_read = self.playback, False
        try:
            was_reading = self.fraction_read is not None
            if self._follow or not playback.history.is_fully_read:
                playback.poll(READ_BUDGET_S)
            if self._follow and was_reading and self.fraction_read is None:
                playback.seek_end()
            if playback.playing:
                playback.advance(seconds)
            if self.ghost_run is not None:
                self.ghost_run.follow(playback.state, READ_BUDGET_S)
            if self.curves.is_wanted:
                has_read = self.curves.update(playback.history, playback.position, CURVE_BUDGET_S)
        except ReadError as error:
            self.failure = str(error)
        if self._is_at_end:
            self._writer = self._find_writer(self.state)
        position = (playback.position, playback.length, playback.playing, playback.speed, self._writer)
        seen = (*position, self.ghost_run and self.ghost_run.comparison_label)
        changed, self._seen = seen != self._seen, seen
        return changed or has_read


class NoRunSource(ReplaySource):
    """Source without a run, behind the workspace. Its history is empty, and is never read.

    Args:
        telemetry_dir: Directory of the runs.
    """

    def __init__(self, telemetry_dir: Path) -> None:
        super().__init__(Playback(History(telemetry_dir)), hold=True)

    @property
    def fraction_read(self) -> None:
        """None: nothing is read."""
        return None

    def tick(self, seconds: float) -> bool:  # noqa: ARG002 (the signature of all sources)
        """Do nothing."""
        return False


RunSource: TypeAlias = LiveSource | ReplaySource
"""Source of the run state that the dashboard shows.

Read `state` again at each use: a keyframe, a seek or a restore replaces the object.
"""


def open_run_source(directory: Path) -> RunSource:
    """Return a source of a recorded run: connected to its process if it is live, else at the end of the recording.

    Raises:
        ReadError: The recording cannot be read.
    """
    try:
        if is_live(directory):
            return AttachSource(AttachedRun(directory, read_only=False))
    except OSError as error:
        raise ReadError(f"cannot open {directory}: {error.strerror}") from None
    return ReplaySource(Playback(open_history(directory, FIRST_READ_S)), follow=True)


def run_has_ended(source: RunSource) -> bool:
    """Return True if the run has ended or its engine is gone."""
    return source.status().has_ended


def _fraction_read(history: History) -> float | None:
    return history.fraction_read if history.fraction_read < 1 else None
