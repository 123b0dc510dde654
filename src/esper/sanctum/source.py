"""Where the dashboard's RunState comes from: a run in progress, or a recording of one."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from esper.attach.session import AttachedRun
from esper.domain import TERMINAL_STATUSES
from esper.history.divergence import GhostRun
from esper.history.history import open_history
from esper.history.playback import Playback
from esper.recording.segments import ReadError
from esper.sanctum.requests import PendingRequests, RemotePendingRequests, RequestSink
from esper.telemetry.state import Keyframe, Record, RunState

READ_BUDGET_S = 0.08
"""Seconds of a tick that go into reading on, while a recording is not read to its end."""


class RunSource(Protocol):
    """What the dashboard shows. Read `state` anew each time: it may be replaced by another object."""

    live: bool
    """Whether the run goes on without us, as against a recording."""
    attached: bool
    """Whether it goes on in another process, also when we leave."""

    @property
    def state(self) -> RunState:
        """What is true now."""
        ...

    @property
    def requests(self) -> PendingRequests | None:
        """The way to the engine; None where there is none to ask."""
        ...

    @property
    def live_state(self) -> RunState:
        """What is true of the run itself: not `state`, while one looks at its past."""
        ...

    @property
    def playback(self) -> Playback | None:
        """The play head of a recording, or over the past of a live run; None in its present."""
        ...

    def start_playback(self) -> str | None:
        """Have a play head made, now or within the next ticks; where that cannot be, one sentence that says why."""
        ...

    def return_to_live(self) -> None:
        """Leave the past of a live run for its present."""
        ...

    @property
    def directory(self) -> Path | None:
        """Of the recording; None while there is none."""
        ...

    @property
    def ghost_run(self) -> GhostRun | None:
        """Another run that goes along as a ghost."""
        ...

    @property
    def alive(self) -> bool:
        """Whether an engine is at work."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the run could not even be set up; the caller prints it once the terminal is restored."""
        ...

    @property
    def following(self) -> bool:
        """Whether the end of a recording is shown, and will be when there is more of it."""
        ...

    @property
    def notices(self) -> Sequence[str]:
        """What of a recording could not be read, or was skipped: sentences for people, ever more of them."""
        ...

    def start(self) -> None:
        """Begin; called once, when the first frame is on the screen."""
        ...

    def tick(self, seconds: float) -> bool:
        """Fold what has come in the last `seconds`; True if there is anything new to see."""
        ...


def run_has_ended(source: RunSource) -> bool:
    """Whether nothing more will come from an engine."""
    return source.live_state.status in TERMINAL_STATUSES or not source.alive


class RunHandle(Protocol):
    """A run in this process, with the engine in a thread of its own."""

    records: queue.SimpleQueue[Record]
    fatal_error: str | None
    """Set when the run could not be set up."""

    @property
    def directory(self) -> Path | None:
        """Of the run, once it is set up."""
        ...

    @property
    def control(self) -> RequestSink:
        """Where the engine is asked."""
        ...

    @property
    def is_engine_alive(self) -> bool:
        """Whether the engine's thread runs."""
        ...

    def start(self) -> None:
        """Start the engine's thread. Torch is imported in there."""
        ...


