"""Incidents: anomalies of an env that one breakdown caused."""

from __future__ import annotations

import math

import pytest

from esper.recordings import events as ev
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.health.incidents import group_incidents
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.files.recordings import fold
from tests.sanctum.population import anomaly

START = [run_started(3), ev.RoundStarted(round=1)]
EXPLOSION, ROLLBACK, NAN = "exploding gradient", "governor rollback", "non-finite loss"
DIVERGE, BELOW_1 = "loss scales diverge", "loss scale below 1"


def of_lane(lane: str, rule: str) -> ev.AnomalyFound:
    return ev.AnomalyFound(rule=rule, severity="warning", where=lane, value=1.0, text=f"{lane}: {rule}")


def joined(rule: str, where: int, env: int) -> ev.AnomalyJoined:
    return ev.AnomalyJoined(rule=rule, where=f"env {where}", env=env, value=1.0, text=f"env {env:02d}: {rule}")


def left(rule: str, where: int, env: int) -> ev.AnomalyLeft:
    return ev.AnomalyLeft(rule=rule, where=f"env {where}", env=env)


def ended(rule: str, env: int) -> ev.AnomalyEnded:
    return ev.AnomalyEnded(rule=rule, where=f"env {env}", env=env)


def grouped(*events: ev.AnyEvent) -> list[str]:
    """Rules of each incident, the cause first, in the order of the anomalies."""
    state = fold(stamp([*START, *events]))
    incidents = group_incidents([*state.anomalies.values()])
    return [" > ".join(known.found.rule for known in incident.anomalies) for incident in incidents]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([anomaly(1, rule=EXPLOSION), anomaly(1, rule=ROLLBACK)], [f"{EXPLOSION} > {ROLLBACK}"]),
        ([anomaly(1, rule=EXPLOSION), anomaly(2, rule=ROLLBACK)], [EXPLOSION, ROLLBACK]),
        ([anomaly(1, rule=EXPLOSION), ended(EXPLOSION, 1), anomaly(1, rule=ROLLBACK)], [EXPLOSION, ROLLBACK]),
        ([anomaly(1, rule="dead seed"), anomaly(1, rule=ROLLBACK)], ["dead seed", ROLLBACK]),
        (
            [anomaly(1, rule=EXPLOSION), anomaly(1, rule=NAN), ended(EXPLOSION, 1), anomaly(1, rule=ROLLBACK)],
            [f"{EXPLOSION} > {NAN} > {ROLLBACK}"],
        ),
        (
            [anomaly(0, rule=EXPLOSION), joined(EXPLOSION, 0, 1), anomaly(1, rule=ROLLBACK)],
            [f"{EXPLOSION} > {ROLLBACK}"],
        ),
        (
            [anomaly(0, rule=EXPLOSION), joined(EXPLOSION, 0, 1), left(EXPLOSION, 0, 1), anomaly(1, rule=ROLLBACK)],
            [EXPLOSION, ROLLBACK],
        ),
        ([anomaly(0, rule=EXPLOSION), anomaly(0, rule=NAN), joined(NAN, 0, 2)], [EXPLOSION, NAN]),
        ([of_lane("cpu:0", DIVERGE), of_lane("cpu:0", BELOW_1)], [f"{DIVERGE} > {BELOW_1}"]),
        ([of_lane("cpu:0", DIVERGE), of_lane("cpu:1", BELOW_1)], [DIVERGE, BELOW_1]),
    ],
)
def test_anomalies_that_an_active_one_led_to_are_one_incident(events: list[ev.AnyEvent], expected: list[str]) -> None:
    assert grouped(*events) == expected


def test_earlier_round_is_another_incident() -> None:
    assert grouped(anomaly(1, rule=EXPLOSION), ev.RoundStarted(round=2), anomaly(1, rule=ROLLBACK)) == [
        EXPLOSION,
        ROLLBACK,
    ]


def test_incident_of_a_real_breakdown_is_one_alarm() -> None:
    """The detector finds the loss and the rollback; the recording has both."""
    steps = [env_stepped(1, 1, step) for step in (1, 2)]
    broken = env_stepped(1, 1, 3, loss=math.nan)
    rollback = ev.GovernorRolledBack(round=1, step=3, env=1, reason="the loss is NaN", value=math.nan)
    events: list[ev.AnyEvent] = []
    detector = AnomalyDetector()
    for event in [*START, *steps, broken, rollback]:
        events += [event, *detector.check(event)]
    assert grouped(*events[len(START) :]) == [f"{NAN} > {ROLLBACK}"]
    assert sum(isinstance(event, ev.AnomalyFound) for event in events) == 2
