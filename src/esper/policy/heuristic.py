"""The heuristic: a person's rules for growing, over all slots of an env, on the same measurements as PPO sees.

In order: make permanent what contributes; remove what does not; advance what may; plant in the first empty slot when
the loss hardly falls, no seed is still in isolation, and there is time. Blueprints rotate; one that was removed is
avoided for a while. The thresholds were chosen by net return on the validation split of `digits_impaired` and `digits`,
on episodes of 25 steps that `evaluate` does not use, at a rent of 0.004.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from esper.domain import Op, Stage
from esper.growth.blend import RAMP_EPOCHS
from esper.growth.slot import Slot
from esper.policy.actions import WAIT_DECISION, Action, Decision
from esper.policy.agent import EnvStatus
from esper.policy.baselines import NonLearningAgent, germinate_action

BLUEPRINT_ROTATION = ("conv_light", "conv_heavy")
"""Blueprints that it plants, in turn."""
PLATEAU_REL_DROP = 0.1
"""Relative fall of the validation loss over two steps below which it has plateaued."""
MIN_REMAINING_STEPS = 10
"""Steps that must be left of the episode for a new seed to be worth its rent."""
MIN_CONTRIBUTION = 0.005
"""Contribution, in accuracy, above which a seed is made permanent."""
TRIAL_STEPS = 2
"""Steps at full alpha before a seed is judged."""
CULL_PENALTY = 64.0
"""Added to a blueprint when a seed of it is removed; halves every step."""
MAX_PENALTY = 1.0
"""Penalty above which a blueprint is passed over: for five steps after a removal."""


@dataclass
class _Memory:
    """What the heuristic remembers of one env within an episode."""

    planted: int = 0
    penalties: dict[str, float] = field(default_factory=dict)


class HeuristicAgent(NonLearningAgent):
    """Plants, advances, removes and makes permanent by rule.

    Args:
        blueprints: those on offer, in the order of the action's head.
        rotation: those that it plants, in turn; where none of them is on offer, all that are.
    """

    def __init__(self, blueprints: Sequence[str], rotation: Sequence[str] = BLUEPRINT_ROTATION) -> None:
        self._blueprints = blueprints
        self._rotation = [name for name in rotation if name in blueprints] or list(blueprints)
        self._memory: dict[int, _Memory] = {}

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Forget the last episode. The heuristic draws no random numbers."""
        self._memory = {}

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Decide by rule for every env."""
        return [Decision(self._decide(view)) for view in views]

    def state_dict(self) -> dict[str, Any]:
        """What it remembers of each env."""
        return {str(env): asdict(memory) for env, memory in self._memory.items()}

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Remember again."""
        self._memory = {int(env): _Memory(**memory) for env, memory in state.items()}

    def _decide(self, view: EnvStatus) -> Action:
        memory = self._memory.setdefault(view.env, _Memory())
        memory.penalties = {name: value / 2 for name, value in memory.penalties.items()}
        for index, slot in enumerate(view.slots):
            if slot.can_fossilize and _is_trial_over(slot) and _contributes(slot):
                return Action(Op.FOSSILIZE, index)
        for index, slot in enumerate(view.slots):
            if slot.can_cull and _is_trial_over(slot) and slot.blueprint:
                memory.penalties[slot.blueprint] = memory.penalties.get(slot.blueprint, 0.0) + CULL_PENALTY
                return Action(Op.CULL, index, alpha_speed=RAMP_EPOCHS.index(0))
        for index, slot in enumerate(view.slots):
            if slot.can_advance:
                return Action(Op.ADVANCE, index)
        return self._plant(view, memory) or WAIT_DECISION.action

    def _plant(self, view: EnvStatus, memory: _Memory) -> Action | None:
        empty = next((index for index, slot in enumerate(view.slots) if slot.can_germinate), None)
        isolated = any(slot.stage in (Stage.GERMINATED, Stage.TRAINING) for slot in view.slots)
        if empty is None or isolated or view.steps - view.step < MIN_REMAINING_STEPS or not _plateaued(view.losses):
            return None
        turn = memory.planted % len(self._rotation)
        order = self._rotation[turn:] + self._rotation[:turn]
        blueprint = next((name for name in order if memory.penalties.get(name, 0.0) <= MAX_PENALTY), order[0])
        memory.planted += 1
        return germinate_action(empty, self._blueprints.index(blueprint))


def _is_trial_over(slot: Slot) -> bool:
    """Blended in for long enough."""
    return slot.stage is Stage.PROBATIONARY and slot.epochs_in_stage >= TRIAL_STEPS


def _contributes(slot: Slot) -> bool:
    """What cannot be measured, because counterfactuals are off, is given the benefit of the doubt."""
    return slot.contribution is None or slot.contribution >= MIN_CONTRIBUTION


def _plateaued(losses: Sequence[float]) -> bool:
    """The loss fell by less than `PLATEAU` of itself over the last two steps."""
    return len(losses) > 2 and losses[-3] - losses[-1] < PLATEAU_REL_DROP * losses[-3]
