"""The policy `plan`: takes the ops of a plan in every env, and advances its seeds as soon as their gates allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from esper.common.configuration.config import ConfigError
from esper.common.decisions import GERMINATE, PlannedDecision
from esper.common.domain import Op
from esper.networks.seeds.site import SlotSite
from esper.training.policy.actions import WAITING, Action, ChosenAction, action_of
from esper.training.policy.agent import EnvStatus
from esper.training.policy.baselines import NonLearningAgent, advance_action
from esper.training.policy.plan import check_names, plan_error


class PlanAgent(NonLearningAgent):
    """Takes each decision of a plan at its step; one that is illegal then is taken as soon as it is legal.

    A decision for a slot that an env does not have, or for a blueprint that its slot does not offer, is left out, and
    so is the cull of such a seed: envs of a family differ. A due decision goes before everything else. In a step
    without one, the first seed that can is fossilized, unless the plan culls it later; else the first that can is
    advanced.

    Args:
        plan: Decisions of the plan, in the order of their steps.
        blueprints: Blueprints that the policy can select, in the order of the head.

    Raises:
        ConfigError: A slot does not exist, does not offer the blueprint, or an option has no such choice.
    """

    def __init__(self, plan: Sequence[PlannedDecision], sites: Sequence[SlotSite], blueprints: Sequence[str]) -> None:
        self._blueprints = blueprints
        check_names(plan, {site.name: site.blueprints for site in sites})
        self._planned = [(planned.step - 1, _action(planned, sites, blueprints)) for planned in plan]
        """Index of the step, from 0, and action of each decision of the plan."""
        self._done: dict[int, int] = {}
        """Number of planned decisions that each env has taken in this episode, keyed by its index."""

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Start the plan again."""
        self._done = {}

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return the due action of every env, or the one that advances a seed."""
        return [ChosenAction(self._decide(step, view)) for view in views]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of planned decisions that each env has taken, keyed by its index."""
        return {str(env): done for env, done in self._done.items()}

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Restore the result of `state_dict`."""
        self._done = {int(env): done for env, done in state.items()}

    def _decide(self, step: int, view: EnvStatus) -> Action:
        done = self._done.get(view.env, 0)
        fits = self._fitting([slot.site for slot in view.slots])
        while done < len(self._planned) and not fits[done]:
            done += 1
        if done < len(self._planned):
            due, action = self._planned[done]
            slot = view.slots[action.slot]
            if due <= step and (slot.can_cull if action.op == Op.CULL else slot.can_germinate):
                self._done[view.env] = done + 1
                return action
        left = zip(self._planned[done:], fits[done:], strict=True)
        culled_later = {action.slot for (_, action), fit in left if fit and action.op == Op.CULL}
        return advance_action(view.slots, culled_later) or WAITING.action

    def _fitting(self, sites: Sequence[SlotSite]) -> list[bool]:
        """Return for each decision of the plan True if an env with these slots takes it."""
        fits: list[bool] = []
        left_out: set[int] = set()
        """Slots whose last planned seed is left out."""
        for _, action in self._planned:
            if action.op == Op.CULL:
                fits.append(action.slot < len(sites) and action.slot not in left_out)
                continue
            offered = sites[action.slot].blueprints if action.slot < len(sites) else ()
            fits.append(self._blueprints[action.blueprint] in offered)
            (left_out.discard if fits[-1] else left_out.add)(action.slot)
        return fits


def _action(planned: PlannedDecision, sites: Sequence[SlotSite], blueprints: Sequence[str]) -> Action:
    """Return the action of a planned decision."""
    decision = planned.decision
    try:
        action = action_of(decision, [site.name for site in sites], blueprints)
    except ConfigError as error:
        raise plan_error(planned, error) from None
    if decision.op == GERMINATE and not sites[action.slot].styles[action.style]:
        raise plan_error(
            planned, f"{decision.style} would mix later positions into earlier ones, which this host does not"
        )
    return action
