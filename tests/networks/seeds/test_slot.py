import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.common.domain import AlphaCurve, Stage
from esper.networks.seeds.blend import ALPHA_TARGETS, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS, Blend
from esper.networks.seeds.blueprints import offered_blueprints
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import LEGAL_TRANSITIONS, GateConfig, IllegalTransitionError, StageTransition
from esper.networks.seeds.slot import Slot
from tests.networks.seeds.hosts import generator, grow, network, pictures, site


def empty(config: GateConfig | None = None) -> Slot:
    return Slot(site("mid", 8), config or GateConfig())


OPS = ("germinate", "advance", "set_alpha", "cull", "fossilize", "measure", "gradient", *4 * ("tick",))


@st.composite
def operations(draw: st.DrawFn) -> tuple:
    op = draw(st.sampled_from(OPS))
    if op == "germinate":
        return (
            op,
            draw(st.sampled_from(offered_blueprints(Layout.BCHW, is_causal=False))),
            draw(st.sampled_from(Blend)),
            draw(st.sampled_from(AlphaCurve)),
            draw(st.sampled_from(INITIAL_RAMP_EPOCHS)),
            draw(st.sampled_from(ALPHA_TARGETS)),
            draw(st.integers(0, 99)),
        )
    if op == "set_alpha":
        return (
            op,
            draw(st.sampled_from(ALPHA_TARGETS)),
            draw(st.sampled_from(RAMP_EPOCHS)),
            draw(st.sampled_from(AlphaCurve)),
            draw(st.none() | st.sampled_from(Blend)),
        )
    if op == "cull":
        return op, draw(st.sampled_from(RAMP_EPOCHS)), draw(st.sampled_from(AlphaCurve)), "policy"
    if op == "gradient":
        return op, draw(st.sampled_from((0.5, 0.5, 0.5, None, math.nan, math.inf)))
    return (op,)


def perform(slot: Slot, op: str, *args: Any) -> list[StageTransition]:
    """Perform one operation and return its transitions; errors of the slot are passed on."""
    if op == "tick":
        return slot.tick()
    if op == "measure":
        slot.record_dependence(0.01, 0.002)
        return []
    if op == "gradient":
        slot.grad_norm = args[0]
        return []
    if op == "germinate":
        return [slot.germinate(*args[:-1], generator=generator(args[-1]))]
    move = getattr(slot, op)(*args)
    return [] if move is None else [move]


@given(st.lists(operations(), min_size=30, max_size=80))
def test_slot_random_operations_stay_legal_and_consistent(sequence: list[tuple]) -> None:
    slot = empty()
    features = torch.randn(2, 8, 4, 4, generator=generator())
    for op, *args in sequence:
        before = slot.stage
        allowed = getattr(slot, f"can_{op}", True)
        try:
            moves = perform(slot, op, *args)
        except IllegalTransitionError:
            assert not allowed
            assert slot.stage is before
            continue
        assert allowed
        for move in moves:
            assert move.before is before
            assert move.after in LEGAL_TRANSITIONS[before]
            before = move.after
        assert slot.stage is before
        occupied = slot.stage not in (Stage.DORMANT, Stage.CULLED, Stage.EMBARGOED)
        assert (slot.seed is not None) == (slot.blueprint is not None) == (slot.schedule is not None) == occupied
        assert (slot.gate is not None) == (occupied and slot.blend is Blend.GATE)
        assert 0.0 <= slot.alpha <= 1.0
        assert slot.alpha == 0.0 or slot.stage.is_blended
        assert slot.parameter_count == sum(parameter.numel() for parameter in slot.parameters())
        assert slot(features, slot.alpha).shape == features.shape
        gate = slot.refusing_gate()
        assert gate is None or not gate.passed


def test_slot_full_lifecycle_tick_by_tick() -> None:
    slot = empty()
    assert slot.germinate("conv_light", Blend.ADD, AlphaCurve.LINEAR, 3, 0.7, generator()).reason == "germinate"
    assert slot.tick() == [StageTransition("mid", Stage.GERMINATED, Stage.TRAINING, "conv_light", "G1")]
    slot.grad_norm = 0.5
    for _ in range(2):
        assert not slot.can_advance
        assert slot.tick() == []
    slot.advance()
    alphas, moves = [], []
    while slot.stage is Stage.BLENDING:
        alphas.append(slot.alpha)
        moves = slot.tick()
    assert alphas == pytest.approx([0.7 / 3, 1.4 / 3, 0.7])
    assert [move.reason for move in moves] == ["G3"]
    assert not slot.can_fossilize
    slot.record_dependence(0.2, 0.01)
    assert slot.fossilize().after is Stage.FOSSILIZED
    assert slot.tick() == []
    assert slot.alpha == 0.7
    assert slot.age == 7
    assert not any(getattr(slot, f"can_{op}") for op in ("germinate", "advance", "set_alpha", "cull", "fossilize"))
    with pytest.raises(IllegalTransitionError):
        slot.remove_seed("governor")


def test_cull_with_ramp_ends_in_embargo_then_dormant() -> None:
    slot = empty()
    grow(slot, Stage.PROBATIONARY)
    move = slot.cull(3, AlphaCurve.LINEAR, "hurts")
    assert move is not None
    assert (move.before, move.after) == (Stage.PROBATIONARY, Stage.BLENDING)
    alphas, moves = [slot.alpha], []
    while not (moves := slot.tick()):
        assert slot.is_culling
        assert not slot.can_cull
        assert not slot.can_set_alpha
        assert slot.refusing_gate() is None
        alphas.append(slot.alpha)
    assert alphas == pytest.approx([2 / 3, 1 / 3])
    assert moves == [StageTransition("mid", Stage.BLENDING, Stage.CULLED, "conv_light", "hurts")]
    assert slot.seed is None
    assert slot.dependence is None
    history = [slot.tick() for _ in range(6)]
    assert [move.after for moves in history for move in moves] == [Stage.EMBARGOED, Stage.DORMANT]
    assert history[-1][0].after is Stage.DORMANT
    assert slot.can_germinate


