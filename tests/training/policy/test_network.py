"""The policy network: envs are independent, and unused heads have no effect."""

import pytest
import torch
from torch import Tensor

from esper.common.domain import HEADS, Op
from esper.networks.seeds.blend import BLEND_STYLES
from esper.training.policy.actions import head_sizes
from esper.training.policy.masks import MIN_P, ActionMasks
from esper.training.policy.network import SLOT_WIDTH, WAIT_LOGIT, Features, PointerHead, PolicyNetwork
from esper.training.policy.observation import BLUEPRINT_FEATURES, ObservationShape

ENVS, STEPS, SLOTS, BLUEPRINTS = 5, 4, 3, 7
SHAPE = ObservationShape(SLOTS, BLUEPRINTS)

RELEVANT = {
    Op.WAIT: "op",
    Op.GERMINATE: "op slot blueprint style tempo alpha_target",
    Op.ADVANCE: "op slot",
    Op.SET_ALPHA: "op slot style alpha_target alpha_speed alpha_curve",
    Op.CULL: "op slot alpha_speed alpha_curve",
    Op.FOSSILIZE: "op slot",
}


def built() -> PolicyNetwork:
    network = PolicyNetwork(SHAPE, hidden=16)
    network.initialise(torch.Generator().manual_seed(1))
    with torch.no_grad():  # the small initial gains would hide differences
        for head in network.heads.values():
            last = head.score if isinstance(head, PointerHead) else head[2]  # pyright: ignore[reportIndexIssue]
            last.weight.mul_(100)
    return network


def inputs(envs: int = ENVS) -> tuple[Tensor, Tensor, ActionMasks, Tensor]:
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(envs, STEPS, SHAPE.size, generator=generator)
    SHAPE.split(obs)[1][..., 0] = 1.0  # all slots are present
    blueprints = torch.randint(1 + BLUEPRINTS, (envs, STEPS, SLOTS), generator=generator)
    masks = ActionMasks(
        *(
            torch.rand(mask.shape, generator=generator) < 0.5
            for mask in ActionMasks.empty(envs, slots=SLOTS, blueprints=BLUEPRINTS)
        )
    )
    masks.slot_EOS[:, Op.WAIT] = True
    masks.blueprint_ESB[..., 0] = True
    masks.style_ESY[..., 0] = True
    masks.op_EO.copy_(masks.slot_EOS.any(dim=-1))
    return obs, blueprints, masks, torch.rand(envs, len(HEADS), generator=generator)


def given(masks: ActionMasks, actions: Tensor) -> Tensor:
    return masks.given(actions[..., 0], actions[..., 1])


def act(network: PolicyNetwork, obs: Tensor, blueprints: Tensor, masks: ActionMasks, uniform: Tensor) -> list[Tensor]:
    """Return all outputs of the network for the last step."""
    features, (h, c) = network.encode(obs, blueprints, network.initial_state(len(obs)))
    actions, probabilities, choice = network.act(features.at_step(-1), masks, uniform)
    evaluation = network.evaluate(features.at_step(-1), actions, given(masks, actions))
    return [*features, h.squeeze(0), c.squeeze(0), actions, probabilities, *choice, *evaluation]


def test_permuting_envs_permutes_outputs() -> None:
    network, (obs, blueprints, masks, uniform) = built(), inputs()
    order = torch.tensor([3, 0, 4, 1, 2])
    straight = act(network, obs, blueprints, masks, uniform)
    permuted = act(
        network, obs[order], blueprints[order], ActionMasks(*(mask[order] for mask in masks)), uniform[order]
    )
    for one, other in zip(straight, permuted, strict=True):
        torch.testing.assert_close(one[order], other)
    assert not torch.allclose(straight[0][0], straight[0][1])


