"""The `@rule` decorator, and the tables of anomaly rules and of the checks of each event type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from esper.common.domain import Rule
from esper.recordings import events as ev
from esper.recordings.health.rule_context import RuleContext

Check: TypeAlias = Callable[[Any, RuleContext], Iterable[ev.AnomalyFound]]
"""Function that returns the anomalies of an event. The context includes the event."""
CheckT = TypeVar("CheckT", bound=Callable[..., Any])


class RuleInfo(NamedTuple):
    """Description of an anomaly rule."""

    event: type[ev.Event] | None
    """Type of the events that begin and end its anomalies; None if no event does."""
    explanation: str
    """Condition that the rule finds, with thresholds as `{limits.KEY}`."""


RULES: dict[str, RuleInfo] = {}
"""Keyed by rule."""
CHECKS: dict[type[ev.Event], list[Check]] = {}
"""Checks of each event type, in the order in which they run."""


def rule(event: type[ev.Event] | None, explanations: Mapping[Rule, str]) -> Callable[[CheckT], CheckT]:
    """Register the decorated function as the check of one or several anomaly rules.

    An anomaly ends with the first event of the same type and subject (env, lane or run) for which its check no longer
    returns it.

    Args:
        event: Type of the events that the function checks; None if another caller evaluates the rule.
        explanations: Condition that each rule finds, for the help screen, with thresholds as `{limits.KEY}`.

    Raises:
        ValueError: A rule has a check already.
    """

    def register(check: CheckT) -> CheckT:
        for name, explanation in explanations.items():
            if name in RULES:
                raise ValueError(f"the anomaly rule '{name}' already has a check")
            RULES[name] = RuleInfo(event, explanation)
        if event is not None:
            CHECKS.setdefault(event, []).append(check)
        return check

    return register


def warning(
    rule: Rule, where: str, value: float, threshold: float, text: str, env: int | None = None
) -> ev.AnomalyFound:
    """Return an anomaly whose severity is a warning; the arguments are its fields."""
    return ev.AnomalyFound(
        rule=rule.value, severity="warning", where=where, env=env, value=value, threshold=float(threshold), text=text
    )