def test_cull_is_immediate_without_ramp_or_before_blending() -> None:
    for stage in (Stage.TRAINING, Stage.PROBATIONARY):
        slot = empty(GateConfig(cull_age=1))
        grow(slot, stage)
        move = slot.cull(0 if stage.is_blended else 5, AlphaCurve.COSINE, "policy")
        assert move is not None
        assert move.after is Stage.CULLED


def test_young_seed_rejects_cull_but_not_remove_seed() -> None:
    slot = empty(GateConfig(cull_age=3))
    grow(slot, Stage.TRAINING)
    slot.tick()
    assert slot.age == 2
    with pytest.raises(IllegalTransitionError, match="cull"):
        slot.cull(0, AlphaCurve.LINEAR, "policy")
    assert slot.remove_seed("governor").reason == "governor"


def test_set_alpha_immediately_and_by_ramp() -> None:
    slot = empty()
    grow(slot, Stage.PROBATIONARY, target=0.5)
    move = slot.set_alpha(1.0, 0, AlphaCurve.COSINE)
    assert move is not None
    assert move.after is Stage.BLENDING
    assert slot.alpha == 1.0
    assert slot.tick()[0].after is Stage.PROBATIONARY
    slot.set_alpha(0.5, 3, AlphaCurve.LINEAR)
    with pytest.raises(IllegalTransitionError, match="alpha at target"):
        slot.set_alpha(0.7, 0, AlphaCurve.LINEAR)
    slot.tick()
    slot.tick()
    assert slot.alpha == 0.5
    assert slot.set_alpha(0.7, 0, AlphaCurve.LINEAR) is None


def test_set_alpha_with_new_blend_adds_and_removes_gate() -> None:
    slot = empty()
    grow(slot, Stage.PROBATIONARY)
    seed_only = slot.parameter_count
    slot.set_alpha(1.0, 0, AlphaCurve.LINEAR, Blend.GATE)
    assert slot.gate is not None
    assert slot.parameter_count == seed_only + 8 * 8 + 8 + 8 + 1
    slot.tick()
    slot.set_alpha(1.0, 0, AlphaCurve.LINEAR, Blend.MULTIPLY)
    assert slot.gate is None
    assert slot.parameter_count == seed_only


def test_illegal_op_error_names_gate_and_failed_checks() -> None:
    slot = empty()
    grow(slot, Stage.TRAINING)
    with pytest.raises(
        IllegalTransitionError, match="advance is illegal in stage training; G2 refuses: epochs in training"
    ):
        slot.advance()
    gate = slot.refusing_gate()
    assert gate is not None
    assert gate.gate == "G2"


def test_dependence_is_none_until_measured() -> None:
    slot = empty()
    grow(slot, Stage.BLENDING)
    assert slot.dependence is slot.dependence_se is slot.dependence_velocity is None
    slot.record_dependence(0.1, 0.02)
    assert slot.dependence_velocity is None
    slot.record_dependence(0.3, 0.02)
    assert slot.dependence_velocity == pytest.approx(0.2)
    slot.record_dependence(0.3, 0.02)
    assert slot.dependence_velocity == pytest.approx(0.14)


@pytest.mark.parametrize("blend", Blend)
@pytest.mark.parametrize(
    "stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED]
)
def test_lifecycle_state_reload_continues_identically(stage: Stage, blend: Blend) -> None:
    original, copy = network(), network(seed=5)
    for i, blueprint in enumerate(("attention", "conv_heavy")):
        grow(original.slots[i], stage, blueprint, blend)
    original.slots[0].grad_norm = 0.25
    for ours, theirs in zip(original.slots, copy.slots, strict=True):
        theirs.load_lifecycle_state(json.loads(json.dumps(ours.lifecycle_state())))
    copy.load_state_dict(original.state_dict())
    for _ in range(4):
        assert [slot.lifecycle_state() for slot in original.slots] == [slot.lifecycle_state() for slot in copy.slots]
        assert original.parameter_ratio == copy.parameter_ratio
        outputs = [net.train()(pictures(8), net.alphas()) for net in (original, copy)]
        assert torch.equal(*outputs)
        assert [slot.tick() for slot in original.slots] == [slot.tick() for slot in copy.slots]


def test_lifecycle_state_during_cull_still_culls() -> None:
    slot, copy = empty(), empty()
    grow(slot, Stage.PROBATIONARY)
    slot.cull(3, AlphaCurve.LINEAR, "hurts")
    copy.load_lifecycle_state(json.loads(json.dumps(slot.lifecycle_state())))
    while slot.stage is not Stage.DORMANT:
        assert slot.tick() == copy.tick()
    assert copy.stage is Stage.DORMANT


def test_blend_gate_added_after_reload_is_identical() -> None:
    slot, copy = empty(), empty()
    grow(slot, Stage.PROBATIONARY)
    copy.load_lifecycle_state(slot.lifecycle_state())
    for one in (slot, copy):
        one.set_alpha(1.0, 0, AlphaCurve.LINEAR, Blend.GATE)
    assert slot.gate is not None
    assert copy.gate is not None
    assert torch.equal(slot.gate.hidden.weight, copy.gate.hidden.weight)
