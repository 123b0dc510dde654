"""Masks: legal actions never raise, illegal ones always do, and WAIT is always legal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.common.domain import Op, Stage
from esper.networks.seeds.lifecycle import IllegalTransitionError
from esper.training.policy.actions import Action, head_sizes
from esper.training.policy.baselines import RandomAgent
from esper.training.policy.masks import ActionMasks, write_masks
from tests.training.policy.scripted import BLUEPRINTS, SLOTS, ScriptedEnv

SIZES = head_sizes(len(SLOTS), len(BLUEPRINTS))
numbers = st.floats(0, 1, exclude_max=True)
decisions = st.tuples(*[numbers] * len(SIZES))
norms = st.sampled_from([1.0, 1.0, 1.0, 1e6, float("nan")])


def masks_of(env: ScriptedEnv) -> ActionMasks:
    masks = ActionMasks.empty(1, slots=len(SLOTS), blueprints=len(BLUEPRINTS))
    write_masks([env.view], masks, BLUEPRINTS)
    return masks


def pick(legal: torch.Tensor, number: float) -> int:
    options = legal.nonzero().flatten().tolist()
    return options[int(number * len(options))]


def chosen(masks: ActionMasks, numbers: tuple[float, ...]) -> Action:
    """Draw an action that is legal according to the masks."""
    op = pick(masks.op_EO[0], numbers[0])
    slot = pick(masks.slot_EOS[0, op], numbers[1])
    rest = [int(number * size) for number, size in zip(numbers[2:], SIZES[2:], strict=True)]
    rest[0] = pick(masks.blueprint_ESB[0, slot], numbers[2])
    rest[1] = pick(masks.style_ESY[0, slot], numbers[3])
    return Action(op, slot, *rest)


@given(st.lists(st.tuples(decisions, norms), min_size=10, max_size=40))
def test_masks_match_the_actions_that_raise(steps: list[tuple[tuple[float, ...], float]]) -> None:
    env = ScriptedEnv(steps=len(steps))
    for draws, norm in steps:
        masks = masks_of(env)
        assert masks.op_EO[0, Op.WAIT]
        assert torch.equal(masks.op_EO, masks.slot_EOS.any(dim=-1))
        for op in set(Op) - {Op.WAIT}:
            for slot in range(len(SLOTS)):
                if not masks.slot_EOS[0, op, slot]:
                    before = env.slots[slot].lifecycle_state()
                    with pytest.raises(IllegalTransitionError):
                        env.apply(Action(op, slot))
                    assert repr(env.slots[slot].lifecycle_state()) == repr(before)
        env.apply(chosen(masks, draws))
        env.end_epoch(grad_norm=norm)


@given(st.lists(decisions, min_size=25, max_size=25))
def test_random_baseline_takes_only_legal_actions(numbers: list[tuple[float, ...]]) -> None:
    env, agent = ScriptedEnv(), RandomAgent(BLUEPRINTS)
    agent.begin_round(torch.tensor([numbers], dtype=torch.float64))
    for _ in numbers:
        masks = masks_of(env)
        (choice,) = agent.act(env.view.step, [env.view])
        action = choice.action
        assert masks.slot_EOS[0, action.op, action.slot]
        assert action.op != Op.SET_ALPHA or masks.style_ESY[0, action.slot, action.style]
        env.apply(action)
        env.end_epoch()


def test_random_ops_reach_every_stage() -> None:
    """The tests above are only meaningful if the drawn actions cover all ops."""
    env, seen = ScriptedEnv(steps=400), set()
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        env.apply(chosen(masks_of(env), tuple(torch.rand(len(SIZES), generator=generator).tolist())))
        seen.update(env.stages())
        env.end_epoch()
        if all(stage is Stage.FOSSILIZED for stage in env.stages()):
            env.env.reset(env.env.key._replace(round=0))
    assert seen == set(Stage)


def test_op_with_a_closed_gate_is_masked() -> None:
    env = ScriptedEnv()
    env.apply(Action(Op.GERMINATE, 1))
    env.end_epoch()
    assert env.stages()[1] is Stage.TRAINING
    env.end_epoch(grad_norm=float("nan"))
    env.end_epoch(grad_norm=float("nan"))
    assert not masks_of(env).slot_EOS[0, Op.ADVANCE, 1]
    env.end_epoch(grad_norm=1.0)
    assert masks_of(env).slot_EOS[0, Op.ADVANCE].tolist() == [False, True, False]


def test_seed_without_a_blend_gate_cannot_get_one() -> None:
    env = ScriptedEnv()
    env.apply(Action(Op.GERMINATE, 0, style=0))
    env.apply(Action(Op.GERMINATE, 2, style=3))
    styles = masks_of(env).style_ESY[0].tolist()
    assert styles[0] == [True, True, True, False]
    assert styles[2] == [False, False, False, True]


def test_masks_of_an_env_with_fewer_slots_are_illegal_in_the_others() -> None:
    masks = ActionMasks.empty(1, slots=len(SLOTS) + 2, blueprints=len(BLUEPRINTS))
    for mask in masks:
        mask[:] = True  # of an earlier round with more slots
    write_masks([ScriptedEnv().view], masks, BLUEPRINTS)
    assert not masks.slot_EOS[:, :, len(SLOTS) :].any()
    assert not masks.blueprint_ESB[:, len(SLOTS) :].any()
    assert not masks.style_ESY[:, len(SLOTS) :].any()
    assert masks.op_EO[0].tolist() == [op in (Op.WAIT, Op.GERMINATE) for op in Op]
