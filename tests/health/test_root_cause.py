"""Causal chains of symptoms."""

from __future__ import annotations

import math

from esper.health.detector import AnomalyDetector
from esper.health.root_cause import find_root_cause
from esper.telemetry import events as ev
from esper.telemetry.state import RunState
from tests.factory import env_stepped, run_started, stamp


def state_after(*events: ev.AnyEvent) -> RunState:
    state = RunState()
    for event in stamp([run_started(2), ev.RoundStarted(round=1), *events]):
        state.apply(event)
    return state


def steps(*changes: dict[str, object]) -> list[ev.AnyEvent]:
    return [env_stepped(0, 1, step, **change) for step, change in enumerate(changes, 1)]


def test_healthy_env_has_no_symptom() -> None:
    assert find_root_cause(state_after(*steps({}, {}, {})), 0) == (None, [], [], [])
    assert find_root_cause(state_after(), 1) == (None, [], [], [])


def test_nan_is_traced_to_the_first_abnormal_signal() -> None:
    calm: list[dict[str, object]] = [{"loss_scale": 1024.0}] * 4
    skip: dict[str, object] = {"skipped_batches": 1, "loss_scale": 256.0}
    cause = find_root_cause(
        state_after(*steps(*calm, skip, {"grad_norm": 40.0, "loss_scale": 256.0}, {"grad_norm": math.nan})), 0
    )
    assert cause.symptom is not None
    assert (cause.symptom.step, cause.symptom.text) == (7, "not finite: gradient of the host")
    assert [(entry.step, entry.text) for entry in cause.chain] == [
        (5, "1 batch skipped because of an overflow"),
        (5, "loss scale fell from 2^10 to 2^8"),
        (6, "gradient of the host is 40, more than 8"),
    ]
    assert [entry.seq for entry in cause.chain] == [7, 7, 8]  # steps 5 and 6


def test_sudden_nan_has_no_cause() -> None:
    cause = find_root_cause(state_after(*steps({}, {}, {}, {"grad_norm": math.nan})), 0)
    assert cause.symptom is not None
    assert cause.chain == []


def test_old_events_are_no_cause() -> None:
    cause = find_root_cause(state_after(*steps({"skipped_batches": 1}, *[{}] * 6, {"loss": math.nan})), 0)
    assert cause.symptom is not None
    assert cause.chain == []


def test_accuracy_drop_is_traced_to_a_seed_transition() -> None:
    move = ev.SeedMoved(round=1, step=3, env=0, slot="mid", before="blending", after="culled", blueprint="norm",
                        reason="cull")  # fmt: skip
    cause = find_root_cause(state_after(*steps({"score": 0.8}, {"score": 0.8}, {"score": 0.5}), move), 0)
    assert cause.symptom is not None
    assert cause.symptom.text == "accuracy fell from 80.0% to 50.0%"
    assert [entry.text for entry in cause.chain] == ["mid blending → culled (cull)"]
    assert cause.chain[0].seq == 6


def test_symptom_is_dated_at_its_start() -> None:
    cause = find_root_cause(state_after(*steps({}, {"loss": math.nan}, {"loss": math.nan})), 0)
    assert cause.symptom is not None
    assert cause.symptom.step == 2


def test_new_episode_does_not_inherit_causes() -> None:
    run = [*steps({}, {}, {"skipped_batches": 1}), ev.RoundStarted(round=2), env_stepped(0, 2, 1, loss=math.nan)]
    assert find_root_cause(state_after(*run), 0).chain == []


def after_anomalies(*events: ev.AnyEvent) -> RunState:
    """Return the state after the events and the anomalies that the rules find in them."""
    detector, state = AnomalyDetector(), RunState()
    found = [(event, *detector.check(event)) for event in (run_started(2), ev.RoundStarted(round=1), *events)]
    for event in stamp([event for events in found for event in events]):
        state.apply(event)
    return state


def test_env_with_an_anomaly_is_not_healthy() -> None:
    course: list[dict[str, object]] = [{"grad_norm": 1.0}] * 5
    skip: dict[str, object] = {"grad_norm": 1.0, "skipped_batches": 1}
    explosion: list[dict[str, object]] = [{"grad_norm": 82.0}] * 3
    loud = after_anomalies(*steps(*course, *explosion))
    cause = find_root_cause(loud, 0)
    assert cause.symptom is not None
    assert (cause.symptom.step, cause.symptom.severity) == (8, "warning")
    assert cause.symptom.text.startswith("the gradient of the host is 82 ")
    assert find_root_cause(after_anomalies(*steps(*course, *explosion, {"grad_norm": 1.0})), 0).symptom is None
    cause = find_root_cause(after_anomalies(*steps(*course, skip, *explosion)), 0)
    assert cause.symptom is not None
    assert cause.symptom.text == "1 batch skipped because of an overflow"  # a skip outranks the warning


def test_current_anomaly_outranks_an_earlier_symptom() -> None:
    later = [env_stepped(0, 2, step, grad_norm=82.0 if step >= 4 else 1.0) for step in range(1, 7)]
    cause = find_root_cause(after_anomalies(*steps({}, {"skipped_batches": 1}), ev.RoundStarted(round=2), *later), 0)
    assert cause.symptom is not None
    assert (cause.symptom.round, cause.symptom.step) == (2, 6)


def test_norms_of_a_seed_exclude_its_predecessor() -> None:
    def norms(early: float | None) -> dict[str, object]:
        readings = [ev.SlotReading(stage="training", grad_norm=norm) for norm in (early, None, None)]
        return {"slots": readings}

    first = [norms(0.1)] * 5
    assert find_root_cause(state_after(*steps(*first, norms(4.2), {"loss": math.nan})), 0).chain != []
    assert find_root_cause(state_after(*steps(*first, norms(None), norms(4.2), {"loss": math.nan})), 0).chain == []
