"""Decisions that can have caused a drop of the score."""

from __future__ import annotations

import pytest

from esper.health.causes import PossibleCause, ScoreDrop, list_score_drops
from esper.telemetry import events as ev
from tests.factory import env_stepped, run_started
from tests.health.episodes import GOOD, blended, choices, cull, planting, removed, slots

NAMES = run_started().slot_names


def episode(*changes: dict[str, object]) -> list[ev.EnvStepped]:
    return [env_stepped(3, 2, step, **change) for step, change in enumerate(changes, 1)]


def drops(*changes: dict[str, object]) -> list[ScoreDrop]:
    return list_score_drops(episode(*changes), NAMES)


def only_candidate(*changes: dict[str, object]) -> PossibleCause:
    (drop,) = drops(*changes)
    (candidate,) = drop.candidates
    return candidate


def set_alpha(style: str, target: str, speed: str) -> dict[str, object]:
    decision = choices(slot="mid", style=style, alpha_target=target, alpha_speed=speed, alpha_curve="linear")
    return {"op": "set_alpha", "target": "mid", "decision": decision}


LOW: dict[str, object] = {"score": 0.5, "train_score": 0.5}


def test_drops_are_listed_at_their_start() -> None:
    low = blended(score=0.6)
    (first, second) = drops(*GOOD, low, low, blended(score=0.75), low)
    assert (first.round, first.env, first.step, first.best, first.score) == (2, 3, 5, 0.8, 0.6)
    assert second.step == 8
    assert first.candidates == second.candidates == []


def test_ramp_is_traced_to_its_decision() -> None:
    ramp = [blended(0.3), blended(0.1), removed(**LOW)]
    candidate = only_candidate(*GOOD, blended(0.5) | cull("5"), *ramp)
    assert (candidate.decision_step, candidate.step) == (5, 8)
    assert candidate.text == "cull norm in mid: alpha 0.3 → 0.1 in step 8; its contribution was +30.0 pp"


def test_ramp_with_a_late_curve_has_not_moved_in_its_first_step() -> None:
    """The recording contains the alpha of the next epoch, in which a sharp ramp of three epochs has almost ended."""
    begins = blended(0.01) | cull("3", "sigmoid_sharp")
    assert only_candidate(*GOOD, begins, removed(**LOW)).step == 6
    assert drops(*GOOD, begins | LOW)[0].candidates == []


def test_removal_outranks_the_ramp_of_another_seed() -> None:
    def with_late(step: int, change: dict[str, object], **changes: object) -> dict[str, object]:
        readings = [ev.SlotReading(stage="dormant"), ev.SlotReading(stage="probationary", alpha=0.5, contribution=0.3)]
        if step == 5:
            readings[1] = ev.SlotReading(stage="embargoed")
        late = ev.SlotReading(stage="blending", alpha=step / 10, contribution=0.4)
        return change | {"slots": [*readings, late]} | changes

    advance: dict[str, object] = {"op": "advance", "target": "late"}
    before = [with_late(1, GOOD[0]), *(with_late(step, GOOD[step - 1]) for step in (2, 3, 4))]
    before[1] |= advance
    (drop,) = drops(*before, with_late(5, cull("0"), **LOW))
    assert [candidate.decision_step for candidate in drop.candidates] == [5, 2]


def test_training_seed_is_no_candidate() -> None:
    good: dict[str, object] = {"score": 0.8, "train_score": 0.8, "slots": slots("training")}
    culled: dict[str, object] = cull("0") | removed(**LOW)
    assert drops(planting("linear_add", "3") | good, good, good, good | LOW)[0].candidates == []
    assert drops(planting("linear_add", "3") | good, good, good, culled)[0].candidates == []


def test_start_of_a_blend_is_a_candidate() -> None:
    good: dict[str, object] = {"score": 0.8, "train_score": 0.8, "slots": slots("training")}
    begins: dict[str, object] = {"op": "advance", "target": "mid", "slots": slots("blending", 0.5, 0.1)}
    candidate = only_candidate(planting("linear_gate", "4") | good, good, good, begins | LOW)
    assert candidate.text == "advance norm in mid: blending begins at alpha 0.25 in step 4"


def test_other_formula_at_the_same_alpha_is_a_candidate() -> None:
    candidate = only_candidate(*GOOD, set_alpha("linear_multiply", "0.5", "0") | blended() | LOW)
    assert "set alpha of norm in mid: blend becomes multiply, alpha 0.5 → 0.5 in step 5" in candidate.text
    assert drops(*GOOD, set_alpha("linear_add", "0.5", "0") | blended() | LOW)[0].candidates == []


def test_fossilized_seed_is_no_candidate() -> None:
    fossilized: dict[str, object] = {"op": "fossilize", "target": "mid", "slots": slots("fossilized", 0.5, 0.3)}
    assert drops(*GOOD, fossilized | LOW)[0].candidates == []


def test_old_move_is_no_candidate() -> None:
    later = removed(score=0.75, train_score=0.75)
    falls = removed(score=0.6, train_score=0.5)
    assert drops(*GOOD, cull("0") | later, *[later] * 4, falls)[0].candidates == []


def test_more_evidence_the_more_the_seed_contributed() -> None:
    weak = [planting("linear_add", "5", "0.5") | GOOD[1], *[blended(contribution=0.1)] * 3]
    less, more = (only_candidate(*before, cull("0") | removed(**LOW)).evidence for before in (weak, GOOD))
    assert less == pytest.approx(0.1)
    assert more == pytest.approx(0.3)


def test_damaged_decision_is_tolerated() -> None:
    bare: dict[str, object] = {"op": "cull", "target": "mid", "decision": {}}
    candidate = only_candidate(*GOOD, bare | removed(**LOW))
    assert candidate.decision_step == 5
    assert drops(*GOOD, {"slots": [], **LOW})[0].candidates == []
