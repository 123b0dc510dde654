"""Decisions that can have caused a drop of the score."""

from __future__ import annotations

import pytest

from esper.common.score_scale import PERCENT
from esper.recordings import events as ev
from esper.recordings.health.causes import PossibleCause, drop_starts, find_candidates
from esper.recordings.state.series import StepTrace
from tests.factory import env_stepped, run_started
from tests.recordings.health.episodes import GOOD, blended, choices, cull, planting, removed, slots

NAMES = run_started().slot_names


def episode(*changes: dict[str, object]) -> list[StepTrace]:
    return [StepTrace.from_event(env_stepped(3, 2, step, **change)) for step, change in enumerate(changes, 1)]


def candidates(*changes: dict[str, object]) -> list[PossibleCause]:
    """Return the candidates of the only drop of an episode."""
    trace = episode(*changes)
    ((index, best_index),) = drop_starts(trace, PERCENT, 0.1)
    return find_candidates(trace[: index + 1], NAMES, trace[best_index].step, 2, 3)


def only_candidate(*changes: dict[str, object]) -> PossibleCause:
    (candidate,) = candidates(*changes)
    return candidate


def set_alpha(style: str, target: str, speed: str) -> dict[str, object]:
    decision = choices(slot="mid", style=style, alpha_target=target, alpha_speed=speed, alpha_curve="linear")
    return {"op": "set_alpha", "target": "mid", "decision": decision}


LOW: dict[str, object] = {"score": 0.5, "train_score": 0.5}


def test_drops_are_listed_at_their_start() -> None:
    low = blended(score=0.6)
    assert drop_starts(episode(*GOOD, low, low, blended(score=0.75), low), PERCENT, 0.1) == [(4, 3), (7, 3)]


def test_ramp_is_traced_to_its_decision() -> None:
    ramp = [blended(0.3), blended(0.1), removed(**LOW)]
    candidate = only_candidate(*GOOD, blended(0.5) | cull("5"), *ramp)
    assert (candidate.decision_step, candidate.last_step) == (5, 8)
    assert candidate.text == "cull norm in mid: alpha 0.5 → 0.1 in steps 7 to 8"
    assert candidate.size == pytest.approx(0.4)


def with_late(step: int, change: dict[str, object], alpha: float, **changes: object) -> dict[str, object]:
    """Return a step with a second seed, in the slot `late`."""
    mid = GOOD[step - 1]["slots"] if step <= len(GOOD) else slots("embargoed")
    assert isinstance(mid, list)
    return change | {"slots": [*mid[:2], ev.SlotReading(stage="blending", alpha=alpha)]} | changes


def test_newest_move_comes_first_and_then_the_largest() -> None:
    """Both seeds move in step 5: the cull at once by 0.5, the ramp of the other seed by 0.1 in each step."""
    advance: dict[str, object] = {"op": "advance", "target": "late"}
    before = [with_late(step, GOOD[step - 1], step / 10) for step in (1, 2, 3, 4)]
    before[1] |= advance
    found = candidates(*before, with_late(5, cull("0") | removed(**LOW), 0.5))
    assert [cause.decision_step for cause in found] == [5, 2]
    culled = with_late(5, cull("0") | removed(score=0.75), 0.5)
    found = candidates(*before, culled, with_late(6, removed(**LOW), 0.6))
    assert [(cause.decision_step, cause.last_step) for cause in found] == [(2, 6), (5, 5)]


def test_training_seed_is_no_candidate() -> None:
    good: dict[str, object] = {"score": 0.8, "train_score": 0.8, "slots": slots("training")}
    culled: dict[str, object] = cull("0") | removed(**LOW)
    assert candidates(planting("linear_add", "3") | good, good, good, good | LOW) == []
    assert candidates(planting("linear_add", "3") | good, good, good, culled) == []


def test_start_of_a_blend_is_a_candidate() -> None:
    good: dict[str, object] = {"score": 0.8, "train_score": 0.8, "slots": slots("training")}
    begins: dict[str, object] = {"op": "advance", "target": "mid", "slots": slots("blending", 0.5, 0.1)}
    candidate = only_candidate(planting("linear_gate", "4") | good, good, good, begins | LOW)
    assert candidate.text == "advance norm in mid: blending begins, alpha 0.5 in step 4"


def test_other_formula_at_the_same_alpha_is_a_candidate() -> None:
    candidate = only_candidate(*GOOD, set_alpha("linear_multiply", "0.5", "0") | blended() | LOW)
    assert "set alpha of norm in mid: blend becomes multiply, alpha 0.5 → 0.5 in step 5" in candidate.text
    assert candidates(*GOOD, set_alpha("linear_add", "0.5", "0") | blended() | LOW) == []


def test_fossilized_seed_is_no_candidate() -> None:
    fossilized: dict[str, object] = {"op": "fossilize", "target": "mid", "slots": slots("fossilized", 0.5, 0.3)}
    assert candidates(*GOOD, fossilized | LOW) == []


def test_move_before_the_best_score_is_no_candidate() -> None:
    assert candidates(*GOOD, cull("0") | removed(score=0.85), removed(score=0.86), removed(**LOW)) == []
    assert only_candidate(*GOOD, cull("0") | removed(score=0.79), removed(**LOW)).decision_step == 5


def test_drop_of_the_validation_score_alone_has_candidates() -> None:
    """The training score decided once whether a decision was named. A simulation says whether it is the cause."""
    assert only_candidate(*GOOD, cull("0") | removed(score=0.5, train_score=0.9)).decision_step == 5


def test_damaged_decision_is_tolerated() -> None:
    bare: dict[str, object] = {"op": "cull", "target": "mid", "decision": {}}
    candidate = only_candidate(*GOOD, bare | removed(**LOW))
    assert candidate.decision_step == 5
    assert candidates(*GOOD, {"slots": [], **LOW}) == []
