"""Held-out episodes, the same for every policy, with hosts and data orders that no run has trained on.

No policy learns. A PPO policy uses the network and the frozen normalisers of its checkpoint. It samples only the op of
each step and takes the most probable choice of every other head: in training it samples these too, in order to learn
from them, which lowers its return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from esper.checkpoint.files import read_checkpoint
from esper.checkpoint.manifest import CheckpointError
from esper.config import Config
from esper.engine.agent_factory import build_agent, load_ppo
from esper.engine.episode import Episode
from esper.engine.step import play_step, tick_slots
from esper.engine.task_setup import SavedTask, prepare_task
from esper.envs.stopwatch import PhaseTimer
from esper.lanes.devices import resolve_devices
from esper.lanes.pool import EnvPool
from esper.policy.agent import Agent
from esper.policy.plan import split_plan
from esper.seeding import decision_uniforms, evaluation_seed
from esper.tasks.probe import TaskProfile

_SHARED_OPTIONS = ("task", "steps", "slots", "reward_weights", "training", "amp", "scaler", "counterfactual")
"""Options that all evaluated checkpoints must share, because their policies play the same episodes."""


@dataclass(frozen=True, kw_only=True)
class EpisodeResult:
    """Results of one episode, at its end. Accuracies are fractions, 0 to 1."""

    test_accuracy: float
    validation_accuracy: float
    parameter_ratio: float
    """Parameters of host and seeds, divided by those of the bare host."""
    net_return: float
    """Final minus initial validation accuracy, minus the rent of all steps and the costs of all ops: the undiscounted
    return of the `simplified` reward. If the env broke down, the final accuracy is that of the step of the breakdown,
    not that after the rollback, and the penalty is subtracted."""
    test_return: float
    """The same with the gain on the test split, which nothing was chosen on, in place of that on the validation
    split."""
    broke_down: bool
    """True if the env broke down."""


class HeldOutEvaluation:
    """Runs held-out episodes with the task, episode length and rent of some checkpoints.

    Args:
        checkpoints: Checkpoint directories: training seeds of one configuration.
        policies: Names of the policies to evaluate; `ppo` is the policy of each checkpoint, and `plan:…` a plan.
        episodes: Number of episodes per policy.
        seed: Random seed of the episodes. A seed gives the same episodes for every policy and every checkpoint.
        devices: Names of the lanes, or `auto`.
        task_reference: Reference of the task, needed if it is the user's own code.
        accept_changed_task: Evaluate although the code of the user's task has changed since the checkpoint.

    Raises:
        CheckpointError: A checkpoint is damaged or of another version, the checkpoints are of different tasks, or
            `ppo` is to be evaluated and a checkpoint has no PPO policy.
        ConfigError: A device does not exist.
        TaskError: The task cannot be loaded, is not that of the checkpoint, or its data set is missing or damaged.
    """

    def __init__(
        self,
        checkpoints: Sequence[Path],
        *,
        policies: Sequence[str],
        episodes: int,
        seed: int,
        devices: Sequence[str],
        task_reference: str | None = None,
        accept_changed_task: bool = False,
    ) -> None:
        self._trained = [(path, read_checkpoint(path)) for path in checkpoints]
        path, checkpoint = self._trained[0]
        trained = checkpoint.config
        for other_path, other in self._trained[1:]:
            for name in _SHARED_OPTIONS:
                if getattr(other.config, name) != getattr(trained, name):
                    what = name.replace("_", "-")
                    raise CheckpointError(f"{other_path} was made with other {what} than {path}; evaluate them apart")
        self.config = msgspec.structs.replace(
            trained,
            envs=episodes,
            seed=evaluation_seed(seed),
            reward="simplified",
            policy_device="cpu",
            ppo=msgspec.structs.replace(trained.ppo, envs_per_host=1),  # shared hosts help only learning
        )
        lanes = resolve_devices(devices)
        task, splits, profile, self.config, _ = prepare_task(
            msgspec.structs.replace(self.config, task=task_reference or trained.task),
            None,
            SavedTask(trained.task, checkpoint.origin),
            accept_changed=accept_changed_task,
        )
        if self.config.task != trained.task:
            raise CheckpointError(f"{path} was made with --task {trained.task}, not {self.config.task}")
        self._agents = {policy: self._agents_of(policy, profile) for policy in policies}
        self.cpu_seconds: dict[str, float] = {}
        """CPU time of all processes for the episodes of each policy that was run."""
        self._pool = EnvPool(task, profile, splits, lanes, self.config)

    @property
    def num_agents(self) -> int:
        """Number of agents that are run one after another: the policies, PPO once per checkpoint."""
        return sum(map(len, self._agents.values()))

    def run(self, on_step: Callable[[str], None]) -> dict[str, list[list[EpisodeResult]]]:
        """Run every policy on every episode.

        Args:
            on_step: Called with the policy's name after each step. All episodes of a policy run in parallel.

        Returns:
            Results of each episode by training seed, keyed by policy. The order of the episodes is always the same.
        """
        results: dict[str, list[list[EpisodeResult]]] = {}
        for policy, agents in self._agents.items():
            start = _cpu_seconds()
            results[policy] = [
                run_episodes(self._pool, agent, self.config, lambda policy=policy: on_step(policy)) for agent in agents
            ]
            self.cpu_seconds[policy] = _cpu_seconds() - start
        return results

    def close(self) -> None:
        """Stop the threads of the lanes."""
        self._pool.close()

    def _agents_of(self, policy: str, profile: TaskProfile) -> list[Agent]:
        if policy != "ppo":
            name, plan = split_plan(policy)
            acting = msgspec.structs.replace(self.config, policy=name, plan=plan or self.config.plan)
            return [build_agent(acting, profile.sites, profile.blueprints)]
        for path, checkpoint in self._trained:
            if checkpoint.config.policy != "ppo":
                raise CheckpointError(
                    f"{path} was made with --policy {checkpoint.config.policy} and has no PPO policy; remove ppo from "
                    "--policies"
                )
        return [
            load_ppo(checkpoint, path, self.config, profile.sites, profile.blueprints)
            for path, checkpoint in self._trained
        ]


def run_episodes(pool: EnvPool, agent: Agent, config: Config, on_step: Callable[[], None]) -> list[EpisodeResult]:
    """Run one episode of every env of a pool, without learning. No other code uses the test split.

    Args:
        pool: Envs; each runs one episode.
        agent: Policy that acts in all of them.
        config: Configuration of the episodes.
        on_step: Called after each step.

    Returns:
        Results by env index.
    """
    for env in pool.envs:
        if env.scaler:
            env.scaler.reset()  # do not inherit the loss scale that the previous policy left
    episodes = [Episode(env, config) for env in pool.envs]
    for episode, (loss, accuracy) in zip(episodes, pool.reset(0), strict=True):
        episode.begin(loss, accuracy)
    test_before = pool.test_scores()
    broke_down = [False] * len(episodes)
    agent.begin_round(decision_uniforms(config.seed, range(len(episodes)), config.steps, 0))
    timer = PhaseTimer()  # required by `play_step`; the times are not reported
    for step in range(config.steps):
        if step > 0:
            tick_slots(pool, episodes)
        result = play_step(pool, episodes, agent, 0, step, timer)
        broke_down = [before or now for before, now in zip(broke_down, result.broke_down, strict=True)]
        on_step()
    # No tick after the last step, so that the test uses the alphas of the last validation.
    return [
        _result(episode, before, after, broken)
        for episode, before, after, broken in zip(episodes, test_before, pool.test_scores(), broke_down, strict=True)
    ]


def _result(episode: Episode, test_before: float, test_after: float, broke_down: bool) -> EpisodeResult:
    accuracies = episode.view.accuracies
    costs = accuracies[-1] - accuracies[0] - episode.episode_return
    return EpisodeResult(
        test_accuracy=test_after,
        validation_accuracy=accuracies[-1],
        parameter_ratio=episode.view.parameter_ratio,
        net_return=episode.episode_return,
        test_return=test_after - test_before - costs,
        broke_down=broke_down,
    )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its workers so far."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)
