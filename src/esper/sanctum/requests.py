"""Pending requests, shown in the header until the event that confirms them arrives, and the causes of a held run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from esper.common.control import ENDING_KINDS, RequestKind
from esper.common.domain import PauseCause
from esper.recordings import events as ev
from esper.recordings.attach.client import RemoteRequestQueue
from esper.recordings.state.state import Record

_PENDING_LABELS = {
    RequestKind.PAUSE: "pausing…",
    RequestKind.RESUME: "resuming…",
    RequestKind.STEP: "stepping…",
    RequestKind.CHECKPOINT: "checkpointing…",
    RequestKind.RESTORE: "restoring…",
    RequestKind.STOP: "checkpointing, then quitting…",
    RequestKind.ABANDON: "quitting…",
}
ACKNOWLEDGEMENTS = {
    RequestKind.PAUSE: "The run will pause",
    RequestKind.RESUME: "The run will resume",
    RequestKind.STEP: "The run will train one step",
    RequestKind.CHECKPOINT: "The run will write a checkpoint",
    RequestKind.RESTORE: "The run will restore the checkpoint",
    RequestKind.STOP: "The run will write a checkpoint and end",
    RequestKind.ABANDON: "The run will end",
}
"""Starts of the sentences that acknowledge a request which takes long. They end with the moment."""
_DEDUPLICATED = frozenset(
    {RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP, RequestKind.CHECKPOINT, RequestKind.EXPLAIN}
)
"""Kinds of requests that are not sent again while one is pending."""


class RequestSink(Protocol):
    """Accepts requests for an engine, such as a `RequestQueue`."""

    def put(self, kind: RequestKind, origin: str, path: str | None = None, env: int | None = None) -> None:
        """Send a request."""
        ...


class PendingRequests:
    """Requests to an engine in this process that no event has confirmed yet.

    Args:
        sink: Queue of the engine.
    """

    disabled_reason: str | None = None
    """Message for the user if the engine accepts no requests; None if it accepts them."""
    explanation_refusal: str | None = None
    """Reason of the last refused explanation; None without one."""

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._pending: set[RequestKind] = set()
        self._refused: list[str] = []
        self._stopped_by_signal = False
        """True if a signal requested the stop. The engine then ends even if its last checkpoint fails."""

    def ask(self, kind: RequestKind, path: str | None = None, origin: str = "keyboard", env: int | None = None) -> None:
        """Send a request. PAUSE, RESUME, STEP, CHECKPOINT and EXPLAIN are not sent again while one is pending."""
        if kind in self._pending and kind in _DEDUPLICATED:
            return
        self._pending.add(kind)
        self._stopped_by_signal |= kind is RequestKind.STOP and origin == "signal"
        self._sink.put(kind, origin, path, env)

    def is_pending(self, kind: RequestKind) -> bool:
        """Return True if a request of this kind was sent and not answered yet."""
        return kind in self._pending

    @property
    def stop_requested(self) -> bool:
        """True if a stop or abandon request is pending."""
        return bool(self._pending & ENDING_KINDS)

    @property
    def text(self) -> str:
        """Pending requests as a text for the header; empty if there are none."""
        return " ".join(self._shown(kind) for kind in _PENDING_LABELS if kind in self._pending)

    def mark_answered(self, record: Record) -> None:
        """Remove the requests that this record confirms or refuses."""
        if not self._pending:  # of most records
            return
        answered = self._pending & self._answered(record)
        if answered and isinstance(record, ev.Logged):
            self._refused.append(record.text)
        if isinstance(record, ev.ControlRequested) and RequestKind.EXPLAIN in answered:
            self.explanation_refusal = record.ignored
        self._pending -= answered

    def pop_refusals(self) -> list[str]:
        """Return the messages of requests that the engine refused or could not receive since the last call."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def _origin(self) -> str | None:
        """Name of this dashboard in the `origin` of events."""
        return "keyboard"

    def _shown(self, kind: RequestKind) -> str:
        return _PENDING_LABELS[kind]

    def _answered(self, record: Record) -> set[RequestKind]:
        match record:
            case ev.ControlRequested(ignored=str()) if record.origin == self._origin:
                return {RequestKind(record.kind)}
            case ev.Paused(reason=str()):  # paused by a fault: no other request is carried out
                return set(RequestKind) - ({RequestKind.STOP} if self._stopped_by_signal else set())
            case ev.Paused() if RequestKind.PAUSE in self._pending:  # a single step begins after the pause
                return {RequestKind.PAUSE}
            case ev.Paused():
                return {RequestKind.STEP}
            case ev.PhaseTimed() if RequestKind.PAUSE not in self._pending:
                return {RequestKind.STEP}
            case ev.Resumed():
                return {RequestKind.RESUME} if record.checkpoint is None else {RequestKind.RESUME, RequestKind.RESTORE}
            case ev.DecisionExplained():
                return {RequestKind.EXPLAIN}
            case ev.CheckpointSaved() if record.origin == self._origin:
                return {RequestKind.CHECKPOINT}
            case ev.Logged(severity="error"):  # the engine logs an error if it cannot save or restore
                return {RequestKind.CHECKPOINT, RequestKind.RESTORE}
            case ev.RunEnded():
                return set(RequestKind) - ENDING_KINDS
            case _:
                return set()


