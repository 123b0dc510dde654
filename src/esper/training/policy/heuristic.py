"""The heuristic: hand-written rules for growing, based on the same measurements that PPO observes.

In each step, the first rule that applies to a slot decides: fossilize a seed on which the score depends; cull one on
which it does not; advance one that can; plant a seed in the first empty slot if the loss has plateaued, no seed is in
isolation, and enough steps remain. Blueprints rotate; one that was culled is avoided for some steps. The numbers of the
rules were chosen by net return on the validation split of `digits_impaired`, in 540 episodes of 40 steps on training
hosts, with a rent of 0.002: `research/tune_heuristic.py --seed 50 --episodes 560`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from esper.common.domain import Op, Stage
from esper.networks.seeds.blend import RAMP_EPOCHS
from esper.networks.seeds.slot import Slot
from esper.training.policy.actions import WAITING, Action, ChosenAction
from esper.training.policy.agent import EnvStatus
from esper.training.policy.baselines import NonLearningAgent, germinate_action

CULL_PENALTY = 64.0
"""Penalty added to a blueprint when a seed of it is culled; it halves every step."""
MAX_PENALTY = 1.0
"""Maximum penalty of a blueprint to plant. A cull exceeds it for five steps."""


@dataclass(frozen=True, kw_only=True)
class HeuristicRules:
    """Numbers of the rules. The defaults were chosen by `research/tune_heuristic.py`.

    Attributes:
        rotation: Blueprints to plant, in turn. A slot that offers none of them gets those that it offers.
        plateau_drop: Relative drop of the validation loss over two steps, below which it has plateaued.
        min_remaining: Minimum rest of the episode, as a fraction of its steps, in which a new seed can earn its rent.
        min_dependence: Minimum dependence of the score on a seed to fossilize, as a fraction.
        trial_steps: Number of steps at the target alpha after which a seed is fossilized or culled.
    """

    rotation: tuple[str, ...] = ("depthwise",)
    plateau_drop: float = 0.05
    min_remaining: float = 0.375
    min_dependence: float = 0.005
    trial_steps: int = 1


@dataclass
class _Memory:
    """State of one env within an episode: number of seeds planted, and the penalty of each culled blueprint."""

    planted: int = 0
    penalties: dict[str, float] = field(default_factory=dict[str, float])


DEFAULT_RULES = HeuristicRules()


class HeuristicAgent(NonLearningAgent):
    """Plants, advances, culls and fossilizes seeds by fixed rules.

    Args:
        blueprints: Blueprints that the policy can select, in the order of the head.
    """

    def __init__(self, blueprints: Sequence[str], rules: HeuristicRules = DEFAULT_RULES) -> None:
        self._blueprints = blueprints
        self._rules = rules
        self._memory: dict[int, _Memory] = {}

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Clear the state of the last episode. The heuristic uses no random numbers."""
        self._memory = {}

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Apply the rules to every env."""
        return [ChosenAction(self._decide(view)) for view in views]

    def state_dict(self) -> dict[str, Any]:
        """Return the planted seeds and penalties of each env, keyed by its index."""
        return {str(env): asdict(memory) for env, memory in self._memory.items()}

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Restore the result of `state_dict`."""
        self._memory = {int(env): _Memory(**memory) for env, memory in state.items()}

    def _decide(self, view: EnvStatus) -> Action:
        rules, memory = self._rules, self._memory.setdefault(view.env, _Memory())
        memory.penalties = {name: value / 2 for name, value in memory.penalties.items()}
        for index, slot in enumerate(view.slots):
            if slot.can_fossilize and self._is_trial_over(slot) and _depends_on(slot, view, rules):
                return Action(Op.FOSSILIZE, index)
        for index, slot in enumerate(view.slots):
            if slot.can_cull and self._is_trial_over(slot) and slot.blueprint:
                memory.penalties[slot.blueprint] = memory.penalties.get(slot.blueprint, 0.0) + CULL_PENALTY
                return Action(Op.CULL, index, alpha_speed=RAMP_EPOCHS.index(0))
        for index, slot in enumerate(view.slots):
            if slot.can_advance:
                return Action(Op.ADVANCE, index)
        return self._plant(view, memory) or WAITING.action

    def _plant(self, view: EnvStatus, memory: _Memory) -> Action | None:
        rules = self._rules
        empty = next((index for index, slot in enumerate(view.slots) if slot.can_germinate), None)
        isolated = any(slot.stage in (Stage.GERMINATED, Stage.TRAINING) for slot in view.slots)
        is_late = view.steps - view.step < rules.min_remaining * view.steps
        if empty is None or isolated or is_late or not _plateaued(view.losses, rules):
            return None
        offered = [name for name in self._blueprints if name in view.slots[empty].site.blueprints]
        rotation = [name for name in rules.rotation if name in offered] or offered
        turn = memory.planted % len(rotation)
        order = rotation[turn:] + rotation[:turn]
        blueprint = next((name for name in order if memory.penalties.get(name, 0.0) <= MAX_PENALTY), order[0])
        memory.planted += 1
        return germinate_action(empty, self._blueprints.index(blueprint))

    def _is_trial_over(self, slot: Slot) -> bool:
        return slot.stage is Stage.PROBATIONARY and slot.epochs_in_stage >= self._rules.trial_steps


def _depends_on(slot: Slot, view: EnvStatus, rules: HeuristicRules) -> bool:
    # Without counterfactuals, dependences are not measured, and the score counts as dependent on every seed.
    return slot.dependence is None or view.share(slot.dependence) >= rules.min_dependence


def _plateaued(losses: Sequence[float], rules: HeuristicRules) -> bool:
    return len(losses) > 2 and losses[-3] - losses[-1] < rules.plateau_drop * losses[-3]
