"""Symptoms, their candidates and the signals that led to them."""

from __future__ import annotations

import math

from esper.recordings import events as ev
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.health.root_cause import find_root_cause
from esper.recordings.state.state import RunState
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.health.episodes import GOOD, blended, cull, planting, removed, slots


def state_after(*events: ev.AnyEvent) -> RunState:
    state = RunState()
    for event in stamp([run_started(2), ev.RoundStarted(round=1), *events]):
        state.apply(event)
    return state


def steps(*changes: dict[str, object]) -> list[ev.AnyEvent]:
    return [env_stepped(0, 1, step, **change) for step, change in enumerate(changes, 1)]


def test_healthy_env_has_no_symptom() -> None:
    assert find_root_cause(state_after(*steps({}, {}, {})), 0) == (None, False, [], "", [], [], [])
    assert find_root_cause(state_after(), 1) == (None, False, [], "", [], [], [])


def test_nan_is_traced_to_the_first_abnormal_signal() -> None:
    calm: list[dict[str, object]] = [{"loss_scale": 1024.0}] * 4
    skip: dict[str, object] = {"skipped_batches": 1, "loss_scale": 256.0}
    cause = find_root_cause(
        state_after(*steps(*calm, skip, {"grad_norm": 40.0, "loss_scale": 256.0}, {"grad_norm": math.nan})), 0
    )
    assert cause.symptom is not None
    assert (cause.symptom.step, cause.symptom.text) == (7, "not finite: gradient of the host")
    assert [(entry.step, entry.text) for entry in cause.signals] == [
        (5, "1 batch skipped because of an overflow"),
        (5, "loss scale fell from 2^10 to 2^8"),
        (6, "gradient of the host is 40, more than 8"),
    ]
    assert [entry.seq for entry in cause.signals] == [7, 7, 8]  # steps 5 and 6


def test_sudden_nan_has_no_cause() -> None:
    cause = find_root_cause(state_after(*steps({}, {}, {}, {"grad_norm": math.nan})), 0)
    assert cause.symptom is not None
    assert cause.signals == []


def test_old_events_are_no_cause() -> None:
    cause = find_root_cause(state_after(*steps({"skipped_batches": 1}, *[{}] * 6, {"loss": math.nan})), 0)
    assert cause.symptom is not None
    assert cause.signals == []


def test_accuracy_drop_is_traced_to_the_cull() -> None:
    run = steps(*GOOD, cull("0") | removed(train_score=0.5, score=0.5))
    cause = find_root_cause(state_after(*run), 0)
    assert cause.symptom is not None
    assert cause.symptom.text == "accuracy fell from 80.0% to 50.0%"
    assert cause.note == ""
    (candidate,) = cause.candidates
    assert (candidate.round, candidate.last_step, candidate.env, candidate.decision_step) == (1, 5, 0, 5)
    assert candidate.seq == 7
    assert candidate.text == "cull norm in mid: seed removed at alpha 0.5 in step 5"
    assert cause.signals == []


def test_drop_without_a_move_since_the_best_score_says_so() -> None:
    cause = find_root_cause(state_after(*steps(*GOOD, blended(score=0.82), blended(score=0.5))), 0)
    assert (cause.is_drop, cause.candidates) == (True, [])
    assert cause.note == (
        "no decision changed the network since the best score in step 5; training itself may be the cause"
    )


def test_cause_of_a_nan_is_not_after_its_first_signal() -> None:
    """The loss scale falls in step 5, one step before the cull."""
    skip: dict[str, object] = {"skipped_batches": 1, "loss_scale": 256.0}
    calm = [change | {"loss_scale": 1024.0} for change in GOOD]
    broken = cull("0") | removed(loss_scale=256.0, loss=math.nan)
    cause = find_root_cause(state_after(*steps(*calm, blended() | skip, broken)), 0)
    assert [signal.step for signal in cause.signals] == [5, 5]
    assert cause.candidates == []
    assert cause.note == "no decision changed the network within 3 steps; training itself may be the cause"


def test_nan_after_the_start_of_a_blend_names_the_advance() -> None:
    blends: dict[str, object] = {"op": "advance", "target": "mid", "loss": math.nan, "slots": slots("blending", 0.4)}
    run = steps(planting("linear_add", "5"), {"slots": slots("training")}, {"slots": slots("training")}, blends)
    cause = find_root_cause(state_after(*run), 0)
    assert [candidate.text for candidate in cause.candidates] == [
        "advance norm in mid: blending begins, alpha 0.4 in step 4"
    ]


def test_dead_seed_is_not_blamed_on_a_decision() -> None:
    reading = ev.SlotReading(stage="training", blueprint="norm", age=6, grad_norm=0.0)
    cause = find_root_cause(after_anomalies(*steps(*GOOD, *[{"slots": [reading], "score": 0.8}] * 5)), 0)
    assert cause.symptom is not None
    assert "gradient" in cause.symptom.text
    assert (cause.candidates, cause.note) == ([], "")


def test_symptom_is_dated_at_its_start() -> None:
    cause = find_root_cause(state_after(*steps({}, {"loss": math.nan}, {"loss": math.nan})), 0)
    assert cause.symptom is not None
    assert cause.symptom.step == 2


def test_new_episode_does_not_inherit_causes() -> None:
    run = [*steps({}, {}, {"skipped_batches": 1}), ev.RoundStarted(round=2), env_stepped(0, 2, 1, loss=math.nan)]
    assert find_root_cause(state_after(*run), 0).signals == []


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
    assert find_root_cause(state_after(*steps(*first, norms(4.2), {"loss": math.nan})), 0).signals != []
    assert find_root_cause(state_after(*steps(*first, norms(None), norms(4.2), {"loss": math.nan})), 0).signals == []