def test_actions_are_legal_and_unused_heads_are_zero() -> None:
    network, (obs, blueprints, masks, uniform) = built(), inputs(envs=200)
    features, _ = network.encode(obs, blueprints, network.initial_state(200))
    actions, probabilities, choice = network.act(features.at_step(-1), masks, uniform)
    assert set(actions[:, 0].tolist()) == set(Op)
    for env, row in enumerate(actions.tolist()):
        op, slot, _, style, *_ = row
        assert masks.slot_EOS[env, op, slot]
        assert op not in (Op.GERMINATE, Op.SET_ALPHA) or masks.style_ESY[env, slot, style]
        for head, index in zip(HEADS, row, strict=True):
            assert index == 0 or head in RELEVANT[Op(op)].split()
    torch.testing.assert_close(probabilities.gather(1, actions[:, :1]).squeeze(1), choice.log_prob_H[:, 0].exp())
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(200))
    assert not probabilities[~masks.op_EO].any()
    evaluation = network.evaluate(features.at_step(-1), actions, given(masks, actions))  # only the heads that are used
    torch.testing.assert_close(choice.log_prob_H, evaluation.log_prob_H)


def test_greedy_heads_sample_op_with_min_p_and_argmax_the_rest() -> None:
    network, (obs, blueprints, masks, uniform) = built(), inputs(envs=200)
    with torch.no_grad():  # make some ops unlikely
        network.heads["op"][2].weight.mul_(5)  # pyright: ignore[reportIndexIssue]
    features, _ = network.encode(obs, blueprints, network.initial_state(200))
    exploring, _, _ = network.act(features.at_step(-1), masks, uniform)
    actions, probabilities, evaluation = network.act(features.at_step(-1), masks, uniform, stochastic_heads=False)
    likely = probabilities >= MIN_P * probabilities.max(dim=1, keepdim=True).values
    assert likely.gather(1, actions[:, :1]).all()
    assert not likely.gather(1, exploring[:, :1]).all()
    all_likely = (likely == masks.op_EO).all(dim=1)
    assert (masks.op_EO.sum(dim=1) > 1)[all_likely].any()
    assert torch.equal(actions[all_likely, 0], exploring[all_likely, 0])
    assert not torch.equal(actions[:, 0], probabilities.argmax(dim=1))
    assert not torch.equal(actions, exploring)
    for index in range(1, len(HEADS)):
        chosen = evaluation.log_prob_H[:, index]
        for other in range(head_sizes(SLOTS, BLUEPRINTS)[index]):
            changed = actions.clone()
            changed[:, index] = other
            assert (
                network.evaluate(features.at_step(-1), changed, given(masks, changed)).log_prob_H[:, index] <= chosen
            ).all()


@pytest.mark.parametrize("op", Op)
def test_only_relevant_heads_count_and_learn(op: Op) -> None:
    network, (obs, blueprints, _, _) = built(), inputs()
    masks = ActionMasks(
        *(torch.ones_like(mask) for mask in ActionMasks.empty(ENVS, STEPS, slots=SLOTS, blueprints=BLUEPRINTS))
    )
    features, _ = network.encode(obs, blueprints, network.initial_state(ENVS))
    actions = torch.zeros(ENVS, STEPS, len(HEADS), dtype=torch.int64)
    actions[..., 0] = op
    evaluation = network.evaluate(features, actions, given(masks, actions))
    (evaluation.log_prob_H.sum() + evaluation.entropy_H.sum()).backward()
    for index, head in enumerate(HEADS):
        relevant = head in RELEVANT[op].split()
        assert bool((evaluation.log_prob_H[..., index] != 0).all()) == relevant, head
        assert bool((evaluation.entropy_H[..., index] > 0).all()) == relevant, head
        assert bool(evaluation.has_choice_H[..., index].all()) == relevant, head
        moved = [
            parameter.grad is not None and bool(parameter.grad.any()) for parameter in network.heads[head].parameters()
        ]
        assert any(moved) == relevant, head


