"""CandidateAgent: lets the candidate of each env decide: a plan, or a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor

from esper.common.configuration.config import Config
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.common.user_code.references import user_errors
from esper.networks.tasks.profile import TaskProfile
from esper.recordings.candidates.candidates import BARE_HOST, describe_candidate
from esper.training.engine.agent_factory import build_agent
from esper.training.lanes.errors import FaultError
from esper.training.policy.actions import WAITING, Action, ChosenAction
from esper.training.policy.agent import Agent, EnvStatus, strip_prefix
from esper.training.policy.baselines import NonLearningAgent, StaticAgent
from esper.training.policy.plan import PLAN


class CandidateAgent(NonLearningAgent):
    """Decides for each env by the agent of its candidate. Envs without a candidate wait.

    Args:
        policies: Agents of the policies that are candidates, keyed by name.
        build: Function that returns the agent of another candidate, given its plan.

    Attributes:
        actions: Actions of each env in this round, keyed by its index.
    """

    def __init__(self, policies: Mapping[str, Agent], build: Callable[[str], Agent]) -> None:
        self._policies = policies
        self._build = build
        self._agents: dict[str, Agent] = {}
        """Agents of the candidates of this round, keyed by name."""
        self._candidates: dict[int, str] = {}
        """Name of the candidate of each env of this round, keyed by its index."""
        self.actions: dict[int, list[Action]] = {}

    def assign(self, candidates: Mapping[int, str]) -> None:
        """Set the candidates of the next round.

        Args:
            candidates: Name of each candidate, keyed by the index of its env.

        Raises:
            ConfigError: A plan does not fit the task.
        """
        self._candidates = dict(candidates)
        names = dict.fromkeys(candidates.values())
        self._agents = {name: self._policies.get(name) or self._build(name) for name in names}
        self.actions = {env: [] for env in candidates}

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of every agent."""
        for agent in self._agents.values():
            agent.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return the decision of each env's candidate.

        Raises:
            FaultError: A policy failed; the fault names the first env of this candidate.
        """
        found = [WAITING] * len(views)
        for name in self._agents:
            rows = [row for row, view in enumerate(views) if self._candidates.get(view.env) == name]
            for row, decision in zip(rows, self._decide(name, step, views, rows), strict=True):
                found[row] = decision
                self.actions[views[row].env].append(decision.action)
        return found

    def _decide(self, name: str, step: int, views: Sequence[EnvStatus], rows: Sequence[int]) -> list[ChosenAction]:
        """Return the decisions of a candidate for its envs, whose rows are given. Raises FaultError."""
        if not rows:
            return []
        try:
            if name in self._policies:  # a policy expects all envs of a group
                decisions = self._agents[name].act(step, views)
                return [decisions[row] for row in rows]
            return self._agents[name].act(step, [views[row] for row in rows])
        except user_errors() as error:  # of the user's policy: the trial of this candidate failed
            fault = FaultError.from_exception(error, f"the policy {describe_candidate(name)}")
            fault.env = views[rows[0]].env
        raise fault

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Return the tensors of the agents of this round."""
        return {
            f"{index}.{name}": tensor
            for index, agent in enumerate(self._agents.values())
            for name, tensor in agent.state_tensors(ranks).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the candidates of this round with their states, keyed by the index of the first env."""
        return {
            "0": {
                "candidates": [[env, name] for env, name in self._candidates.items()],
                "agents": [agent.state_dict() for agent in self._agents.values()],
                "actions": [[env, [list(action) for action in actions]] for env, actions in self.actions.items()],
            }
        }

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Restore the candidates of a round, and their states."""
        stored = state["0"]
        self.assign(dict(stored["candidates"]))
        self.actions = {env: [Action(*action) for action in actions] for env, actions in stored["actions"]}
        for index, (agent, own) in enumerate(zip(self._agents.values(), stored["agents"], strict=True)):
            agent.load_state_dict(own, strip_prefix(f"{index}.", tensors), uniforms_ETH)


def build_candidates(config: Config, profile: TaskProfile) -> CandidateAgent:
    """Return the agent of a growth.

    Raises:
        CheckpointError: The proposing policy is a checkpoint that has none.
        ConfigError: The user's plan does not fit the task, or the user's policy cannot be loaded.
    """

    def build(policy: str, plan: str = "") -> Agent:
        acting = msgspec.structs.replace(config, policy=policy, plan=plan)
        return build_agent(acting, profile.sites, profile.blueprints)

    def build_plan(plan: str) -> Agent:
        return StaticAgent() if plan == BARE_HOST else build(PLAN, plan)

    build_plan(config.plan)
    return CandidateAgent({name: build(name) for name in proposing_policies(config)}, build_plan)


def proposing_policies(config: Config) -> list[str]:
    """Return the policies whose own episodes a growth tries: that of the configuration, and the heuristic."""
    return [name for name in dict.fromkeys([config.policy, "heuristic"]) if name not in (PLAN, "static")]