class RemotePendingRequests(PendingRequests):
    """Requests to an engine in another process, which acknowledges each one before it acts.

    Args:
        control: Connection to the engine.
        read_only: Accept no requests.
    """

    def __init__(self, control: RemoteRequestQueue, *, read_only: bool) -> None:
        super().__init__(control)
        self._control = control
        if read_only:
            self.disabled_reason = "This view is read-only: attach without --read-only to control the run."

    def pop_refusals(self) -> list[str]:
        """Return the messages of refused or undelivered requests since the last call, and forget these requests."""
        sentences = super().pop_refusals()
        for kind, sentence in self._control.pop_refusals():
            sentences.append(sentence)
            if kind is RequestKind.EXPLAIN:  # also shown in place of the explanation
                self.explanation_refusal = sentence
            if kind is not None:
                self._pending.discard(kind)
        return sentences

    @property
    def _origin(self) -> str | None:
        return self._control.origin

    def _shown(self, kind: RequestKind) -> str:
        return f"sending {kind.value}…" if kind in self._control.unacknowledged else super()._shown(kind)


class PauseCauseInfo(NamedTuple):
    """Texts and limits for one cause of a held run."""

    description: str
    """Sentence that says what happened."""
    advice: str
    """Keys that the user can press now, as `{keys[ID]}`; `format_advice` fills them in."""
    refused_requests: frozenset[RequestKind]
    """Requests that the engine would refuse."""

    def format_advice(self, keys: Mapping[str, str]) -> str:
        """Return the advice with the names of the keys, keyed by id."""
        return self.advice.format(keys=keys)


PAUSE_CAUSES: dict[str, PauseCauseInfo] = {
    PauseCause.FAULT: PauseCauseInfo(
        "A step failed or ran out of memory. The start of this round is saved.",
        "{keys[run.restore]} restore a checkpoint   {keys[run.stop]} end the run",
        frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP, RequestKind.CHECKPOINT}),
    ),
    PauseCause.UNSAVED: PauseCauseInfo(
        "A step failed or ran out of memory. The start of this round could not be saved.",
        "Free disk space, then {keys[run.checkpoint]} save again   {keys[run.restore]} restore an older checkpoint   "
        "{keys[run.stop]} quit, with or without saving",
        frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP}),
    ),
    PauseCause.RECORDING: PauseCauseInfo(
        "Events cannot be written: the disk is full or the run directory is not at its path. They are kept in memory.",
        "The run resumes by itself once it can write again   {keys[run.stop]} end the run",
        frozenset({RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP}),
    ),
    PauseCause.LOST: PauseCauseInfo(
        "The run directory was deleted, with its recording and its checkpoints. Nothing can be saved any more.",
        "{keys[run.stop]} end the run",
        frozenset(RequestKind) - ENDING_KINDS,
    ),
    PauseCause.CHECKPOINT: PauseCauseInfo(
        "The last checkpoint before the end of the run could not be written.",
        "{keys[run.stop]} quit, with or without saving   {keys[run.pause]} resume the run",
        frozenset(),
    ),
}
"""Keyed by the `cause` of a `Paused` event."""
_UNKNOWN = PauseCauseInfo(
    "The run is paused by a fault.", "The cause is unknown to this version; see the reason", frozenset()
)


def pause_cause(cause: str) -> PauseCauseInfo:
    """Return the texts and limits of a cause, also of one that a newer version recorded."""
    return PAUSE_CAUSES.get(cause, _UNKNOWN)
