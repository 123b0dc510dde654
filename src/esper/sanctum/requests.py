"""What was asked of the engine and not answered yet: shown as asked until the event that answers it has come."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from esper.attach.client import RemoteControl
from esper.control import Kind
from esper.telemetry import events as ev
from esper.telemetry.state import Record

_SHOWN = {
    Kind.PAUSE: "pausing…",
    Kind.RESUME: "resuming…",
    Kind.STEP: "one step…",
    Kind.CHECKPOINT: "checkpointing…",
    Kind.RESTORE: "restoring…",
    Kind.STOP: "checkpointing, then leaving…",
    Kind.ABANDON: "leaving…",
}
_ONCE = frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP, Kind.CHECKPOINT})
"""Not asked for twice while the first is unanswered."""


class Inbox(Protocol):
    """Takes requests for an engine. A Control is one."""

    def ask(self, kind: Kind, origin: str, path: str | None = None) -> None:
        """Send a request."""
        ...


class Requests:
    """Asks an engine in this process, and remembers until the answer."""

    barred: str | None = None
    """Why nothing may be asked: a sentence for people."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._pending: set[Kind] = set()
        self._refused: list[str] = []
        self._to_end = False
        """Whether not a person, but a signal asked for the end: then there is nobody to try again."""

    def ask(self, kind: Kind, path: str | None = None, origin: str = "keyboard") -> None:
        """Send a request. PAUSE, RESUME, STEP and CHECKPOINT are not sent twice while the first is unanswered."""
        if kind in self._pending and kind in _ONCE:
            return
        self._pending.add(kind)
        self._to_end |= kind is Kind.STOP and origin == "signal"
        self._inbox.ask(kind, origin, path)

    @property
    def leaving(self) -> bool:
        """Whether the run was asked to end."""
        return bool(self._pending & {Kind.STOP, Kind.ABANDON})

    @property
    def text(self) -> str:
        """What is asked for, for the header; empty when all is answered."""
        return " ".join(self._shown(kind) for kind in _SHOWN if kind in self._pending)

    def hear(self, record: Record) -> None:
        """Cross off what this record answers."""
        answered = self._pending & self._answered(record)
        if answered and isinstance(record, ev.Logged):
            self._refused.append(record.text)
        self._pending -= answered

    def refusals(self) -> list[str]:
        """What the engine could not do, or not even be asked, since the last call: sentences for people."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def _origin(self) -> str | None:
        """What events call the one who asks here."""
        return "keyboard"

    def _shown(self, kind: Kind) -> str:
        return _SHOWN[kind]

    def _answered(self, record: Record) -> set[Kind]:
        match record:
            case ev.ControlRequested(ignored=str()) if record.origin == self._origin:
                return {Kind(record.kind)}
            case ev.Paused(reason=str()):  # what was asked for could not be done
                return set(Kind) - ({Kind.STOP} if self._to_end else set())
            case ev.Paused():
                return {Kind.PAUSE, Kind.STEP}
            case ev.PhaseTimed():
                return {Kind.STEP}
            case ev.Resumed():
                return {Kind.RESUME} if record.checkpoint is None else {Kind.RESUME, Kind.RESTORE}
            case ev.CheckpointSaved() if record.origin == self._origin:
                return {Kind.CHECKPOINT}
            case ev.Logged(severity="error"):
                return {Kind.CHECKPOINT, Kind.RESTORE}  # what cannot be done is answered by an error in the log
            case ev.RunEnded():
                return {Kind.PAUSE, Kind.RESUME, Kind.STEP, Kind.CHECKPOINT, Kind.RESTORE}
            case _:
                return set()


class RemoteRequests(Requests):
    """Asks an engine in another process, which first has to acknowledge what it is asked."""

    def __init__(self, control: RemoteControl, *, read_only: bool) -> None:
        super().__init__(control)
        self._control = control
        if read_only:
            self.barred = "This view is read-only: attach without --read-only to control the run."

    def refusals(self) -> list[str]:
        """What the run could not be asked, or has refused, since the last call; it is crossed off."""
        sentences = super().refusals()
        while not self._control.refusals.empty():
            kind, sentence = self._control.refusals.get()
            sentences.append(sentence)
            if kind is not None:
                self._control.unheard.discard(kind)
                self._pending.discard(kind)
        return sentences

    @property
    def _origin(self) -> str | None:
        return self._control.origin

    def _shown(self, kind: Kind) -> str:
        return f"asking to {kind.value}…" if kind in self._control.unheard else super()._shown(kind)


class Hold(NamedTuple):
    """What a cause of `Paused` means for who looks on."""

    what: str
    """What has happened: for people."""
    way: str
    """What leads on: for people."""
    vain: frozenset[Kind]
    """What the engine would refuse."""


HOLDS: dict[str, Hold] = {
    "fault": Hold(
        "A step has failed, or run out of memory. The beginning of its round is saved.",
        "The step is half done: r goes back to a checkpoint, q ends the run.",
        frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP, Kind.CHECKPOINT}),
    ),
    "unsaved": Hold(
        "A step has failed, or run out of memory, and the beginning of its round cannot be saved.",
        "Make room: c tries again. r goes back to an older checkpoint; q tries again, or leaves without one.",
        frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP}),
    ),
    "recording": Hold(
        "Events cannot be written: the disk is full, or the run's directory is gone. They wait in memory.",
        "Once that is mended, the run goes on by itself; q ends it.",
        frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP}),
    ),
    "checkpoint": Hold(
        "The checkpoint that was to end the run cannot be written.",
        "q tries again, or leaves without one; p goes on.",
        frozenset(),
    ),
}
"""By cause."""
_UNKNOWN = Hold("The run is held.", "A newer version of the program recorded why: see the reason.", frozenset())


def hold_of(cause: str) -> Hold:
    """What a cause means."""
    return HOLDS.get(cause, _UNKNOWN)
