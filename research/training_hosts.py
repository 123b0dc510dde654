"""Candidates, played on hosts of a training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from esper.common.configuration.config import Config
from esper.networks.tasks.prepare import PreparedTask
from esper.studies.evaluation.episodes import play_episodes, start_episodes
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import WAITING, ChosenAction
from esper.training.policy.agent import Agent, EnvStatus
from esper.training.policy.baselines import NonLearningAgent

PARALLEL_CANDIDATES = 27
"""Maximum number of candidates that play at the same time: a power of three, as the rungs of successive halving."""


class TrainingHosts:
    """Plays candidates on the hosts that a run with the same random seed trains on: host k is that of round k in env 0.

    All candidates meet the same hosts with the same data order (common random numbers). The test split is not used.

    Args:
        config: Configuration of the run, with its random seed.
        on_step: Called after each step with the number of envs that took it.
    """

    def __init__(
        self, prepared: PreparedTask, config: Config, lanes: Sequence[str], on_step: Callable[[int], None]
    ) -> None:
        ppo = msgspec.structs.replace(config.ppo, envs_per_host=PARALLEL_CANDIDATES)
        # Envs share a host only in the configuration of PPO, which does not act here.
        self._config = msgspec.structs.replace(
            config, envs=PARALLEL_CANDIDATES, reward="simplified", policy="ppo", plan="", ppo=ppo
        )
        self._pool = EnvPool(prepared.task, prepared.profile, prepared.data, lanes, self._config)
        self._on_step = on_step

    def play(self, agents: Sequence[Agent], host: int) -> list[float]:
        """Play one episode of every agent on a host, and return their net returns.

        Args:
            agents: Policies, each for a single env. They may not use random numbers.
        """
        returns: list[float] = []
        for first in range(0, len(agents), PARALLEL_CANDIDATES):
            returns += self._play_part(agents[first : first + PARALLEL_CANDIDATES], host)
        return returns

    def close(self) -> None:
        """Stop the threads and workers of the lanes."""
        self._pool.close()

    def _play_part(self, agents: Sequence[Agent], host: int) -> list[float]:
        episodes = start_episodes(self._pool, self._config, host)
        for episode in episodes[len(agents) :]:
            episode.inactive = True
        play_episodes(
            self._pool, episodes, OneAgentPerEnv(agents), self._config, host, lambda: self._on_step(len(agents))
        )
        return [episode.episode_return for episode in episodes[: len(agents)]]


class OneAgentPerEnv(NonLearningAgent):
    """Lets each agent decide for the env of its own index. Envs without an agent wait."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of every agent."""
        for agent in self._agents:
            agent.begin_round(uniforms_ETH[:1])

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return the decision of each env's agent."""
        return [
            self._agents[view.env].act(step, [view])[0] if view.env < len(self._agents) else WAITING for view in views
        ]
