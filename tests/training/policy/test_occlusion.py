"""Occlusion: each group replaces exactly its own features, and only for the last observation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper.common.domain import Op
from esper.training.policy.masks import ActionMasks
from esper.training.policy.network import PolicyNetwork
from esper.training.policy.observation import BASE_FEATURES, BASE_GROUPS, ObservationShape
from esper.training.policy.occlusion import MEMORY, explain_decision, feature_groups

SHAPE = ObservationShape(slots=2, blueprints=3)
STEPS = 4
GERMINATE = torch.tensor([Op.GERMINATE, 1, 2, 0, 0, 0, 0, 0])


def network() -> PolicyNetwork:
    """Return a network with random weights of the heads, whose probabilities differ from uniform."""
    found = PolicyNetwork(SHAPE, hidden=16)
    found.initialise(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return found


def observations(steps: int = STEPS) -> tuple[Tensor, Tensor, ActionMasks]:
    obs_TF = torch.randn(steps, SHAPE.size, generator=torch.Generator().manual_seed(2))
    _, slot_TSG, blueprint_TSBK = SHAPE.split(obs_TF)
    slot_TSG[..., 0] = blueprint_TSBK[..., 0] = 1.0
    blueprint_TS = torch.tensor([[1, 0]] * steps)
    masks = ActionMasks.empty(1, slots=SHAPE.slots, blueprints=SHAPE.blueprints)
    for mask in masks:
        mask[:] = True
    return obs_TF, blueprint_TS, masks


def ignore(policy: PolicyNetwork, features: slice) -> None:
    """Zero the weights of some base features."""
    with torch.no_grad():
        policy.encoder[0].weight[:, features] = 0.0  # pyright: ignore[reportIndexIssue]


def test_groups_are_disjoint_and_leave_only_the_flags() -> None:
    masks = torch.stack(list(feature_groups(SHAPE).values()))
    assert (masks.sum(dim=0) <= 1).all()
    base_F, slot_SG, blueprint_SBK = SHAPE.split(~masks.any(dim=0))
    assert not base_F.any()
    assert slot_SG.nonzero()[:, 1].unique().tolist() == blueprint_SBK.nonzero()[:, 2].unique().tolist() == [0]


@pytest.mark.parametrize("group", sorted(BASE_GROUPS.keys() - {"seeds", "host and data"}))
def test_features_that_the_policy_ignores_change_nothing(group: str) -> None:
    policy, start = network(), list(BASE_GROUPS).index(group)
    before = sum(list(BASE_GROUPS.values())[:start])
    ignore(policy, slice(before, before + BASE_GROUPS[group]))
    found = explain_decision(policy, *observations(), GERMINATE)
    assert found.without[group] == pytest.approx(found.probabilities, abs=1e-6)
    for other in BASE_GROUPS.keys() - {group}:
        assert found.without[other] != pytest.approx(found.probabilities, abs=1e-4), other


def test_memory_matters_if_inputs_are_ignored() -> None:
    policy = network()
    ignore(policy, slice(0, BASE_FEATURES + 128))
    found = explain_decision(policy, *observations(), GERMINATE)
    assert found.without["progress"]["op"] == pytest.approx(found.probabilities["op"], abs=1e-6)
    assert found.without[MEMORY]["op"] != pytest.approx(found.probabilities["op"], abs=1e-4)


def test_first_step_has_no_memory() -> None:
    found = explain_decision(network(), *observations(steps=1), GERMINATE)
    assert found.without[MEMORY] == pytest.approx(found.probabilities, abs=1e-6)


def test_explains_only_the_heads_that_the_op_uses() -> None:
    wait = explain_decision(network(), *observations(), torch.zeros(8, dtype=torch.int64))
    assert list(wait.probabilities) == ["op"]
    planted = explain_decision(network(), *observations(), GERMINATE)
    assert list(planted.probabilities) == ["op", "slot", "blueprint", "style", "tempo", "alpha_target"]
    assert all(list(values) == list(planted.probabilities) for values in planted.without.values())
