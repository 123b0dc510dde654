"""Where the dashboard's RunState comes from: a run in progress, or a recording of one."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Protocol

from esper.attach.session import AttachSession
from esper.sanctum.requests import Inbox, RemoteRequests, Requests
from esper.telemetry.playback import Playback
from esper.telemetry.segments import ReadError
from esper.telemetry.state import Keyframe, Record, RunState

ENDED = frozenset({"done", "stopped", "failed"})
"""Values of `RunState.status` after which nothing more comes."""


class Source(Protocol):
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
    def requests(self) -> Requests | None:
        """The way to the engine; None where there is none to ask."""
        ...

    @property
    def playback(self) -> Playback | None:
        """The play head of a recording; None for a live run."""
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


class Session(Protocol):
    """A run in this process, with the engine in a thread of its own."""

    records: queue.SimpleQueue[Record]
    failure: str | None
    """Set when the run could not be set up."""

    @property
    def control(self) -> Inbox:
        """Where the engine is asked."""
        ...

    @property
    def alive(self) -> bool:
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
    playback = None
    notices: Sequence[str] = ()

    def __init__(self, session: Session) -> None:
        self._session = session
        self.state = RunState()
        self.requests: Requests = Requests(session.control)
        self._started = False

    @property
    def alive(self) -> bool:
        """Whether the engine is at work, or will be once started."""
        return not self._started or self._session.alive

    @property
    def failure(self) -> str | None:
        """Why the run could not be set up."""
        return self._session.failure

    def start(self) -> None:
        """Start the engine's thread."""
        self._session.start()
        self._started = True

    def tick(self, seconds: float) -> bool:  # noqa: ARG002 (a live run keeps its own time)
        """Fold what has come; only that, so that a fast engine cannot hold the screen."""
        records = self._session.records
        count = records.qsize()
        for _ in range(count):
            record = records.get_nowait()
            if isinstance(record, Keyframe):
                self.state = record.open()
            else:
                self.state.apply(record)
            self.requests.hear(record)
        return count > 0


class AttachSource(LiveSource):
    """A run in another process."""

    attached = True

    def __init__(self, session: AttachSession) -> None:
        super().__init__(session)
        self.session = session
        self.requests = RemoteRequests(session.control, read_only=session.read_only)
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
        follow: begin at its end, and read on while it is written.
    """

    live = False
    attached = False
    requests = None
    alive = False

    def __init__(self, playback: Playback, *, follow: bool = False) -> None:
        self.playback = playback
        self.failure: str | None = None
        self._follow = follow
        self._seen: tuple[object, ...] = ()

    @property
    def state(self) -> RunState:
        """What was true at the play head."""
        return self.playback.state

    @property
    def notices(self) -> Sequence[str]:
        """What of it could not be read, or was skipped."""
        return self.playback.history.notices

    def start(self) -> None:
        """Let it play, or go to its end."""
        if self._follow:
            self.playback.to_end()
        else:
            self.playback.playing = True

    @property
    def following(self) -> bool:
        """Whether the end is shown, and will be when there is more."""
        return self._follow and self.playback.position == self.playback.length

    def tick(self, seconds: float) -> bool:
        """Move the play head on, if it plays; take in what was written since."""
        playback = self.playback
        if self._follow:
            try:
                playback.poll()
            except ReadError as error:
                self.failure = str(error)
        if playback.playing:
            playback.advance(seconds)
        seen = (playback.position, playback.length, playback.playing, playback.speed)
        changed, self._seen = seen != self._seen, seen
        return changed
