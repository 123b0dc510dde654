"""Events that report anomalies."""

from __future__ import annotations

from esper.common.domain import Severity
from esper.recordings.events.base import Event


class AnomalyFound(Event, frozen=True, kw_only=True, tag=True):
    """A value left the range that an anomaly rule allows."""

    rule: str
    """Name of the rule, for example `exploding gradient`."""
    severity: Severity
    """warning or error."""
    where: str
    """Subject of the anomaly, for example `env 7`, `head op` or `cuda:1`."""
    env: int | None = None
    """Index of the env, if the subject is an env."""
    value: float
    """Measured value."""
    threshold: float | None = None
    """Limit of the rule, in the unit of the value; absent if the rule has none."""
    text: str
    """Description in one sentence."""


class AnomalyJoined(Event, frozen=True, kw_only=True, tag=True):
    """An anomaly that is active in one env began in another env, too. Both are one anomaly."""

    rule: str
    """Name of the rule, as in AnomalyFound."""
    where: str
    """Subject of the anomaly, as in AnomalyFound: the first env."""
    env: int
    """Index of the other env."""
    value: float
    """Measured value in the other env."""
    threshold: float | None = None
    """Limit of the rule, in the unit of the value; absent if the rule has none."""
    text: str
    """Description in one sentence."""


class AnomalyLeft(Event, frozen=True, kw_only=True, tag=True):
    """An anomaly ended in one env, and is still active in others."""

    rule: str
    """Name of the rule, as in AnomalyFound."""
    where: str
    """Subject of the anomaly, as in AnomalyFound."""
    env: int
    """Index of the env in which it ended."""


class AnomalyEnded(Event, frozen=True, kw_only=True, tag=True):
    """A value returned to the range that a rule allows.

    Without this event, RoundStarted ends all anomalies of envs, and RunStarted those of lanes that no longer exist.
    """

    rule: str
    """Name of the rule, as in AnomalyFound."""
    where: str
    """Subject of the anomaly, as in AnomalyFound."""
    env: int | None = None
    """Index of the env, if the subject is an env."""