def test_prior_of_the_op_mostly_waits() -> None:
    network, (obs, blueprints, _, uniform) = built(), inputs()
    with torch.no_grad():
        last = network.heads["op"][2]  # pyright: ignore[reportIndexIssue]
        last.weight.zero_()
        last.bias.zero_()
        last.bias[Op.WAIT] = WAIT_LOGIT
    masks = everything_legal(SHAPE)
    features, _ = network.encode(obs, blueprints, network.initial_state(ENVS))
    features = features.at_step(-1)
    actions = network.act(features, masks, uniform)[0]
    at_prior = network.evaluate(features, actions, given(masks, actions))
    assert torch.allclose(at_prior.bonus_H[:, 0], torch.ones(ENVS))
    assert torch.equal(at_prior.bonus_H[:, 1:], at_prior.entropy_H[:, 1:])
    with torch.no_grad():
        last.bias.zero_()
    uniform_op = network.evaluate(features, actions, given(masks, actions))
    assert (uniform_op.bonus_H[:, 0] < 0.6).all()
    assert torch.allclose(uniform_op.entropy_H[:, 0], torch.ones(ENVS))


def test_slot_head_is_conditioned_on_the_op() -> None:
    network, (obs, blueprints, masks, uniform) = built(), inputs()
    masks.slot_EOS[:] = False
    masks.slot_EOS[:, Op.GERMINATE, 2] = True
    masks.op_EO[:] = False
    masks.op_EO[:, Op.GERMINATE] = True
    features, _ = network.encode(obs, blueprints, network.initial_state(ENVS))
    actions, probabilities, _ = network.act(features.at_step(-1), masks, uniform)
    assert actions[:, 1].tolist() == [2] * ENVS
    assert probabilities[:, Op.GERMINATE].tolist() == [1.0] * ENVS
    evaluation = network.evaluate(features.at_step(-1), actions, given(masks, actions))
    assert not evaluation.has_choice_H[:, :2].any()
    assert not evaluation.log_prob_H[:, :2].any()


def outputs(network: PolicyNetwork, obs: Tensor, blueprints: Tensor, masks: ActionMasks) -> dict[str, Tensor]:
    """Return the value and the probabilities of each op, slot and blueprint (of the first slot) in the last step."""
    features, _ = network.encode(obs, blueprints, network.initial_state(len(obs)))
    features, named = features.at_step(-1), dict[str, Tensor]()
    for index, (head, size) in enumerate(zip(HEADS, head_sizes(*network.shape), strict=True)):
        actions = torch.zeros(size, len(obs), len(HEADS), dtype=torch.int64)
        actions[..., 0] = Op.SET_ALPHA if head in ("alpha_speed", "alpha_curve") else Op.GERMINATE
        actions[..., index] = torch.arange(size).unsqueeze(-1)
        found = [network.evaluate(features, chosen, given(masks, chosen)).log_prob_H for chosen in actions]
        named[head] = torch.stack(found, dim=-1)[:, index]
    return named | {"value": network.value(features)}


def everything_legal(shape: ObservationShape) -> ActionMasks:
    return ActionMasks(
        *(torch.ones_like(mask) for mask in ActionMasks.empty(ENVS, slots=shape[0], blueprints=shape[1]))
    )


def test_permuting_slots_permutes_the_slot_head_and_nothing_else() -> None:
    network, (obs, blueprints, _, _) = built(), inputs()
    order = torch.tensor([0, 2, 1])  # the first slot stays, because the other heads are about it
    base, slots, properties = SHAPE.split(obs)
    permuted = torch.cat((base, slots[..., order, :].flatten(-2), properties[..., order, :, :].flatten(-3)), dim=-1)
    straight = outputs(network, obs, blueprints, everything_legal(SHAPE))
    other = outputs(network, permuted, blueprints[..., order], everything_legal(SHAPE))
    assert not torch.allclose(straight["slot"], other["slot"])
    torch.testing.assert_close(straight.pop("slot")[:, order], other.pop("slot"))
    torch.testing.assert_close(straight, other)


