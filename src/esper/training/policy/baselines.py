"""Baselines that do not learn: `static`, `random`, `periodic` and `full`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from esper.common.decisions import GERMINATE, Decision
from esper.common.domain import HEADS, HEADS_BY_OP, Op
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.networks.seeds.slot import Slot
from esper.training.policy.actions import WAITING, Action, ChosenAction, action_of, head_sizes
from esper.training.policy.agent import EnvStatus, rows_of
from esper.training.policy.masks import legal_ops, legal_styles

T = TypeVar("T")

DEFAULT_BLUEPRINT = "conv_light"
"""Blueprint that `periodic` and `full` plant: a 3×3 convolution.

It works well in every slot of the impaired hosts, with half the parameters of the best blueprint.
"""
PLANT_INTERVAL_STEPS = 5
"""Number of steps between two seeds of `periodic`."""
_PLANTING = action_of(Decision(GERMINATE), slots=(), blueprints=())
"""Planting with the default options."""


class NonLearningAgent:
    """Base class of agents that do not learn: it has all methods of `Agent` but `act`, and they do nothing."""

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Do nothing."""

    def record_rewards(
        self, step: int, views: Sequence[EnvStatus], rewards: Sequence[float | None], terminated: Sequence[bool]
    ) -> None:
        """Do nothing."""

    def learn(self, views: Sequence[EnvStatus], round_index: int, generator: torch.Generator) -> None:
        """Return None: this agent does not learn."""

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Return an empty dict: this agent has no tensors."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: this agent has no state between steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Begin the round again, because there is no state to restore."""
        self.begin_round(uniforms_ETH)


class StaticAgent(NonLearningAgent):
    """Never grows a seed: the bare host."""

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return WAIT for every env."""
        return [WAITING] * len(views)


class RandomAgent(NonLearningAgent):
    """Draws an op uniformly from the legal ones, then the slot, then the other heads.

    Args:
        blueprints: Blueprints that the policy can select, in the order of the head.
        first_env: Index of the first env of this process.
    """

    def __init__(self, blueprints: Sequence[str], first_env: int = 0) -> None:
        self._blueprints = blueprints
        self._first_env = first_env
        self._uniform_ETH = torch.empty(0)

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Store the random numbers of the round."""
        self._uniform_ETH = uniforms_ETH

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return a random legal action for every env."""
        rows = rows_of(views, self._first_env)
        # PyTorch does not annotate `tolist`.
        uniform_EH: list[list[float]] = cast("Any", self._uniform_ETH[rows, step]).tolist()
        return [self._choose(view, uniform_H) for view, uniform_H in zip(views, uniform_EH, strict=True)]

    def _choose(self, view: EnvStatus, uniform_H: Sequence[float]) -> ChosenAction:
        legal_SO = [legal_ops(slot) for slot in view.slots]
        ops = [op for op in Op if any(row[op] for row in legal_SO)]
        op = _draw(ops, uniform_H[0])
        if op is Op.WAIT:
            return WAITING._replace(op_probabilities=dict.fromkeys(ops, 1 / len(ops)))
        slots = [index for index, row in enumerate(legal_SO) if row[op]]
        slot = _draw(slots, uniform_H[1])
        chosen: dict[str, int] = {"op": op, "slot": slot}
        options = {"op": len(ops), "slot": len(slots)}
        sizes = head_sizes(len(view.slots), len(self._blueprints))
        for index, (head, size) in enumerate(zip(HEADS, sizes, strict=True)):
            if index < 2 or head not in HEADS_BY_OP[op]:
                continue
            legal = range(size)
            if head == "style":
                allowed = legal_styles(view.slots[slot])
                legal = [style for style, is_legal in enumerate(allowed) if is_legal]
            elif head == "blueprint":
                legal = [self._blueprints.index(name) for name in view.slots[slot].site.blueprints]
            chosen[head], options[head] = _draw(legal, uniform_H[index]), len(legal)
        return ChosenAction(
            Action(**chosen),
            op_probabilities=dict.fromkeys(ops, 1 / len(ops)),
            head_probabilities=[1 / options.get(head, 1) for head in HEADS],
        )


def _draw(options: Sequence[T], uniform: float) -> T:
    return options[int(uniform * len(options))]


class PeriodicAgent(NonLearningAgent):
    """Plants a seed in the first empty slot every `period` steps, and advances each seed as soon as its gates allow.

    With period 1 it is the baseline `full`, which plants a seed in every slot in the first steps, one per step.

    Args:
        blueprints: Blueprints that the policy can select, in the order of the head. The agent plants
            `DEFAULT_BLUEPRINT`, or the first one that the slot offers if it does not offer this one.
        period: Number of steps between two seeds.
    """

    def __init__(self, blueprints: Sequence[str], period: int) -> None:
        self._blueprints = blueprints
        self._period = period

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """For every env, plant a seed if it is due; else fossilize the first seed that can; else advance the first."""
        return [ChosenAction(self._decide(step, view)) for view in views]

    def _decide(self, step: int, view: EnvStatus) -> Action:
        if step % self._period == 0:
            for index, slot in enumerate(view.slots):
                if slot.can_germinate:
                    offered = [name for name in self._blueprints if name in slot.site.blueprints]
                    name = DEFAULT_BLUEPRINT if DEFAULT_BLUEPRINT in offered else offered[0]
                    return germinate_action(index, self._blueprints.index(name))
        return advance_action(view.slots) or WAITING.action


def advance_action(slots: Sequence[Slot], trial: Container[int] = ()) -> Action | None:
    """Return the action that fossilizes the first seed that can be; else, that advances the first; None without one.

    Args:
        slots: Slots of an env, `EnvStatus.slots`.
        trial: Indices of the slots whose seed is not fossilized.
    """
    for index, slot in enumerate(slots):
        if slot.can_fossilize and index not in trial:
            return Action(Op.FOSSILIZE, index)
    for index, slot in enumerate(slots):
        if slot.can_advance:
            return Action(Op.ADVANCE, index)
    return None


def germinate_action(slot: int, blueprint: int) -> Action:
    """Return the action that plants a seed with the default options: added, to alpha 1, by the shortest linear ramp.

    Args:
        slot: Index of an empty slot in `EnvStatus.slots`.
        blueprint: Index of the blueprint in those that the policy was built with.
    """
    return _PLANTING._replace(slot=slot, blueprint=blueprint)
