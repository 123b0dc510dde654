"""CandidateAgent: lets the candidate of each env decide: a plan, or a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from torch import Tensor

from esper.common.configuration.config import Config
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.common.user_code.references import user_errors
from esper.networks.tasks.profile import TaskProfile
from esper.recordings.candidates.candidates import BARE_HOST, describe_candidate
from esper.training.engine.agent_factory import build_agent
from esper.training.engine.step import first_group_size
from esper.training.lanes.errors import FaultError
from esper.training.policy.actions import WAITING, Action, ChosenAction
from esper.training.policy.agent import ALL_ENVS, Agent, EnvStatus, strip_prefix
from esper.training.policy.baselines import NonLearningAgent, StaticAgent
from esper.training.policy.plan import PLAN


class _OwnRows(RankGroup):
    """Ranks that each have rows for all envs. The rows of the envs of other ranks are ignored."""

    def __init__(self, ranks: RankGroup) -> None:
        super().__init__(ranks.rank, ranks.world_size, lambda _: None)
        self._ranks = ranks

    def all_gather_rows(self, rows_E: Tensor) -> Tensor:
        """Gather the rows of the envs of every rank."""
        return self._ranks.all_gather_rows(self._ranks.local_rows(rows_E))


class CandidateAgent(NonLearningAgent):
    """Decides for each env by the agent of its candidate. Envs without a candidate wait.

    A policy decides for as many envs at once as in a run of one rank, because a matrix product may round differently
    for another number of rows. Its decisions for envs of other ranks are ignored.

    Args:
        policies: Agents of the policies that are candidates, keyed by name, for the envs of all ranks.
        build: Function that returns the agent of another candidate, given its plan.
        envs: Number of envs of all ranks.
        own_envs: Indices of the envs of this rank; None: all.

    Attributes:
        actions: Actions of each env of this rank in this round, keyed by its index.
    """

    def __init__(
        self,
        policies: Mapping[str, Agent],
        build: Callable[[str], Agent],
        envs: int,
        own_envs: range | None = None,
    ) -> None:
        self._policies = policies
        self._build = build
        self._envs, self._own_envs = envs, range(envs) if own_envs is None else own_envs
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
        self.actions = {env: [] for env in candidates if env in self._own_envs}

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of every agent."""
        uniforms_ETH = self._of_all_envs(uniforms_ETH)
        for agent in self._agents.values():
            agent.begin_round(uniforms_ETH)

    def _of_all_envs(self, own_ETH: Tensor) -> Tensor:
        """Return rows for all envs: those of this rank, and zeros."""
        rows_ETH = own_ETH.new_zeros(self._envs, *own_ETH.shape[1:])
        rows_ETH[list(self._own_envs)] = own_ETH
        return rows_ETH

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
                group = self._whole_group(views)
                decisions = self._agents[name].act(step, group)
                return [decisions[views[row].env - group[0].env] for row in rows]
            return self._agents[name].act(step, [views[row] for row in rows])
        except user_errors() as error:  # of the user's policy: the trial of this candidate failed
            fault = FaultError.from_exception(error, f"the policy {describe_candidate(name)}")
            fault.env = views[rows[0]].env
        raise fault

    def _whole_group(self, views: Sequence[EnvStatus]) -> list[EnvStatus]:
        """Return the views of a group of the envs of all ranks, given those of this rank.

        A view stands for those of the envs of other ranks, and the decisions for these are ignored.
        """
        second = first_group_size(self._envs)
        start = 0 if views[0].env < second else second
        stop = second if views[-1].env < second else self._envs
        own = {view.env: view for view in views}
        return [own.get(env) or replace(views[0], env=env) for env in range(start, stop)]

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Return the tensors of the agents of this round."""
        return {
            f"{index}.{name}": tensor
            for index, agent in enumerate(self._agents.values())
            for name, tensor in agent.state_tensors(_OwnRows(ranks)).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the candidates of this round, and for each env its actions and the states of the agents."""
        states = [agent.state_dict() for agent in self._agents.values()]
        by_env = {
            str(env): {
                "agents": [state.get(str(env)) for state in states],
                "actions": [list(action) for action in self.actions.get(env, ())],
            }
            for env in self._own_envs
        }
        return {**by_env, ALL_ENVS: [[env, name] for env, name in self._candidates.items()]}

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Restore the candidates of a round, and their states."""
        self.assign(dict(state[ALL_ENVS]))
        self.actions = {env: [Action(*action) for action in state[str(env)]["actions"]] for env in self.actions}
        uniforms_ETH = self._of_all_envs(uniforms_ETH)
        for index, agent in enumerate(self._agents.values()):
            by_env = {str(env): state[str(env)]["agents"][index] for env in self._own_envs}
            own = {env: stored for env, stored in by_env.items() if stored is not None}
            agent.load_state_dict(own, strip_prefix(f"{index}.", tensors), uniforms_ETH)


def build_candidates(config: Config, profile: TaskProfile, ranks: RankGroup = SINGLE_RANK) -> CandidateAgent:
    """Return the agent of a growth.

    Args:
        ranks: Ranks that share the envs.

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
    policies = {name: build(name) for name in proposing_policies(config)}
    return CandidateAgent(policies, build_plan, config.envs, ranks.env_range(config.envs))


def proposing_policies(config: Config) -> list[str]:
    """Return the policies whose own episodes a growth tries: that of the configuration, and the heuristic."""
    return [name for name in dict.fromkeys([config.policy, "heuristic"]) if name not in (PLAN, "static")]
