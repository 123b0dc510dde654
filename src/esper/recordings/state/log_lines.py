"""Log lines: the notable events of a run as sentences."""

from __future__ import annotations

import msgspec

from esper.common.domain import StepNumber
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings import events as ev
from esper.recordings.events.sentences import describe_event, describe_group


class LogLine(msgspec.Struct, kw_only=True, frozen=True):
    """One line of the event log."""

    seq: int
    time: float
    severity: str
    kind: str
    text: str
    env: int | None = None
    group: str = ""
    """Text that follows the number of equal lines of a step, as in "37 seeds planted"; empty if lines of this kind are
    never grouped."""
    step: int = 0
    """Number of steps of the run that had ended before the event."""
    moment: str = ""
    """Round and step of the event, as in `8:12`; empty before the first round."""


def make_log_line(event: ev.AnyEvent, step: int, moment: StepNumber, scale: ScoreScale = PERCENT) -> LogLine | None:
    """Return the log line of an event; None if the event is not logged.

    Args:
        step: Number of steps of the run that had ended before it.
        moment: Round and step in progress, or ended last; of an event that names its own, these are used.
    """
    described = describe_event(event, scale)
    if described is None:
        return None
    severity, text = described
    round_, number = getattr(event, "round", moment.round), getattr(event, "step", moment.step)
    return LogLine(
        seq=event.seq,
        time=event.time,
        severity=severity,
        kind=type(event).__name__,
        text=text,
        env=getattr(event, "env", None),
        group=describe_group(event),
        step=step,
        moment=f"{round_}:{max(number, 1)}" if round_ else "",
    )