class LiveSource:
    """A run in this process."""

    live = True
    following = False
    attached = False
    ghost_run = None

    def __init__(self, session: RunHandle) -> None:
        self._session = session
        self.live_state = RunState()
        self.playback: Playback | None = None
        self.notices: list[str] = []
        self._past: Playback | None = None
        """The play head that was there last: it keeps what was read, and the bookmarks."""
        self._entering = False
        """It is to be shown as soon as everything is read."""
        self.requests: PendingRequests = PendingRequests(session.control)
        self._started = False

    @property
    def state(self) -> RunState:
        """What is true now, or was true where one looks back to."""
        return self.live_state if self.playback is None else self.playback.state

    @property
    def alive(self) -> bool:
        """Whether the engine is at work, or will be once started."""
        return not self._started or self._session.is_engine_alive

    @property
    def directory(self) -> Path | None:
        """Of the run, once it is set up."""
        return self._session.directory

    @property
    def failure(self) -> str | None:
        """Why the run could not be set up."""
        return self._session.fatal_error

    def start(self) -> None:
        """Start the engine's thread."""
        self._session.start()
        self._started = True

    def tick(self, seconds: float) -> bool:
        """Fold what has come; only that, so that a fast engine cannot hold the screen."""
        records = self._session.records
        count = records.qsize()
        for _ in range(count):
            record = records.get_nowait()
            if isinstance(record, Keyframe):
                self.live_state = record.decode_state()
            else:
                self.live_state.apply(record)
            self.requests.mark_answered(record)
        try:
            moved = self._advance_playback(seconds)
        except ReadError as error:
            self.notices.append(f"The past cannot be shown any more: {error}")
            self.return_to_live()
            self._past = None
            moved = True
        return count > 0 or moved

    def _advance_playback(self, seconds: float) -> bool:
        """Read on, and play, in the past; True if that changed anything. Raises ReadError."""
        if self._entering:
            self._enter()
        playback = self.playback
        if playback is None:
            return False
        before = playback.position, playback.length, playback.playing, playback.speed
        playback.poll(READ_BUDGET_S)
        playback.advance(seconds)
        return before != (playback.position, playback.length, playback.playing, playback.speed)

    def start_playback(self) -> str | None:
        """Open what the run has recorded so far, at its end: a long recording within the next ticks."""
        if self.playback is None and not self._entering:
            if self._session.directory is None:
                return "Nothing is recorded yet."
            try:
                self._enter()
            except ReadError as error:
                return f"The past cannot be shown: {error}"
        return None

    def _enter(self) -> None:
        """Read on, and show the end of the past once it is reached. Raises ReadError."""
        assert self._session.directory is not None
        if self._past is None:
            self._past = Playback(open_history(self._session.directory, READ_BUDGET_S))
        else:
            self._past.poll(READ_BUDGET_S)
        self._entering = not self._past.history.is_fully_read
        if not self._entering:
            self.playback = self._past
            self.playback.playing = False
            self.playback.seek_end()

    def return_to_live(self) -> None:
        """Show the present again, or stay in it."""
        self.playback = None
        self._entering = False


class AttachSource(LiveSource):
    """A run in another process."""

    attached = True

    def __init__(self, session: AttachedRun) -> None:
        super().__init__(session)
        self.session = session
        self.requests = RemotePendingRequests(session.control, read_only=session.read_only)
        self.notices = session.notices
        self._asked = ""

    def tick(self, seconds: float) -> bool:
        """Fold what has come. What was asked may be acknowledged, or refused, while nothing comes."""
        changed = super().tick(seconds)
        asked, self._asked = self._asked, self.requests.text
        return changed or asked != self._asked


class ReplaySource:
    """A recording.

    Args:
        playback: of it.
        hold: stay where it is until someone plays.
        follow: begin at its end, and read on while it is written.
        rival: another run that goes along as a ghost.
    """

    live = False
    attached = False
    requests = None
    alive = False

    def __init__(
        self, playback: Playback, *, hold: bool = False, follow: bool = False, rival: GhostRun | None = None
    ) -> None:
        self.playback = playback
        self.ghost_run = rival
        self.failure: str | None = None
        self._hold = hold
        self._follow = follow
        self._seen: tuple[object, ...] = ()

    @property
    def state(self) -> RunState:
        """What was true at the play head."""
        return self.playback.state

    @property
    def directory(self) -> Path:
        """Of the run, or the one file that it is."""
        return self.playback.history.path

    @property
    def notices(self) -> Sequence[str]:
        """What of it could not be read, or was skipped."""
        return self.playback.history.notices

    @property
    def live_state(self) -> RunState:
        """A recording has no other present than what it shows."""
        return self.playback.state

    def start_playback(self) -> None:
        """There is a play head already."""

    def return_to_live(self) -> None:
        """There is no present to go to."""

    def start(self) -> None:
        """Let it play, hold, or go to its end."""
        if self._follow:
            self.playback.seek_end()
        else:
            self.playback.playing = not self._hold

    @property
    def following(self) -> bool:
        """Whether the end is shown, and will be when there is more."""
        return self._follow and self.playback.position == self.playback.length

    def tick(self, seconds: float) -> bool:
        """Move the play head on, if it plays; take in what was written since."""
        playback = self.playback
        try:
            if self._follow or not playback.history.is_fully_read:
                playback.poll(READ_BUDGET_S)
            if playback.playing:
                playback.advance(seconds)
            if self.ghost_run is not None:
                self.ghost_run.follow(playback.state, READ_BUDGET_S)
        except ReadError as error:
            self.failure = str(error)
        place = (playback.position, playback.length, playback.playing, playback.speed)
        seen = (*place, self.ghost_run and self.ghost_run.comparison_label)
        changed, self._seen = seen != self._seen, seen
        return changed
