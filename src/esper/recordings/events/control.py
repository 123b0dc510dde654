"""Events about the control of a run: requests, and what follows from them."""

from __future__ import annotations

from esper.recordings.events.base import Event


class ControlRequested(Event, frozen=True, kw_only=True, tag=True):
    """The engine received a request. Later events show its effect."""

    kind: str
    """pause, resume, step, checkpoint, restore, explain, stop, or abandon."""
    origin: str
    """Origin of the request: keyboard, signal, or dashboard; `attach USER@HOST PID` for an attached viewer."""
    path: str | None = None
    """Directory of the checkpoint to restore; absent for other requests."""
    env: int | None = None
    """Env whose decision is to be explained; absent for other requests."""
    ignored: str | None = None
    """Reason for which the engine ignores the request; absent if it does not."""


class Paused(Event, frozen=True, kw_only=True, tag=True):
    """The engine paused between two steps, or partway through a step that failed."""

    round: int
    """Round of the last completed step."""
    step: int
    origin: str
    """Origin of the request, as in ControlRequested; `engine` if the run cannot continue."""
    reason: str | None = None
    """Description of the problem in one sentence; absent after a request."""
    cause: str | None = None
    """Kind of problem; absent after a request. fault: a step failed partway. unsaved: the same, and the start of its
    round cannot be saved. recording: events cannot be written; the run resumes by itself once they can. lost: the run
    directory was deleted; nothing can be saved. checkpoint: the final checkpoint cannot be written."""


class Resumed(Event, frozen=True, kw_only=True, tag=True):
    """The engine resumed after a pause, or from a restored checkpoint."""

    round: int
    step: int
    origin: str
    """Origin of the request, as in ControlRequested; `engine` if the run resumed by itself."""
    checkpoint: str | None = None
    """Directory of the restored checkpoint; absent after a pause."""
