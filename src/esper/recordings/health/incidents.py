"""Incidents: an anomaly of an env or lane together with the anomalies that it led to, which count as one alarm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from esper.common.domain import Rule
from esper.recordings.state.anomalies import Anomaly

_BREAKDOWN_OF_ENV = (
    Rule.EXPLODING_GRADIENT,
    Rule.REPEATED_SKIPS,
    Rule.LOSS_ABOVE_CHANCE,
    Rule.NON_FINITE_GRADIENT,
    Rule.NON_FINITE_LOSS,
    Rule.NON_FINITE_SCORE,
    Rule.GOVERNOR_ROLLBACK,
)
_LOSS_SCALES_OF_LANE = (Rule.LOSS_SCALES_DIVERGE, Rule.LOSS_SCALE_BELOW_1)
_CHAINS = {rule.value: chain for chain in (_BREAKDOWN_OF_ENV, _LOSS_SCALES_OF_LANE) for rule in chain}
"""Rules whose anomalies follow from each other in any order. Keyed by each of them."""


class Incident(NamedTuple):
    """An anomaly and its consequences."""

    cause: Anomaly
    """The anomaly that began first."""
    symptoms: list[Anomaly]
    """Anomalies that began while the cause or an earlier symptom was active in their envs or lane, first to last."""

    @property
    def anomalies(self) -> list[Anomaly]:
        """The cause and the symptoms."""
        return [self.cause, *self.symptoms]

    @property
    def active(self) -> list[Anomaly]:
        """The anomalies that have not ended: errors before warnings, else first to last."""
        active = [anomaly for anomaly in self.anomalies if anomaly.ended is None]
        return sorted(active, key=lambda anomaly: anomaly.found.severity != "error")


def group_incidents(anomalies: Sequence[Anomaly]) -> list[Incident]:
    """Return the incidents of these anomalies. Each has the place of the first of its anomalies in the sequence."""
    incidents = {anomaly.found.seq: Incident(anomaly, []) for anomaly in anomalies}
    earlier: dict[tuple[Sequence[Rule], int | str], list[Anomaly]] = {}
    """Anomalies so far, keyed by their chain of rules and an env or lane."""
    for anomaly in sorted(anomalies, key=lambda anomaly: anomaly.found.seq):
        chain = _CHAINS.get(anomaly.found.rule)
        if chain is None:
            continue
        subjects = anomaly.envs or [anomaly.found.where]
        cause = next((known for known in earlier.get((chain, subjects[0]), ()) if _led_to(known, anomaly)), None)
        if cause is not None:
            incidents[anomaly.found.seq] = incidents[cause.found.seq]
            incidents[anomaly.found.seq].symptoms.append(anomaly)
        for subject in subjects:
            earlier.setdefault((chain, subject), []).append(anomaly)
    return [*{id(incident): incident for incident in incidents.values()}.values()]


def _led_to(cause: Anomaly, symptom: Anomaly) -> bool:
    """Return True if an anomaly was active in every env of a later one when that began there."""
    if cause.ended is not None and cause.ended < symptom.found.time:
        return False
    return all(env not in cause.left and _began_before(cause, symptom, env) for env in symptom.envs)


def _began_before(cause: Anomaly, symptom: Anomaly, env: int) -> bool:
    first, then = cause.in_env(env), symptom.in_env(env)
    return first is not None and then is not None and first.seq < then.seq
