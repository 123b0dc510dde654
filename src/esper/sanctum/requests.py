"""What was asked of the engine and not answered yet: shown as asked until the event that answers it has come."""

from __future__ import annotations

from esper.control import Control, Kind
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


class Requests:
    """Asks through `Control`, and remembers until the answer."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._pending: set[Kind] = set()

    def ask(self, kind: Kind, path: str | None = None, origin: str = "keyboard") -> None:
        """Send a request. PAUSE, RESUME, STEP and CHECKPOINT are not sent twice while the first is unanswered."""
        if kind in self._pending and kind in {Kind.PAUSE, Kind.RESUME, Kind.STEP, Kind.CHECKPOINT}:
            return
        self._pending.add(kind)
        self._control.ask(kind, origin, path)

    @property
    def leaving(self) -> bool:
        """Whether the run was asked to end."""
        return bool(self._pending & {Kind.STOP, Kind.ABANDON})

    @property
    def text(self) -> str:
        """What is asked for, for the header; empty when all is answered."""
        return " ".join(text for kind, text in _SHOWN.items() if kind in self._pending)

    def hear(self, record: Record) -> None:
        """Cross off what this record answers."""
        self._pending -= _answered(record)


def _answered(record: Record) -> set[Kind]:
    match record:
        case ev.Paused():
            return {Kind.PAUSE, Kind.STEP}
        case ev.PhaseTimed():
            return {Kind.STEP}
        case ev.Resumed():
            return {Kind.RESUME} if record.checkpoint is None else {Kind.RESUME, Kind.RESTORE}
        case ev.CheckpointSaved(origin="keyboard"):
            return {Kind.CHECKPOINT}
        case ev.Logged(severity="error"):
            return {Kind.CHECKPOINT, Kind.RESTORE}  # what cannot be done is answered by an error in the log
        case ev.RunEnded():
            return {Kind.PAUSE, Kind.RESUME, Kind.STEP, Kind.CHECKPOINT, Kind.RESTORE}
        case _:
            return set()
