"""ScriptedAgent: takes given decisions, and leaves the others to another policy or to waiting."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from esper.common.decisions import Decision
from esper.training.policy.actions import WAITING, Action, ChosenAction, action_of
from esper.training.policy.agent import Agent, EnvStatus
from esper.training.policy.baselines import NonLearningAgent
from esper.training.policy.masks import is_legal

Script = Sequence[Decision | None]
"""Decision of each step; None leaves the step to the fallback, as do later steps."""


class ScriptedAgent(NonLearningAgent):
    """Takes the decisions of a script in each env. One that is illegal in its env waits.

    Args:
        blueprints: Blueprints that the policy can select, in the order of the head.
        scripts: Script of each env, by its index. All of its choices exist.
        fallback: Decides where a script has nothing; None: the env waits.

    Attributes:
        waited: Steps, from 1, in which each env waited because the decision of its script was illegal.
    """

    def __init__(self, blueprints: Sequence[str], scripts: Sequence[Script], fallback: Agent | None = None) -> None:
        self._blueprints = blueprints
        self._scripts = scripts
        self._fallback = fallback
        self.waited: list[list[int]] = [[] for _ in scripts]

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of the fallback."""
        if self._fallback:
            self._fallback.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return the decision of each env's script, or of the fallback."""
        others = self._fallback.act(step, views) if self._fallback else [WAITING] * len(views)
        return [self._decide(step, view, other) for view, other in zip(views, others, strict=True)]

    def _decide(self, step: int, view: EnvStatus, other: ChosenAction) -> ChosenAction:
        script = self._scripts[view.env] if view.env < len(self._scripts) else ()
        decision = script[step] if step < len(script) else None
        if decision is None:
            return other
        action = self._action(decision, view)
        if action is not None and is_legal(action, view.slots, self._blueprints):
            return ChosenAction(action)
        self.waited[view.env].append(step + 1)
        return WAITING

    def _action(self, decision: Decision, view: EnvStatus) -> Action | None:
        """Return the action of a decision; None if the env has no such slot, as in another context of a family."""
        names = [slot.name for slot in view.slots]
        return action_of(decision, names, self._blueprints) if decision.slot in (None, *names) else None
