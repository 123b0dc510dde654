"""Occlusion: how the probabilities of a decision change when one group of features is replaced by its mean.

The method is that of Zeiler and Fergus (2014), "Visualizing and understanding convolutional networks", section 4.2.

Shapes: T steps, S slots, H heads, F features, G groups of features, R rows: the decision, then one per group.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from esper.common.domain import HEADS, HEADS_BY_OP, Op
from esper.training.policy.actions import Action
from esper.training.policy.masks import ActionMasks
from esper.training.policy.network import Features, PolicyNetwork
from esper.training.policy.observation import BASE_GROUPS, PLACE_FEATURES, ObservationShape

HOST, SEEDS, BLUEPRINTS = "host and data", "seeds", "blueprints"
"""Groups that have features outside the base features: places of the slots, their seeds, properties of blueprints."""
MEMORY = "memory"
"""Name for the state of the LSTM before the last step, which is replaced by its initial state."""


class Explanation(NamedTuple):
    """A decision, and probabilities of its choices, keyed by head. Heads that the op does not use are absent."""

    action: Action
    probabilities: dict[str, float]
    without: dict[str, dict[str, float]]
    """Probabilities of the same choices after one group was replaced, keyed by group."""


@runtime_checkable
class ExplainingAgent(Protocol):
    """An agent that can explain its decisions."""

    def explain(self, row: int, step: int) -> Explanation:
        """Explain a decision of the round in progress.

        Args:
            row: Row of the env among those of this rank.
        """
        ...


@torch.no_grad()
def explain_decision(
    network: PolicyNetwork, obs_TF: Tensor, blueprint_TS: Tensor, masks: ActionMasks, actions_H: Tensor
) -> Explanation:
    """Explain the last decision of an env.

    Each row changes one group of features in the last observation. For `MEMORY` the observation stays as it is, and the
    LSTM starts from its initial state.

    Args:
        obs_TF: Observations since the start of the episode, normalised, so that the mean of a feature is 0.
        blueprint_TS: Blueprint of each slot, 1 + its index; 0 for an empty slot.
        masks: Masks of the last step, [1, ...].
        actions_H: Choices of the last step.
    """
    groups = feature_groups(network.shape)
    replaced_GF = torch.stack(list(groups.values())).to(obs_TF.device)
    rows = 1 + len(groups)
    obs_RTF = obs_TF.repeat(rows, 1, 1)
    obs_RTF[1:, -1].masked_fill_(replaced_GF, 0.0)
    blueprint_RTS = blueprint_TS.repeat(rows, 1, 1)
    blueprint_RTS[1 + list(groups).index(SEEDS), -1] = 0
    remembered, _ = network.encode(obs_RTF, blueprint_RTS, network.initial_state(rows))
    forgotten, _ = network.encode(obs_TF[None, -1:], blueprint_TS[None, -1:], network.initial_state(1))
    features = Features(*map(torch.cat, zip(remembered.at_step(-1), forgotten.at_step(-1), strict=True)))
    legal_HA = masks.given(actions_H[:1], actions_H[1:2])
    evaluation = network.evaluate(features, actions_H.repeat(rows + 1, 1), legal_HA.expand(rows + 1, -1, -1))
    # PyTorch does not annotate `tolist`.
    action = Action(*cast("Any", actions_H).tolist())
    used = HEADS_BY_OP[Op(action.op)]
    found_RH: list[list[float]] = cast("Any", evaluation.log_prob_H.exp()).tolist()
    by_row = [{head: found for head, found in zip(HEADS, row, strict=True) if head in used} for row in found_RH]
    return Explanation(action, by_row[0], dict(zip([*groups, MEMORY], by_row[1:], strict=True)))


def feature_groups(shape: ObservationShape) -> dict[str, Tensor]:
    """Return the features [F] of each group as bool masks, keyed by the name of the group.

    The flags for the existence of a slot and of a blueprint belong to no group.
    """
    starts = dict(zip(BASE_GROUPS, accumulate(BASE_GROUPS.values(), initial=0), strict=False))
    groups = {name: torch.zeros(shape.size, dtype=torch.bool) for name in (*BASE_GROUPS, BLUEPRINTS)}
    for name, mask_F in groups.items():
        base_F, slot_SG, blueprint_SBK = shape.split(mask_F)
        if name in starts:
            base_F[starts[name] : starts[name] + BASE_GROUPS[name]] = True
        slot_SG[:, 1:PLACE_FEATURES] = name == HOST
        slot_SG[:, PLACE_FEATURES:] = name == SEEDS
        blueprint_SBK[..., 1:] = name == BLUEPRINTS
    return groups
