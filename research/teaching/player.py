"""LessonPlayer: plays the alternatives of contexts side by side on the lanes of a pool, and records lessons.

Shapes: E envs, T steps, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from research.teaching.lessons import Lesson, LessonInfo
from torch import Tensor

from esper.common.decisions import WAIT, Decision, PlannedDecision, write_plan
from esper.common.seeding import EpisodeKey, episode_uniforms, make_generator
from esper.networks.tasks.family import structures_of
from esper.networks.tasks.prepare import PreparedTask
from esper.studies.growth.candidate_agent import CandidateAgent
from esper.studies.simulation.scripted import ScriptedAgent
from esper.training.engine.agent_factory import build_agent, build_trained
from esper.training.engine.episode import Episode, begin_episodes
from esper.training.engine.step import StepResult, play_steps, tick_slots
from esper.training.engine.trained_policy import TrainedPolicy
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action, ChosenAction
from esper.training.policy.agent import Agent, EnvStatus, rows_of
from esper.training.policy.baselines import NonLearningAgent
from esper.training.policy.masks import ActionMasks, write_masks
from esper.training.policy.observation import ObservationShape, write_observation
from esper.training.policy.plan import PLAN

HEURISTIC = "heuristic"
"""Name of the alternative in which the heuristic decides."""


class Alternative(msgspec.Struct, frozen=True):
    """A way to play an episode.

    Attributes:
        then: Decisions after the first ones: a plan, `HEURISTIC`, the name of a policy, or an empty text for waiting.
        first: First decisions. If one is illegal in its context, the env waits.
    """

    then: str = ""
    first: tuple[Decision, ...] = ()

    def __str__(self) -> str:
        """Return the alternative as text: its first decisions as in a plan, then the step from which others follow."""
        if not self.first:
            return self.then
        planned = (PlannedDecision(step, decision) for step, decision in enumerate(self.first, start=1))
        first = write_plan(one for one in planned if one.decision.op != WAIT)
        return f"{first}; from {len(self.first) + 1}: {self.then or 'wait'}"


class Assignment(NamedTuple):
    """Alternatives to play in one context."""

    context: int
    """Index of the context among those of the random seed."""
    alternatives: Sequence[Alternative]
    rent: float
    """Weight of the rent that policies observe, above 0."""


class LessonPlayer:
    """Plays lessons of one task with a fixed number of steps.

    Args:
        prepared: The task, with a configuration that has the number of steps.
        lanes: Names of the lanes.
        seed: Random seed of the contexts.
        orders: Number of orders in which each alternative is played.
        capacity: Maximum number of episodes that run at the same time.
        software: See `LessonInfo`.
        policies: Trained policies that alternatives can name, keyed by name; None: none.

    Raises:
        CheckpointError: A policy does not fit this version.
        ConfigError: Worker processes cannot be started.
    """

    def __init__(
        self,
        prepared: PreparedTask,
        lanes: Sequence[str],
        *,
        seed: int,
        orders: int,
        capacity: int,
        software: str,
        policies: Mapping[str, TrainedPolicy] | None = None,
    ) -> None:
        ppo = msgspec.structs.replace(prepared.config.ppo, envs_per_host=1)  # each env has the host of its key
        self._config = msgspec.structs.replace(
            prepared.config, seed=seed, context_seed=seed, envs=capacity, reward="simplified", ppo=ppo
        )
        self._prepared = prepared
        self._orders = [EpisodeKey(_order_seed(seed, order), 0, 0) for order in range(orders)]
        self._software = software
        self._policies = {name: self._build_policy(policy) for name, policy in (policies or {}).items()}
        self._pool = EnvPool(prepared.task, prepared.profile, prepared.data, lanes, self._config)

    def close(self) -> None:
        """Stop the threads and workers of the lanes."""
        self._pool.close()

    def play(self, assignments: Sequence[Assignment]) -> list[Lesson]:
        """Play all alternatives of some contexts in every order, and return the lesson of each context.

        Raises:
            FaultError: A lane failed.
            ConfigError: A plan does not fit the task.
        """
        jobs = [
            _Job(assignment, alternative, order._replace(env=assignment.context))
            for assignment in assignments
            for order in self._orders
            for alternative in assignment.alternatives
        ]
        size = self._config.envs
        episodes = [
            episode for first in range(0, len(jobs), size) for episode in self._wave(jobs[first : first + size])
        ]
        lessons: list[Lesson] = []
        for assignment in assignments:
            count = len(self._orders) * len(assignment.alternatives)
            played, episodes = episodes[:count], episodes[count:]
            lessons.append(self._lesson(assignment, played))
        return lessons

    def _wave(self, jobs: Sequence[_Job]) -> list[_Recorded]:
        """Play episodes side by side, one in each env; there are at most as many as envs."""
        config, profile, pool = self._config, self._prepared.profile, self._pool
        pool.reset_loss_scales()
        weights = config.reward_weights
        rents = [job.assignment.rent for job in jobs] + [weights.rent] * (len(pool.envs) - len(jobs))
        episodes = [
            Episode(env, msgspec.structs.replace(config, reward_weights=msgspec.structs.replace(weights, rent=rent)))
            for env, rent in zip(pool.envs, rents, strict=True)
        ]
        keys = [job.key for job in jobs]
        begin_episodes(pool, episodes, dict(zip(pool.envs, keys, strict=False)))
        inner = CandidateAgent(self._policies, self._build, len(episodes))
        inner.assign({env: job.alternative.then for env, job in enumerate(jobs)})
        slots = [site.name for site in profile.sites]
        scripts = [job.alternative.first for job in jobs]
        agent = InputRecorder(
            ScriptedAgent(profile.blueprints, scripts, inner),
            profile.blueprints,
            len(slots),
            len(episodes),
            config.steps,
        )
        agent.begin_round(episode_uniforms(keys, config.steps, len(episodes)))
        results = _Results(len(episodes), config.steps, [episode.view for episode in episodes])

        def end(result: StepResult) -> None:
            results.add(result)
            tick_slots(result.episodes)

        play_steps(pool, episodes, agent, range(config.steps), end)
        recorded = agent.tensors() | results.tensors()
        return [
            _Recorded(
                structure=structures_of(self._prepared.task)[episodes[row].env.context.structure].name,
                tensors={name: value[row] for name, value in recorded.items()},
            )
            for row in range(len(jobs))
        ]

    def _lesson(self, assignment: Assignment, episodes: Sequence[_Recorded]) -> Lesson:
        """Return the lesson of a context from its episodes, which are sorted by order and alternative."""
        orders = len(self._orders)

        def stack(name: str) -> Tensor:
            stacked = torch.stack([episode.tensors[name] for episode in episodes])
            return stacked.view(orders, len(assignment.alternatives), *stacked.shape[1:])

        return Lesson(
            info=LessonInfo(
                task=episodes[0].structure,
                alternatives=list(map(str, assignment.alternatives)),
                rent=assignment.rent,
                software=self._software,
            ),
            obs_OPTF=stack("obs_ETF"),
            blueprint_OPTS=stack("blueprint_ETS"),
            masks=ActionMasks(*(stack(name) for name in ActionMasks._fields)),
            actions_OPTH=stack("actions_ETH"),
            score_OPT=stack("score_ET"),
            rent_OPT=stack("rent_ET"),
            cost_OPT=stack("cost_ET"),
            valid_OPT=stack("valid_ET"),
        )

    def _build_policy(self, policy: TrainedPolicy) -> Agent:
        profile = self._prepared.profile
        return build_trained(policy, self._config, profile.sites, profile.blueprints)

    def _build(self, then: str) -> Agent:
        """Return the agent of an alternative that is not a policy."""
        policy = then if then == HEURISTIC else PLAN if then else "static"
        config = msgspec.structs.replace(self._config, policy=policy, plan=then if policy == PLAN else "")
        profile = self._prepared.profile
        return build_agent(config, profile.sites, profile.blueprints)


class _Job(NamedTuple):
    """One episode to play."""

    assignment: Assignment
    alternative: Alternative
    key: EpisodeKey


class _Recorded(NamedTuple):
    """One episode that was played."""

    structure: str
    tensors: Mapping[str, Tensor]


class InputRecorder(NonLearningAgent):
    """Records the decisions of another agent, with the inputs of a policy network in their place.

    Args:
        agent: Agent that decides.
        blueprints: Blueprints that the policy can select, in the order of the head.
        slots: Number of slots.
        envs: Number of envs.
        steps: Number of steps of an episode.
    """

    def __init__(self, agent: Agent, blueprints: Sequence[str], slots: int, envs: int, steps: int) -> None:
        self._agent = agent
        self._blueprints = tuple(blueprints)
        shape = ObservationShape(slots, len(blueprints))
        self._obs_ETF = torch.zeros(envs, steps, shape.size)
        self._blueprint_ETS = torch.zeros(envs, steps, slots, dtype=torch.int64)
        self._masks = ActionMasks.empty(envs, steps, slots=slots, blueprints=len(blueprints))
        self._actions_ETH = torch.zeros(envs, steps, len(Action._fields), dtype=torch.int64)

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of the agent."""
        self._agent.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Record the inputs of a step, and return the agent's decisions."""
        rows = rows_of(views, 0)
        write_observation(views, self._obs_ETF[rows, step], self._blueprint_ETS[rows, step], self._blueprints)
        write_masks(views, ActionMasks(*(mask[rows, step] for mask in self._masks)), self._blueprints)
        decisions = self._agent.act(step, views)
        self._actions_ETH[rows, step] = torch.tensor([decision.action for decision in decisions])
        return decisions

    def tensors(self) -> dict[str, Tensor]:
        """Return the records of the round, [E, T, …], keyed by name."""
        inputs = {"obs_ETF": self._obs_ETF, "blueprint_ETS": self._blueprint_ETS, "actions_ETH": self._actions_ETH}
        return inputs | self._masks._asdict()


