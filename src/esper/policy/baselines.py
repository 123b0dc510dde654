"""Baselines that do not learn: `static` never grows, `random` takes any legal action, `periodic` and `full` grow by
plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from esper.domain import HEADS, Op
from esper.growth.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, Blend, Curve
from esper.policy.actions import HEADS_BY_OP, WAIT_DECISION, Action, Decision, head_sizes
from esper.policy.agent import EnvStatus
from esper.policy.masks import legal_ops, legal_styles
from esper.ranks import SINGLE_RANK, RankGroup

T = TypeVar("T")

DEFAULT_BLUEPRINT = "conv_light"
"""The blueprint of the growers by plan: a 3×3 convolution, strong in every slot of the impaired hosts, at half the
parameters of the strongest."""
PLANT_INTERVAL_STEPS = 5
"""Steps between the seeds of `periodic`."""


class NonLearningAgent:
    """What an agent that does not learn answers where learning is asked for."""

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Nothing to prepare."""

    def record_rewards(self, step: int, rewards: Sequence[float | None], ended: Sequence[bool]) -> None:
        """Nothing to learn from."""

    def learn(self, views: Sequence[EnvStatus], round_index: int, generator: torch.Generator) -> None:
        """Nothing learns."""

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Nothing is kept in tensors."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered from step to step."""
        return {}

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Go on as if the round had just begun."""
        self.begin_round(uniforms_ETH)


class StaticAgent(NonLearningAgent):
    """Never grows: the host alone."""

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """WAIT, for every env."""
        return [WAIT_DECISION] * len(views)


class RandomAgent(NonLearningAgent):
    """Draws the op evenly from the legal ones, then the slot, then the rest.

    Args:
        blueprints: number of blueprints on offer.
    """

    def __init__(self, blueprints: int) -> None:
        self._blueprints = blueprints
        self._uniform_ETH = torch.empty(0)

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Keep the round's random numbers."""
        self._uniform_ETH = uniforms_ETH

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """One random legal action for every env."""
        uniform_EH = self._uniform_ETH[:, step].tolist()
        return [self._choose(view, uniform_H) for view, uniform_H in zip(views, uniform_EH, strict=True)]

    def _choose(self, view: EnvStatus, uniform_H: Sequence[float]) -> Decision:
        legal_SO = [legal_ops(slot) for slot in view.slots]
        ops = [op for op in Op if any(row[op] for row in legal_SO)]
        op = _draw(ops, uniform_H[0])
        if op is Op.WAIT:
            return WAIT_DECISION._replace(op_probabilities=dict.fromkeys(ops, 1 / len(ops)))
        slots = [index for index, row in enumerate(legal_SO) if row[op]]
        slot = _draw(slots, uniform_H[1])
        chosen: dict[str, int] = {"op": op, "slot": slot}
        options = {"op": len(ops), "slot": len(slots)}
        sizes = head_sizes(len(view.slots), self._blueprints)
        for index, (head, size) in enumerate(zip(HEADS, sizes, strict=True)):
            if index < 2 or head not in HEADS_BY_OP[op]:
                continue
            legal = range(size)
            if head == "style" and op is Op.SET_ALPHA:
                legal = [style for style, allowed in enumerate(legal_styles(view.slots[slot])) if allowed]
            chosen[head], options[head] = _draw(legal, uniform_H[index]), len(legal)
        return Decision(
            Action(**chosen),
            op_probabilities=dict.fromkeys(ops, 1 / len(ops)),
            head_probabilities=[1 / options.get(head, 1) for head in HEADS],
        )


def _draw(options: Sequence[T], uniform: float) -> T:
    return options[int(uniform * len(options))]


class PeriodicAgent(NonLearningAgent):
    """Plants a seed into the first empty slot every `period` steps, and takes each on as soon as its gates allow.

    With period 1 it is `full`: every slot is sown in the first steps, one a step, which is all that an env can do.

    Args:
        blueprints: those on offer, in the order of the action's head; it plants `STRONG`, or the first where that is
            not among them.
        period: steps from one seed to the next.
    """

    def __init__(self, blueprints: Sequence[str], period: int) -> None:
        self._blueprint = blueprints.index(DEFAULT_BLUEPRINT) if DEFAULT_BLUEPRINT in blueprints else 0
        self._period = period

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Plant when it is time; else make permanent what may be; else advance what may."""
        return [Decision(self._decide(step, view)) for view in views]

    def _decide(self, step: int, view: EnvStatus) -> Action:
        slots = list(enumerate(view.slots))
        if step % self._period == 0:
            for index, slot in slots:
                if slot.can_germinate:
                    return germinate_action(index, self._blueprint)
        for index, slot in slots:
            if slot.can_fossilize:
                return Action(Op.FOSSILIZE, index)
        for index, slot in slots:
            if slot.can_advance:
                return Action(Op.ADVANCE, index)
        return WAIT_DECISION.action


def germinate_action(slot: int, blueprint: int) -> Action:
    """Plant a seed to be added at full strength, along the shortest ramp: how those who plant by rule do it."""
    return Action(
        Op.GERMINATE,
        slot,
        blueprint,
        style=BLEND_STYLES.index((Curve.LINEAR, Blend.ADD)),
        tempo=INITIAL_RAMP_EPOCHS.index(min(INITIAL_RAMP_EPOCHS)),
        alpha_target=ALPHA_TARGETS.index(max(ALPHA_TARGETS)),
    )
