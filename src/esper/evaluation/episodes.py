"""Held-out episodes: every policy plays the same ones, on hosts and data orders that no run has trained on.

Nothing learns here: a PPO policy acts from its checkpoint's network and frozen normalisers. It draws what to do in each
step, and does it in the most probable way: what it draws beside that in training is there to learn from, and costs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from esper.checkpoint.files import read_checkpoint
from esper.checkpoint.manifest import CheckpointError
from esper.config import Config, PolicyName
from esper.engine.agent_factory import build_agent, build_ppo
from esper.engine.episode import Episode
from esper.engine.step import play_step, tick_slots
from esper.envs.stopwatch import PhaseTimer
from esper.lanes.devices import resolve_devices
from esper.lanes.pool import EnvPool
from esper.policy.agent import Agent, strip_prefix
from esper.seeding import decision_uniforms, evaluation_seed
from esper.tasks import configured_task


@dataclass(frozen=True, kw_only=True)
class EpisodeResult:
    """What one episode came to, at its end."""

    test_accuracy: float
    validation_accuracy: float
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host."""
    net_return: float
    """Final validation accuracy less the first, less the rent of all steps and the charge of all ops: the undiscounted
    `simplified` return. For an env that broke down the final accuracy is that of the step in which it did,
    not that of what it was taken back to, and it is charged the penalty."""


class HeldOutEvaluation:
    """Held-out episodes of the task that a checkpoint was trained on, as long and under the same rent.

    Args:
        checkpoint: its directory.
        policies: names of those that are to play; `ppo` is the checkpoint's.
        episodes: how many.
        seed: tells one set of episodes from another; the same for every policy and every checkpoint.
        devices: names of lanes, or `auto`.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another version, or holds no PPO policy where one is to play.
        ConfigError: a device is not there.
        TaskError: the data set is missing or damaged.
    """

    def __init__(
        self, checkpoint: Path, *, policies: Sequence[PolicyName], episodes: int, seed: int, devices: Sequence[str]
    ) -> None:
        self._path = checkpoint
        self._checkpoint = read_checkpoint(checkpoint)
        trained = self._checkpoint.config
        self.config = msgspec.structs.replace(
            trained,
            envs=episodes,
            seed=evaluation_seed(seed),
            reward="simplified",
            policy_device="cpu",
            ppo=msgspec.structs.replace(trained.ppo, envs_per_host=1),  # nothing learns: each episode tells more alone
        )
        lanes = resolve_devices(devices)
        task = configured_task(self.config)
        splits = task.load(Path(self.config.data_dir) if self.config.data_dir else None)
        slots = self.config.slots
        self._agents = {policy: self._agent(policy, len(slots), task.blueprints) for policy in policies}
        self._pool = EnvPool(task, splits, lanes, slots, self.config)

    def run(self, on_step: Callable[[str], None]) -> dict[str, list[EpisodeResult]]:
        """Have every policy play every episode.

        Args:
            on_step: called with the name of the policy after each step of its episodes, which are played side by side.

        Returns:
            By policy, the results of the episodes, in one order for all.
        """
        return {
            policy: run_episodes(self._pool, agent, self.config, lambda policy=policy: on_step(policy))
            for policy, agent in self._agents.items()
        }

    def close(self) -> None:
        """End the lanes' threads."""
        self._pool.close()

    def _agent(self, policy: PolicyName, slots: int, blueprints: Sequence[str]) -> Agent:
        if policy != "ppo":
            return build_agent(msgspec.structs.replace(self.config, policy=policy), slots, blueprints)
        trained = self._checkpoint.config.policy
        if trained != "ppo":
            raise CheckpointError(
                f"{self._path} was made with --policy {trained} and holds no PPO policy: leave ppo out of --policies"
            )
        agent = build_ppo(self.config, slots, blueprints, stochastic_heads=False)
        try:
            agent.load_policy(strip_prefix("agent.", self._checkpoint.tensors))
        except RuntimeError as error:
            raise CheckpointError(f"{self._path} does not fit this version of the program: {error}") from error
        return agent


def run_episodes(pool: EnvPool, agent: Agent, config: Config, on_step: Callable[[], None]) -> list[EpisodeResult]:
    """One episode of every env of the pool, without learning. The only place where the test split is touched."""
    for env in pool.envs:
        if env.scaler:
            env.scaler.reset()  # nobody is to begin with the scale that who played before has left
    episodes = [Episode(env, config) for env in pool.envs]
    for episode, (loss, accuracy) in zip(episodes, pool.reset(0), strict=True):
        episode.begin(loss, accuracy)
    agent.begin_round(decision_uniforms(config.seed, range(len(episodes)), config.steps, 0))
    stopwatch = PhaseTimer()  # its readings are not reported
    for step in range(config.steps):
        if step > 0:
            tick_slots(pool, episodes)
        play_step(pool, episodes, agent, 0, step, stopwatch)
        on_step()
    # No tick after the last step: the test is to see the alphas that the last validation saw.
    return [
        EpisodeResult(
            test_accuracy=accuracy,
            validation_accuracy=episode.view.accuracies[-1],
            parameter_ratio=episode.view.parameter_ratio,
            net_return=episode.episode_return,
        )
        for episode, accuracy in zip(episodes, pool.test_accuracies(), strict=True)
    ]
