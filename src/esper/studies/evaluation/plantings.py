"""Effects of the plantings of held-out episodes, computed by simulating each episode without one of its seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from esper.common.configuration.config import Config
from esper.common.domain import StepNumber
from esper.networks.tasks.prepare import PreparedTask
from esper.recordings import events as ev
from esper.recordings.effects.change import without_seed
from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.paying import PayingPlantings, count_paying
from esper.recordings.effects.results import EpisodeResults, Simulation
from esper.studies.evaluation.journal import EvaluationJournal
from esper.studies.simulation.simulator import SimulationJob, Simulator
from esper.training.engine import reporter
from esper.training.engine.episode import Episode
from esper.training.engine.step import StepResult, tick_slots
from esper.training.lanes.pool import EnvPool

_ROUND = 1
"""Round of all held-out episodes."""


class HeldOutSteps(msgspec.Struct, frozen=True):
    """Steps of an episode, as a run would have recorded them."""

    steps: list[ev.EnvStepped]
    ended: ev.EpisodeEnded


class EpisodePlantings(msgspec.Struct, frozen=True):
    """Effects of all plantings of an episode."""

    effects: list[float]
    """Effect of each planting on the net return, with all later decisions about its seed."""
    exact: bool
    """True if every value of the episode was reproduced."""
    reproduction: str
    """How exactly the episode was reproduced, in words."""


class StepRecorder:
    """Records the steps of the first episodes of an evaluation in memory."""

    def __init__(self, num_episodes: int) -> None:
        self._steps: dict[int, list[ev.EnvStepped]] = {env: [] for env in range(num_episodes)}
        self._last: list[StepResult] = []
        self.episodes: dict[int, HeldOutSteps] = {}
        """Recorded episodes, keyed by env; empty before `finish`."""

    def add(self, result: StepResult, *, is_last: bool) -> None:
        """Record a step of a group.

        Args:
            is_last: True for the last step, after which the slots have not ticked yet: `finish` records it.
        """
        if is_last:
            self._last.append(result)
        else:
            self._record(result)

    def finish(self, episodes: Sequence[Episode]) -> None:
        """Tick the slots, record the last steps, and end the episodes.

        In a run, the slots tick before a step is recorded. The test must come before the last tick.
        """
        for result in self._last:
            tick_slots(result.episodes)
            self._record(result)
        for env, steps in self._steps.items():
            self.episodes[env] = HeldOutSteps(steps, reporter.episode_ended(episodes[env], _ROUND))

    def _record(self, result: StepResult) -> None:
        at = StepNumber(_ROUND, result.step + 1)
        for episode, decision, epoch, outcome in zip(
            result.episodes, result.decisions, result.epochs, result.outcomes, strict=True
        ):
            if epoch and outcome and episode.env.index in self._steps:
                step = reporter.env_stepped(episode, decision, epoch.measured, outcome.reward_parts, at)
                self._steps[episode.env.index].append(step)


class PlantingEvaluation:
    """Leaves out each planting of the first episodes of some policies, and stores steps and effects in the journal.

    Args:
        num_episodes: Number of episodes of each policy and training seed.
        config: Configuration of the episodes.
        pool: Pool in which the episodes are played.
        lanes: Names of the lanes.
    """

    def __init__(
        self,
        num_episodes: int,
        journal: EvaluationJournal,
        prepared: PreparedTask,
        config: Config,
        pool: EnvPool,
        lanes: Sequence[str],
    ) -> None:
        self._num_episodes = num_episodes
        self._journal = journal
        self._prepared = prepared
        self._config = config
        self._lanes = lanes
        self._started = reporter.run_started(
            "evaluation",
            config,
            pool,
            prepared.origin,
            policy=config.policy,
            lanes=pool.lane_by_env,
            task_defaults=prepared.defaults,
        )

    def recorder(self, run: str) -> StepRecorder | None:
        """Return a recorder for a run of a policy; None if the journal has all of its episodes.

        Args:
            run: Name of the run in the journal: policy and training seed.
        """
        has_all = all(self._journal.has(_steps_part(run, env)) for env in range(self._num_episodes))
        return None if has_all else StepRecorder(self._num_episodes)

    def keep(self, run: str, recorder: StepRecorder) -> None:
        """Store the recorded episodes. Raises OSError."""
        for env, episode in recorder.episodes.items():
            self._journal.recall(_steps_part(run, env), HeldOutSteps, lambda episode=episode: episode)

    def num_env_steps(self, run: str) -> int:
        """Return the maximum number of env-steps that are still to be simulated. Raises ConfigError."""
        return sum(job.num_env_steps() for job in self._missing(run))

    def measure(self, run: str, on_step: Callable[[int], None]) -> list[EpisodePlantings]:
        """Return the effects of the plantings of each episode. Those that the journal has are not simulated again.

        Args:
            on_step: Called after each step with the number of episodes that took it.

        Raises:
            ConfigError: Worker processes cannot be started, or the journal is damaged.
            FaultError: A lane failed.
            OSError: The journal cannot be written.
        """
        jobs = self._missing(run)
        if jobs:
            num_plays = sum(1 + len(job.changes) for job in jobs)
            lanes = self._lanes[: max(1, num_plays // 2)]
            simulator = Simulator(self._config, self._prepared, lanes, num_plays, Path())
            with contextlib.closing(simulator):
                self._simulate(run, simulator, jobs, on_step)
        return [self._journal.recall(_effects_part(run, env), EpisodePlantings, _is_stored) for env in self._envs]

    def _simulate(
        self, run: str, simulator: Simulator, jobs: Sequence[SimulationJob], on_step: Callable[[int], None]
    ) -> None:
        """Simulate episodes, and store the effects of each as soon as all are known."""
        by_env = {job.episode.env: job for job in jobs}
        simulations: dict[int, list[Simulation]] = {env: [] for env in by_env}
        for found in simulator.simulate(jobs, on_step):
            simulations[found.env].append(found)
            job = by_env[found.env]
            if len(simulations[found.env]) == 1 + len(job.changes):
                results = EpisodeResults(job.episode, simulations.pop(found.env))
                self._journal.recall(_effects_part(run, found.env), EpisodePlantings, lambda r=results: _effects(r))

    @property
    def _envs(self) -> range:
        return range(self._num_episodes)

    def _missing(self, run: str) -> list[SimulationJob]:
        """Return the jobs of the episodes whose effects the journal does not have."""
        envs = [env for env in self._envs if not self._journal.has(_effects_part(run, env))]
        episodes = [self._episode(run, env) for env in envs]
        return [
            SimulationJob(episode=episode, changes=[without_seed(seed) for seed in episode.seeds])
            for episode in episodes
        ]

    def _episode(self, run: str, env: int) -> RecordedEpisode:
        found = self._journal.recall(_steps_part(run, env), HeldOutSteps, _is_stored)
        return RecordedEpisode(self._started, _ROUND, env, found.steps, found.ended, None, None)


def paying_of(
    measured: Mapping[str, Sequence[Sequence[EpisodePlantings]]],
) -> dict[str, PayingPlantings | None]:
    """Return how many plantings pay, keyed by policy.

    Args:
        measured: Effects by training seed and episode, keyed by policy.
    """
    return {
        policy: count_paying(
            [[episode.effects for episode in run] for run in runs],
            exact=sum(episode.exact for run in runs for episode in run),
        )
        for policy, runs in measured.items()
    }


def describe_inexact(measured: Mapping[str, Sequence[Sequence[EpisodePlantings]]]) -> list[str]:
    """Return a sentence about each policy with an episode that was not reproduced exactly."""
    sentences: list[str] = []
    for policy, runs in measured.items():
        episodes = [episode for run in runs for episode in run]
        inexact = [episode for episode in episodes if not episode.exact]
        if inexact:
            sentences.append(
                f"{len(inexact)} of {len(episodes)} episodes of {policy} were not reproduced exactly, so the effects "
                f"of their plantings are approximate; the first: {inexact[0].reproduction}"
            )
    return sentences


def _effects(results: EpisodeResults) -> EpisodePlantings:
    unchanged, effects = results.get(), results.seed_effects()
    assert unchanged is not None
    assert effects is not None
    return EpisodePlantings(effects, unchanged.is_exact, str(unchanged.reproduction))


def _steps_part(run: str, env: int) -> str:
    return f"steps {run}, episode {env}"


def _effects_part(run: str, env: int) -> str:
    return f"plantings {run}, episode {env}"


def _is_stored() -> NoReturn:
    raise AssertionError("the part was stored before")
