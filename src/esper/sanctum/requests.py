"""What was asked of the engine and not answered yet: shown as asked until the event that answers it has come."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from esper.attach.client import RemoteRequestQueue
from esper.control import RequestKind
from esper.domain import PauseCause
from esper.telemetry import events as ev
from esper.telemetry.state import Record

_PENDING_LABELS = {
    RequestKind.PAUSE: "pausing…",
    RequestKind.RESUME: "resuming…",
    RequestKind.STEP: "one step…",
    RequestKind.CHECKPOINT: "checkpointing…",
    RequestKind.RESTORE: "restoring…",
    RequestKind.STOP: "checkpointing, then leaving…",
    RequestKind.ABANDON: "leaving…",
}
_DEDUPLICATED = frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP, RequestKind.CHECKPOINT})
"""Not asked for twice while the first is unanswered."""


class RequestSink(Protocol):
    """Takes requests for an engine. A Control is one."""

    def put(self, kind: RequestKind, origin: str, path: str | None = None) -> None:
        """Send a request."""
        ...


class PendingRequests:
    """Asks an engine in this process, and remembers until the answer."""

    disabled_reason: str | None = None
    """Why nothing may be asked: a sentence for people."""

    def __init__(self, inbox: RequestSink) -> None:
        self._inbox = inbox
        self._pending: set[RequestKind] = set()
        self._refused: list[str] = []
        self._stopped_by_signal = False
        """Whether not a person, but a signal asked for the end: then there is nobody to try again."""

    def ask(self, kind: RequestKind, path: str | None = None, origin: str = "keyboard") -> None:
        """Send a request. PAUSE, RESUME, STEP and CHECKPOINT are not sent twice while the first is unanswered."""
        if kind in self._pending and kind in _DEDUPLICATED:
            return
        self._pending.add(kind)
        self._stopped_by_signal |= kind is RequestKind.STOP and origin == "signal"
        self._inbox.put(kind, origin, path)

    @property
    def stop_requested(self) -> bool:
        """Whether the run was asked to end."""
        return bool(self._pending & {RequestKind.STOP, RequestKind.ABANDON})

    @property
    def text(self) -> str:
        """What is asked for, for the header; empty when all is answered."""
        return " ".join(self._shown(kind) for kind in _PENDING_LABELS if kind in self._pending)

    def mark_answered(self, record: Record) -> None:
        """Cross off what this record answers."""
        answered = self._pending & self._answered(record)
        if answered and isinstance(record, ev.Logged):
            self._refused.append(record.text)
        self._pending -= answered

    def pop_refusals(self) -> list[str]:
        """What the engine could not do, or not even be asked, since the last call: sentences for people."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def _origin(self) -> str | None:
        """What events call the one who asks here."""
        return "keyboard"

    def _shown(self, kind: RequestKind) -> str:
        return _PENDING_LABELS[kind]

    def _answered(self, record: Record) -> set[RequestKind]:
        match record:
            case ev.ControlRequested(ignored=str()) if record.origin == self._origin:
                return {RequestKind(record.kind)}
            case ev.Paused(reason=str()):  # what was asked for could not be done
                return set(RequestKind) - ({RequestKind.STOP} if self._stopped_by_signal else set())
            case ev.Paused():
                return {RequestKind.PAUSE, RequestKind.STEP}
            case ev.PhaseTimed():
                return {RequestKind.STEP}
            case ev.Resumed():
                return {RequestKind.RESUME} if record.checkpoint is None else {RequestKind.RESUME, RequestKind.RESTORE}
            case ev.CheckpointSaved() if record.origin == self._origin:
                return {RequestKind.CHECKPOINT}
            case ev.Logged(severity="error"):
                return {
                    RequestKind.CHECKPOINT,
                    RequestKind.RESTORE,
                }  # what cannot be done is answered by an error in the log
            case ev.RunEnded():
                return {
                    RequestKind.PAUSE,
                    RequestKind.RESUME,
                    RequestKind.STEP,
                    RequestKind.CHECKPOINT,
                    RequestKind.RESTORE,
                }
            case _:
                return set()


class RemotePendingRequests(PendingRequests):
    """Asks an engine in another process, which first has to acknowledge what it is asked."""

    def __init__(self, control: RemoteRequestQueue, *, read_only: bool) -> None:
        super().__init__(control)
        self._control = control
        if read_only:
            self.disabled_reason = "This view is read-only: attach without --read-only to control the run."

    def pop_refusals(self) -> list[str]:
        """What the run could not be asked, or has refused, since the last call; it is crossed off."""
        sentences = super().pop_refusals()
        while not self._control.refusals.empty():
            kind, sentence = self._control.refusals.get()
            sentences.append(sentence)
            if kind is not None:
                self._control.unacknowledged.discard(kind)
                self._pending.discard(kind)
        return sentences

    @property
    def _origin(self) -> str | None:
        return self._control.origin

    def _shown(self, kind: RequestKind) -> str:
        return f"asking to {kind.value}…" if kind in self._control.unacknowledged else super()._shown(kind)


class PauseCauseInfo(NamedTuple):
    """What a cause of `Paused` means for who looks on."""

    description: str
    """What has happened: for people."""
    advice: str
    """What leads on: for people."""
    refused_requests: frozenset[RequestKind]
    """What the engine would refuse."""


PAUSE_CAUSES: dict[str, PauseCauseInfo] = {
    PauseCause.FAULT: PauseCauseInfo(
        "A step has failed, or run out of memory. The beginning of its round is saved.",
        "The step is half done: r goes back to a checkpoint, q ends the run.",
        frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP, RequestKind.CHECKPOINT}),
    ),
    PauseCause.UNSAVED: PauseCauseInfo(
        "A step has failed, or run out of memory, and the beginning of its round cannot be saved.",
        "Make room: c tries again. r goes back to an older checkpoint; q tries again, or leaves without one.",
        frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP}),
    ),
    PauseCause.RECORDING: PauseCauseInfo(
        "Events cannot be written: the disk is full, or the run's directory is gone. They wait in memory.",
        "Once that is mended, the run goes on by itself; q ends it.",
        frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP}),
    ),
    PauseCause.CHECKPOINT: PauseCauseInfo(
        "The checkpoint that was to end the run cannot be written.",
        "q tries again, or leaves without one; p goes on.",
        frozenset(),
    ),
}
"""By cause."""
_UNKNOWN = PauseCauseInfo(
    "The run is held.", "A newer version of the program recorded why: see the reason.", frozenset()
)


def pause_cause(cause: str) -> PauseCauseInfo:
    """What a cause means."""
    return PAUSE_CAUSES.get(cause, _UNKNOWN)
