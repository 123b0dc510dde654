from __future__ import annotations

import math

import msgspec
import pytest

from esper.telemetry import events as ev
from esper.telemetry.anomalies import DEAD_GRAD_NORM, ENTROPY_FLOOR, KL_SPIKE, inspect
from tests.factory import device_sampled, env_stepped, example_run, policy_updated

SLOT = ev.SlotReading(stage="training", blueprint="conv_small", grad_norm=math.nan)


def update(**heads: ev.HeadReading) -> ev.PolicyUpdated:
    return policy_updated(heads=heads)


@pytest.mark.parametrize(
    ("event", "rule", "severity", "where"),
    [
        (env_stepped(env=7, train_loss=math.nan), "non-finite loss", "error", "env 7"),
        (env_stepped(env=7, loss=math.inf), "non-finite loss", "error", "env 7"),
        (env_stepped(env=7, accuracy=math.nan), "non-finite accuracy", "error", "env 7"),
        (env_stepped(env=7, train_accuracy=math.nan), "non-finite accuracy", "error", "env 7"),
        (env_stepped(env=7, grad_norm=-math.inf), "non-finite gradient", "error", "env 7"),
        (env_stepped(env=7, slots=[SLOT]), "non-finite gradient", "error", "env 7"),
        (policy_updated(policy_loss=math.nan, heads={}), "non-finite update", "error", "policy loss"),
        (policy_updated(value_loss=math.inf, heads={}), "non-finite update", "error", "value loss"),
        (policy_updated(grad_norm=math.nan, heads={}), "non-finite update", "error", "gradient norm"),
        (policy_updated(kl=0.11, heads={}), "KL spike", "warning", "policy"),
        (policy_updated(kl=math.nan, heads={}), "KL spike", "error", "policy"),
        (update(op=ev.HeadReading(grad_norm=math.nan, entropy=0.5)), "non-finite head", "error", "head op"),
        (update(op=ev.HeadReading(grad_norm=math.inf)), "non-finite head", "error", "head op"),
        (update(op=ev.HeadReading(entropy=0.5)), "dead head", "warning", "head op"),
        (update(op=ev.HeadReading(grad_norm=0.0, entropy=0.5)), "dead head", "warning", "head op"),
        (update(op=ev.HeadReading(grad_norm=0.1, entropy=0.04)), "entropy collapse", "warning", "head op"),
        (update(op=ev.HeadReading(grad_norm=0.1, entropy=math.nan)), "entropy collapse", "warning", "head op"),
        (device_sampled("cuda:1", used=91, total=100), "memory nearly full", "warning", "cuda:1"),
    ],
)
def test_each_rule_finds_what_it_is_for(event: ev.AnyEvent, rule: str, severity: str, where: str) -> None:
    [found] = inspect(event)

    assert (found.rule, found.severity, found.where) == (rule, severity, where)
    assert found.text
    assert found.env == getattr(event, "env", None)


@pytest.mark.parametrize(
    "event",
    [
        env_stepped(),
        env_stepped(loss=1.7e308, train_loss=1.7e308),  # finite, though their sum is not
        env_stepped(slots=[ev.SlotReading(stage="dormant")]),
        policy_updated(kl=KL_SPIKE, heads={}),
        update(op=ev.HeadReading()),  # forced: it had no choice, so there is nothing to learn
        update(op=ev.HeadReading(grad_norm=0.0)),
        update(op=ev.HeadReading(grad_norm=DEAD_GRAD_NORM, entropy=ENTROPY_FLOOR)),
        device_sampled(used=90, total=100),
        device_sampled(used=None, total=100),
        device_sampled(used=90, total=None),
        ev.Logged(severity="error", text="no rule looks at this"),
    ],
)
def test_what_is_within_the_limits_is_no_anomaly(event: ev.AnyEvent) -> None:
    assert inspect(event) == []


def test_a_sentence_says_what_where_when_and_how_much() -> None:
    [env] = inspect(env_stepped(env=7, round=2, step=3, slots=[SLOT]))
    [head] = inspect(update(op=ev.HeadReading(entropy=0.5)))
    [memory] = inspect(device_sampled("cuda:1", used=95, total=100))

    assert env.text == "env 07: the gradient of the conv_small in slot 1 is NaN at round 2 step 3"
    assert head.text == "head op had choices in round 1, yet no gradient reached it"
    assert memory.text == "cuda:1: 95% of its memory is in use, more than 90%"


def test_several_anomalies_of_one_event_are_all_found() -> None:
    found = inspect(env_stepped(loss=math.nan, train_loss=math.inf, grad_norm=math.nan))

    assert [(one.rule, math.isnan(one.value)) for one in found] == [
        ("non-finite loss", False),
        ("non-finite loss", True),
        ("non-finite gradient", True),
    ]


def test_an_anomaly_is_no_anomaly_itself() -> None:
    anomalies = [event for event in example_run() if isinstance(event, ev.AnomalyFound)]

    assert anomalies
    assert all(inspect(msgspec.structs.replace(anomaly, value=math.nan)) == [] for anomaly in anomalies)
