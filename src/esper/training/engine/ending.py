"""How the engine ended: the one place that turns every error of a run into its kind of end and a text for the user."""

from __future__ import annotations

import traceback
from typing import Literal, NamedTuple

from esper.training.engine.start_checks import SETUP_ERRORS
from esper.training.engine.start_point import RunCompleteError

EndingKind = Literal["trained", "not begun", "complete", "refused", "failed"]
"""`trained`: to its last round, or until a stop request. `not begun`: it was stopped before it had anything to save.
`complete`: there was nothing left to train. `refused`: it could not be set up. `failed`: an error ended it.
"""


class EngineLoadError(Exception):
    """Torch cannot be imported."""


class Ending(NamedTuple):
    """How the engine ended."""

    kind: EndingKind
    text: str = ""
    """For the user: one sentence, or the traceback of a bug; empty if the output of the run says all."""
    error: Exception | None = None
    """Why the run was refused; None in other cases."""


TRAINED = Ending("trained")
NOT_BEGUN = Ending("not begun")


def ending_of(error: BaseException, *, is_set_up: bool) -> Ending:
    """Return how an error has ended the engine.

    Args:
        is_set_up: True if the run was set up before. An error of its recording then is a failure, else a refusal.
    """
    if isinstance(error, EngineLoadError):
        cause = error.__cause__ or error
        text = f"{''.join(traceback.format_exception(cause))}{_sentence(error)}"
        return Ending("failed", text)
    from esper.common.system.ranks import RankLostError
    from esper.training.lanes.errors import FaultError, RunFailedError, StoppedError  # torch is loaded

    if isinstance(error, StoppedError):
        return NOT_BEGUN
    if isinstance(error, RunCompleteError):
        return Ending("complete", str(error))
    if isinstance(error, SETUP_ERRORS) and not is_set_up:
        return Ending("refused", str(error), error)
    if isinstance(error, (RankLostError, RunFailedError, *SETUP_ERRORS)):
        return Ending("failed", _sentence(error))
    fault = FaultError.from_exception(error, "the engine" if is_set_up else "set-up of the run")
    return Ending("failed", fault.traceback_text or _sentence(fault))


def _sentence(error: BaseException) -> str:
    return f"esper-sanctum: {error}"