class _Results:
    """Records the outcomes of episodes, step by step.

    Args:
        views: Views of the envs before the first step.
    """

    def __init__(self, envs: int, steps: int, views: Sequence[EnvStatus]) -> None:
        def zeros(steps: int) -> Tensor:
            return torch.zeros(envs, steps, dtype=torch.float64)

        self._score_ET, self._rent_ET, self._cost_ET = zeros(steps + 1), zeros(steps), zeros(steps)
        self._valid_ET = torch.zeros(envs, steps, dtype=torch.bool)
        self._score_ET[:, :] = torch.tensor([view.scores[0] for view in views], dtype=torch.float64).unsqueeze(1)

    def add(self, result: StepResult) -> None:
        """Add a step of some envs. The score of an env that broke down keeps its last value."""
        step = result.step
        for episode, outcome in zip(result.episodes, result.outcomes, strict=True):
            if outcome is None:
                continue
            env, parts = episode.env.index, outcome.reward_parts
            self._valid_ET[env, step] = True
            self._score_ET[env, step + 1 :] = self._score_ET[env, step] + parts["score"]
            self._rent_ET[env, step] = -parts["rent"] / episode.view.rent_weight
            self._cost_ET[env, step] = -parts["op"] - parts.get("penalty", 0.0)

    def tensors(self) -> dict[str, Tensor]:
        """Return the outcomes [E, T] and the scores [E, T + 1], keyed by name."""
        return {
            "score_ET": self._score_ET,
            "rent_ET": self._rent_ET,
            "cost_ET": self._cost_ET,
            "valid_ET": self._valid_ET,
        }


def _order_seed(seed: int, order: int) -> int:
    """Return the random seed of the episodes of an order, given that of the contexts."""
    return make_generator(seed, "lesson", order).initial_seed()
