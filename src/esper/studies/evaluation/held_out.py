"""Policies on held-out episodes, the same for every policy, with hosts and data orders that no run has trained on.

No policy learns. A PPO policy uses the network and the frozen normalisers of its checkpoint. It samples only the op of
each step and takes the most probable choice of every other head: in training it samples these too, in order to learn
from them, which lowers its return.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch

from esper.common.configuration.config import Config, ConfigError, TrainingConfig
from esper.common.seeding import evaluation_seed
from esper.common.system.process import cpu_seconds, package_digest
from esper.networks.tasks import load_task
from esper.networks.tasks.prepare import PreparedTask, SavedTask, prepare_task
from esper.recordings.checkpoints.manifest import CheckpointError, read_manifest
from esper.studies.evaluation.episodes import run_episodes
from esper.studies.evaluation.journal import EvaluationKey, open_journal
from esper.studies.evaluation.plantings import EpisodePlantings, PlantingEvaluation, StepRecorder
from esper.studies.evaluation.results import (
    EVALUATION_POLICIES,
    NEED_PPO,
    PER_TRAINING_SEED,
    PPO,
    RETRAINED,
    TRAINED,
    WIDE,
    PolicyRun,
)
from esper.studies.growth.wide_host import choose_width
from esper.training.checkpoint.files import Checkpoint, read_checkpoint
from esper.training.engine.agent_factory import build_agent, build_trained
from esper.training.engine.trained_policy import policy_of
from esper.training.lanes.devices import device_kinds, resolve_devices
from esper.training.lanes.pool import EnvPool
from esper.training.policy.agent import Agent
from esper.training.policy.baselines import StaticAgent
from esper.training.policy.loading import POLICY_NAMES
from esper.training.policy.plan import split_plan

_SHARED_OPTIONS = ("task", "steps", "slots", "reward_weights", "training", "amp", "scaler", "counterfactual")
"""Options that all evaluated checkpoints must share, because their policies play the same episodes."""


class HeldOutEvaluation:
    """Runs held-out episodes with the task, episode length and rent of some checkpoints.

    Args:
        checkpoints: Checkpoint directories: training seeds of one configuration.
        policies: Names of the policies: those of `--policy`, `plan:…`, and `EVALUATION_POLICIES`.
        episodes: Number of episodes per policy.
        seed: Random seed of the episodes, the same for every policy and every checkpoint. None: see `open_journal`.
        task_reference: Reference of the task: another one than that of the checkpoints, or theirs, which must be named
            if it is the user's own code. None: that of the checkpoints.
        accept_changed_task: Evaluate although the code of the user's task has changed since the checkpoint.
        plantings: Number of episodes of each trained policy in which every planting is left out.

    Attributes:
        config: Configuration of the episodes.
        journal: Journal of the evaluation.

    Raises:
        CheckpointError: A checkpoint is damaged or of another version, the checkpoints are of different tasks, or
            `ppo` is to be evaluated and a checkpoint has no PPO policy.
        ConfigError: A device does not exist, a policy cannot be evaluated with this task, or a journal is damaged.
        TaskError: The task cannot be loaded, is not that of the checkpoint, or its data set is missing or damaged.
        OSError: The journal cannot be read or written.
    """

    def __init__(
        self,
        checkpoints: Sequence[Path],
        *,
        policies: Sequence[str],
        episodes: int,
        seed: int | None,
        devices: Sequence[str],
        journals: Path,
        task_reference: str | None = None,
        accept_changed_task: bool = False,
        plantings: int = 0,
    ) -> None:
        self._policies = policies
        self._checkpoints = checkpoints
        self._trained = read_training_seeds(checkpoints)
        self._lanes = resolve_devices(devices)
        self._prepared = prepare_held_out(self._trained[0], task_reference, accept_changed=accept_changed_task)
        task = self._prepared.task
        self.score_name, self.score_scale = task.score_name, task.score_scale
        if WIDE in policies and task.wide_model is None:
            raise ConfigError(f"the task {task.name} has no wide_model; remove {WIDE} from --policies")
        digests = [read_manifest(path).blake2b for path in checkpoints]
        self.journal = open_journal(journals, evaluation_key(self._prepared, self._lanes, episodes, digests), seed)
        self.config = held_out_config(self._prepared.config, episodes, self.journal.seed)
        named = [policy for policy in policies if policy == PPO or policy not in PER_TRAINING_SEED]
        self._agents = {policy: self._agents_of(policy) for policy in named}
        self._pool = EnvPool(task, self._prepared.profile, self._prepared.data, self._lanes, self.config)
        self._plantings: PlantingEvaluation | None = None
        if plantings:
            self._plantings = PlantingEvaluation(
                plantings, self.journal, self._prepared, self.config, self._pool, self._lanes
            )

    @property
    def num_env_steps(self) -> int:
        """Number of steps of all episodes."""
        return sum(map(self._num_runs, self._policies)) * self.config.envs * self.config.steps

    def run(self, on_step: Callable[[str, int], None]) -> dict[str, list[PolicyRun]]:
        """Run every policy on every episode. Parts that the journal has are not run again.

        Args:
            on_step: Called after each step with the policy's name and the number of envs that took it.

        Returns:
            The run of each training seed, keyed by policy; one run of a policy that is the same for all of them. The
            order of the episodes is always the same.

        Raises:
            FaultError: A lane failed.
            OSError: The journal cannot be written.
        """
        self.journal.begin()
        runs: dict[str, list[PolicyRun]] = {}
        for policy in sorted(self._policies, key=lambda policy: policy in NEED_PPO):
            runs[policy] = []
            for index in range(self._num_runs(policy)):
                advance = partial(on_step, policy)
                part = f"{policy} {index}"
                recorder = self._plantings.recorder(part) if self._plantings and policy in TRAINED else None
                compute = partial(self._run, policy, index, runs.get(PPO, []), advance, recorder)
                if not _is_stored(policy):
                    runs[policy].append(compute())
                    continue
                if self.journal.has(part) and recorder:
                    compute()  # plays it again, because an evaluation without plantings stores no steps
                elif self.journal.has(part):
                    advance(self.config.envs * self.config.steps)
                runs[policy].append(self.journal.recall(part, PolicyRun, compute))
                if self._plantings and recorder:
                    self._plantings.keep(part, recorder)
        if not self._plantings:
            self.journal.finish()
        return {policy: runs[policy] for policy in self._policies}

    @property
    def num_planting_steps(self) -> int:
        """Maximum number of env-steps of `measure_plantings`, once the episodes were run."""
        if self._plantings is None:
            return 0
        return sum(self._plantings.num_env_steps(part) for parts in self._trained_parts().values() for part in parts)

    def measure_plantings(self, on_step: Callable[[str, int], None]) -> dict[str, list[list[EpisodePlantings]]]:
        """Leave out each planting in the first episodes of the trained policies, after `run`.

        Args:
            on_step: Called after each step with a description and the number of episodes that took it.

        Returns:
            Effects by training seed and episode, keyed by policy; empty if `plantings` is 0.

        Raises:
            ConfigError: Worker processes cannot be started.
            FaultError: A lane failed.
            OSError: The journal cannot be written.
        """
        found: dict[str, list[list[EpisodePlantings]]] = {}
        if self._plantings is None:
            return found
        for policy, parts in self._trained_parts().items():
            advance = partial(on_step, f"plantings of {policy}")
            found[policy] = [self._plantings.measure(part, advance) for part in parts]
        self.journal.finish()
        return found

    def close(self) -> None:
        """Stop the threads of the lanes."""
        self._pool.close()

    def _run(
        self,
        policy: str,
        index: int,
        grown: Sequence[PolicyRun],
        advance: Callable[[int], None],
        recorder: StepRecorder | None,
    ) -> PolicyRun:
        """Run one policy.

        Args:
            index: Index of the training seed.
            grown: Runs of PPO, for the policies that need them.
            advance: Called after each step with the number of envs that took it.
            recorder: Records the steps of a trained policy; None: they are not recorded.
        """
        start = cpu_seconds()

        def on_step() -> None:
            advance(self.config.envs)

        if policy == WIDE:
            ratio = statistics.fmean(episode.parameter_ratio for episode in grown[index].episodes)
            prepared = self._prepared
            width = choose_width(prepared.task, prepared.profile, prepared.data, ratio)
            episodes = run_episodes(self._pool, StaticAgent(), self.config, on_step, width=width)
        elif policy == RETRAINED:
            seeds = [episode.seeds for episode in grown[index].episodes]
            episodes = run_episodes(self._pool, StaticAgent(), self.config, on_step, seeds)
        else:
            episodes = run_episodes(self._pool, self._agents[policy][index], self.config, on_step, recorder=recorder)
        return PolicyRun(episodes=episodes, cpu_seconds=cpu_seconds() - start)

    def _trained_parts(self) -> dict[str, list[str]]:
        """Return the names of the runs of trained policies in the journal, keyed by policy."""
        trained = [policy for policy in self._policies if policy in TRAINED]
        return {policy: [f"{policy} {index}" for index in range(self._num_runs(policy))] for policy in trained}

    def _num_runs(self, policy: str) -> int:
        return len(self._trained) if policy in PER_TRAINING_SEED else 1

    def _build_agent(self, policy: str, plan: str) -> Agent:
        profile = self._prepared.profile
        acting = msgspec.structs.replace(self.config, policy=policy, plan=plan or self.config.plan)
        return build_agent(acting, profile.sites, profile.blueprints)

    def _agents_of(self, policy: str) -> list[Agent]:
        if policy != PPO:
            return [self._build_agent(*split_plan(policy))]
        profile = self._prepared.profile

        def load(path: Path, checkpoint: Checkpoint) -> Agent:
            if checkpoint.config.policy != PPO:
                raise CheckpointError(
                    f"{path} was made with --policy {checkpoint.config.policy} and has no PPO policy; remove ppo from "
                    "--policies"
                )
            return build_trained(policy_of(checkpoint, path), self.config, profile.sites, profile.blueprints)

        return [load(path, checkpoint) for path, checkpoint in zip(self._checkpoints, self._trained, strict=True)]


def read_training_seeds(paths: Sequence[Path]) -> list[Checkpoint]:
    """Read the checkpoints of the training seeds of one configuration.

    Raises:
        CheckpointError: A checkpoint is damaged or of another version, an option of the episodes differs, or two
            checkpoints have the same random seed: they are not independent, so intervals over them would be too narrow.
    """
    trained = [read_checkpoint(path) for path in paths]
    path_by_seed: dict[int, Path] = {}
    for path, other in zip(paths, trained, strict=True):
        for name in _SHARED_OPTIONS:
            if getattr(other.config, name) != getattr(trained[0].config, name):
                what = name.replace("_", "-")
                raise CheckpointError(f"{path} was made with other {what} than {paths[0]}; evaluate them apart")
        seed = other.config.seed
        if seed in path_by_seed:
            raise CheckpointError(
                f"{path} was trained with the random seed {seed}, as {path_by_seed[seed]} was; give one checkpoint of "
                "each training seed"
            )
        path_by_seed[seed] = path
    return trained


def evaluation_key(
    prepared: PreparedTask, lanes: Sequence[str], episodes: int, checkpoints: Sequence[str] = ()
) -> EvaluationKey:
    """Return the key of an evaluation.

    Args:
        checkpoints: Digest of the manifest of each checkpoint.
    """
    return EvaluationKey(
        task=prepared.task.name,
        episodes=episodes,
        checkpoints=list(checkpoints),
        code=dict(prepared.origin.digests) if prepared.origin else {},
        package=package_digest(),
        torch=str(torch.__version__),
        devices=device_kinds(lanes),
    )


def held_out_config(trained: Config, episodes: int, seed: int) -> Config:
    """Return the configuration of held-out episodes of a trained policy.

    Args:
        episodes: Number of episodes, one for each env.
        seed: Random seed of the episodes, as the user gives it.
    """
    return msgspec.structs.replace(
        trained,
        envs=episodes,
        seed=evaluation_seed(seed),
        context_seed=0,
        reward="simplified",
        policy_device="cpu",
        ppo=msgspec.structs.replace(trained.ppo, envs_per_host=1),  # shared hosts help only learning
    )


def prepare_held_out(trained: Checkpoint, task_reference: str | None, *, accept_changed: bool = False) -> PreparedTask:
    """Prepare the task of a checkpoint, or another one, with its own slots and settings, to which the policy transfers.

    Args:
        task_reference: Reference of the task; None: that of the checkpoint.
        accept_changed: Accept a task of the user whose code has changed since.

    Raises:
        ConfigError: The task has no such slot.
        TaskError: The task cannot be loaded, is not that of the checkpoint, or its data set is missing or damaged.
    """
    task = load_task(task_reference) if task_reference else None
    if task is None or task.name == trained.config.task:
        saved = SavedTask(trained.config.task, trained.origin)
        return prepare_task(trained.config, task, saved, accept_changed=accept_changed)
    return prepare_task(msgspec.structs.replace(trained.config, slots=(), training=TrainingConfig()), task)


def _is_stored(policy: str) -> bool:
    """Return True if results of a policy are stored: not those of the user's code, which may change."""
    return split_plan(policy)[0] in (*POLICY_NAMES, *EVALUATION_POLICIES)