def test_permuting_blueprints_permutes_the_blueprint_head_and_nothing_else() -> None:
    network, (obs, blueprints, _, _) = built(), inputs()
    order = torch.randperm(BLUEPRINTS, generator=torch.Generator().manual_seed(3))
    base, slots, properties = SHAPE.split(obs)
    permuted = torch.cat((base, slots.flatten(-2), properties[..., order, :].flatten(-3)), dim=-1)
    codes = torch.cat((torch.zeros(1, dtype=torch.int64), 1 + order.argsort()))[blueprints]
    straight = outputs(network, obs, blueprints, everything_legal(SHAPE))
    other = outputs(network, permuted, codes, everything_legal(SHAPE))
    assert not torch.allclose(straight["blueprint"], other["blueprint"])
    torch.testing.assert_close(straight.pop("blueprint")[:, order], other.pop("blueprint"))
    torch.testing.assert_close(straight, other)


def test_weights_fit_any_number_of_slots_and_an_absent_slot_changes_nothing() -> None:
    network, (obs, blueprints, _, _) = built(), inputs()
    wider = ObservationShape(SLOTS + 2, BLUEPRINTS)
    other = PolicyNetwork(wider, hidden=16)
    other.load_state_dict(network.state_dict())
    more = torch.zeros(ENVS, STEPS, wider.size)
    for part, found in zip(wider.split(more), SHAPE.split(obs), strict=True):
        part[tuple(slice(size) for size in found.shape)] = found
    codes = torch.cat((blueprints, torch.zeros(ENVS, STEPS, 2, dtype=torch.int64)), dim=-1)
    masks = everything_legal(wider)
    masks.slot_EOS[..., SLOTS:] = False
    found = outputs(other, more, codes, masks)
    found["slot"] = found["slot"][:, :SLOTS]
    torch.testing.assert_close(found, outputs(network, obs, blueprints, everything_legal(SHAPE)))


def test_planted_blueprint_is_known_by_its_properties() -> None:
    network, (obs, blueprints, _, _) = built(), inputs()
    changed = obs.clone()
    properties = SHAPE.split(changed)[2]
    planted = blueprints[0, -1, 0]
    properties[0, -1, 0, max(int(planted) - 1, 0)] += 1.0
    one, other = (outputs(network, given, blueprints, everything_legal(SHAPE)) for given in (obs, changed))
    assert torch.equal(one["op"][1:], other["op"][1:])
    assert torch.equal(one["op"][0], other["op"][0]) == (planted == 0)


def test_blueprint_and_style_heads_choose_what_the_slot_offers() -> None:
    """Slot 0 offers the blueprints 0 and 1, slot 1 only blueprint 6, and slot 2 no GATE style."""
    offered = torch.zeros(SLOTS, BLUEPRINTS, dtype=torch.bool)
    offered[0, :2] = offered[1, 6] = offered[2, 3:5] = True
    styles = torch.ones(SLOTS, len(BLEND_STYLES), dtype=torch.bool)
    styles[2, 3] = False
    network = PolicyNetwork(SHAPE, hidden=16)
    network.initialise(torch.Generator().manual_seed(0))
    masks = ActionMasks.empty(200, slots=SLOTS, blueprints=BLUEPRINTS)
    masks.op_EO[:, Op.GERMINATE] = True
    masks.slot_EOS[:, Op.GERMINATE] = True
    masks.blueprint_ESB[:] = offered
    masks.style_ESY[:] = styles
    uniform = torch.rand(200, len(HEADS), generator=torch.Generator().manual_seed(1))
    widths = [(16,), (SLOTS, SLOT_WIDTH), (SLOTS, BLUEPRINTS, BLUEPRINT_FEATURES)]
    features = Features(*(torch.randn(200, *width) for width in widths))
    actions, _, choice = network.act(features, masks, uniform)
    evaluation = network.evaluate(features, actions, given(masks, actions))
    torch.testing.assert_close(choice.log_prob_H, evaluation.log_prob_H)
    torch.testing.assert_close(choice.value, evaluation.value)
    slot, blueprint, style = actions[:, 1], actions[:, 2], actions[:, 3]
    assert set(slot.tolist()) == {0, 1, 2}
    assert bool(offered[slot, blueprint].all())
    assert bool(styles[slot, style].all())
    assert not evaluation.has_choice_H[slot == 1, 2].any()
    assert evaluation.log_prob_H[slot == 1, 2].abs().max() == 0.0
