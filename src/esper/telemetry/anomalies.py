"""Anomalies: the events that report them, and the state of one."""

from __future__ import annotations

import msgspec

from esper.domain import Severity
from esper.telemetry.event_parts import Event


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


class Anomaly(msgspec.Struct, kw_only=True):
    """All occurrences of one rule for one subject.

    The subject of an anomaly of several envs is the first of them.
    """

    found: AnomalyFound
    """Start of the last occurrence."""
    first_round: int
    first_step: int
    last_round: int
    ended: float | None = None
    """Time at which the last occurrence ended, seconds since the epoch; None while it is active."""
    count: int = 1
    """Number of occurrences."""
    joined: dict[int, AnomalyJoined] = {}
    """Envs that joined the last occurrence, keyed by env index."""
    left: list[int] = []
    """Envs in which the last occurrence has ended, although it is active in others."""

    @property
    def envs(self) -> list[int]:
        """Envs of the last occurrence, in the order in which it reached them; empty if it concerns no env."""
        return [*dict.fromkeys([self.found.env, *self.joined])] if self.found.env is not None else []

    @property
    def active_envs(self) -> list[int]:
        """Envs in which the anomaly is active."""
        return [env for env in self.envs if env not in self.left] if self.ended is None else []

    def in_env(self, env: int) -> AnomalyFound | AnomalyJoined | None:
        """Return the start of the last occurrence in an env; None if it did not concern the env."""
        return self.joined.get(env) or (self.found if self.found.env == env else None)


def anomaly_key(anomaly: AnomalyFound | AnomalyJoined | AnomalyLeft | AnomalyEnded) -> str:
    """Return the key of an anomaly: its rule and subject."""
    return f"{anomaly.rule} {anomaly.where}"
