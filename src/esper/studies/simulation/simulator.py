"""Simulator: plays recorded episodes again, unchanged and with changes, and yields their results as they come."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from esper.common.configuration.config import Config, ConfigError
from esper.common.decisions import Decision
from esper.common.seeding import EpisodeKey, make_generator
from esper.common.system.process import package_digest
from esper.networks.tasks.prepare import PreparedTask
from esper.recordings.effects.change import NOTHING, RECORDED, UNCHANGED, Change
from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.results import Simulation
from esper.recordings.events.codec import encode_json
from esper.recordings.state.series import decision_of
from esper.studies.simulation.play import Play, Players
from esper.studies.simulation.reproduction import compare
from esper.studies.simulation.scripted import Script
from esper.training.engine.agent_factory import build_agent
from esper.training.engine.reporter import round_to
from esper.training.lanes.devices import device_kinds
from esper.training.policy.actions import action_of
from esper.training.policy.agent import Agent
from esper.training.policy.plan import split_plan

T = TypeVar("T")

PLAYS_PER_LANE = 4
"""Maximum number of episodes of each lane that run at the same time: more would delay the first results."""


class SimulationJob(msgspec.Struct, frozen=True, kw_only=True):
    """An episode to be simulated, and its changes. The unchanged episode is always simulated first."""

    episode: RecordedEpisode
    changes: Sequence[Change] = ()
    repeat: int = 0
    """0: on the recorded host and data order; from 1: on other ones."""

    @property
    def num_steps(self) -> int:
        """Number of steps of the episode."""
        return self.episode.num_steps

    def num_env_steps(self) -> int:
        """Maximum number of env-steps of the job."""
        starts = [0 if _has_fallback(change) else change.first_step - 1 for change in self.changes]
        before = sum(len(previous.steps) for previous in _rolled_back(self.episode))
        return before + self.num_steps + sum(self.num_steps - start for start in starts)


@dataclass(frozen=True, eq=False)
class _Planned:
    """A change of a job, with its play."""

    job: SimulationJob
    digest: str
    """Digest of the simulated steps of the episode."""
    change: Change
    play: Play


class Simulator:
    """Plays episodes of one recording again.

    Args:
        config: Configuration of the run.
        prepared: Task of the run.
        lanes: Names of the lanes.
        num_plays: Number of plays, which bounds how many run at the same time.
        telemetry_dir: Directory of the runs whose policies can follow a change.

    Attributes:
        software: Digest of what the results depend on besides the recording: package, torch, the task's code, devices.

    Raises:
        ConfigError: Worker processes cannot be started.
    """

    def __init__(
        self,
        config: Config,
        prepared: PreparedTask,
        lanes: Sequence[str],
        num_plays: int,
        telemetry_dir: Path,
    ) -> None:
        self._prepared = prepared
        self._config = msgspec.structs.replace(config, telemetry_dir=str(telemetry_dir), policy_device="cpu")
        self._lanes = lanes
        origin = prepared.origin
        self._code: Mapping[str, str] = origin.digests if origin else {}
        inputs = package_digest(), str(torch.__version__), dict(self._code), device_kinds(lanes)
        self.software = hashlib.blake2b(encode_json(inputs), digest_size=16).hexdigest()
        capacity = max(1, min(num_plays, PLAYS_PER_LANE * len(lanes)))
        self._players = Players(prepared, config, lanes, capacity)
        self._scalers: dict[str, Mapping[str, Any] | None] = {}
        """State of the loss scaler after an episode that was rolled back, keyed by its digest."""

    def close(self) -> None:
        """Stop the threads and workers of the lanes."""
        self._players.close()

    def simulate(self, jobs: Sequence[SimulationJob], on_step: Callable[[int], None]) -> Iterator[Simulation]:
        """Play the unchanged episodes of some jobs, then their changes, and so on for the next jobs.

        Args:
            on_step: Called after each step with the number of episodes that took it.

        Yields:
            The result of each play, the unchanged episode of a job before its changes.

        Raises:
            FaultError: A lane or a policy failed.
            ConfigError: A policy or a plan cannot be used, or a choice does not exist.
            CheckpointError: A policy cannot be read.
        """
        for job in jobs:
            self._check_choices(job)
        agents = {then: self._agent(then) for job in jobs for then in map(_fallback_of, job.changes)}
        for batch in _batches(jobs, self._players.capacity):
            yield from self._simulate_batch(batch, agents, on_step)

    def _simulate_batch(
        self,
        batch: Sequence[SimulationJob],
        agents: Mapping[tuple[str, str] | None, Agent | None],
        on_step: Callable[[int], None],
    ) -> Iterator[Simulation]:
        """Simulate jobs that run side by side. Their snapshots are freed at the end."""
        unchanged = [
            _Planned(job, job.episode.digest(len(job.episode.steps)), UNCHANGED, self._unchanged(job, on_step))
            for job in batch
        ]
        self._players.run([planned.play for planned in unchanged], on_step)
        for planned in unchanged:
            yield self._result(planned)
        changed = [
            _Planned(planned.job, planned.digest, change, self._changed(planned, change))
            for planned in unchanged
            for change in planned.job.changes
        ]
        for then, group in itertools.groupby(changed, key=lambda planned: _fallback_of(planned.change)):
            for part in _batches(group, self._players.capacity):
                self._players.run([planned.play for planned in part], on_step, agents[then])
                for planned in part:
                    yield self._result(planned)

    def _unchanged(self, job: SimulationJob, on_step: Callable[[int], None]) -> Play:
        """Return the play of the recorded decisions, which keeps the snapshots that the changes need."""
        play = self._recorded(job, self._scaler_before(job.episode, on_step))
        play.keep = {change.first_step - 1 for change in job.changes if not _has_fallback(change)}
        return play

    def _recorded(self, job: SimulationJob, scaler: Mapping[str, Any] | None) -> Play:
        """Return the play of the recorded decisions, beginning with a state of the loss scaler."""
        script = [decision_of(step) for step in job.episode.steps]
        return Play(key=_key(job, self._config), script=script, steps=job.num_steps, scaler=scaler)

    def _changed(self, unchanged: _Planned, change: Change) -> Play:
        job, before = unchanged.job, unchanged.play
        play = Play(key=before.key, script=_script(job, change), steps=job.num_steps, scaler=before.scaler)
        if not _has_fallback(change):
            play.start = before.snapshot_before(change.first_step - 1)
        return play

    def _scaler_before(self, episode: RecordedEpisode, on_step: Callable[[int], None]) -> Mapping[str, Any] | None:
        """Return the state of the loss scaler before an episode; None for the initial one.

        A rollback restores a scale that the recording does not contain: the rolled-back episode is played first.
        """
        scaler: Mapping[str, Any] | None = None
        for previous in reversed(_rolled_back(episode)):
            digest = previous.digest(len(previous.steps))
            if digest not in self._scalers:
                play = self._recorded(SimulationJob(episode=previous), scaler or _recorded_scaler(previous))
                self._players.run([play], on_step)
                self._scalers[digest] = play.end_scaler
            scaler = self._scalers[digest]
        return scaler or _recorded_scaler(episode)

    def _check_choices(self, job: SimulationJob) -> None:
        """Raise ConfigError if a choice of an episode or of its changes does not exist."""
        slots, blueprints = [site.name for site in self._prepared.profile.sites], self._prepared.profile.blueprints
        for step in job.episode.steps:
            try:
                action_of(decision_of(step), slots, blueprints)
            except ConfigError as error:
                raise ConfigError(
                    f"step {step.step} of env {step.env} cannot be simulated with this version of the task: {error}"
                ) from None
        for change in job.changes:
            for decision in change.decisions.values():
                action_of(decision, slots, blueprints)

    def _agent(self, then: tuple[str, str] | None) -> Agent | None:
        """Return the policy that follows the changes of a group of plays; None if they only wait."""
        if then is None:
            return None
        policy, plan = then
        config = msgspec.structs.replace(
            self._config, envs=self._players.capacity, policy=policy, plan=plan, init_policy=""
        )
        profile = self._prepared.profile
        return build_agent(config, profile.sites, profile.blueprints)

    def _result(self, planned: _Planned) -> Simulation:
        job, play = planned.job, planned.play
        episode, trajectory = job.episode, play.trajectory
        assert trajectory is not None
        reproduction = None
        if planned.change is UNCHANGED and job.repeat == 0:
            final_score = round_to(trajectory.final_score)
            reproduction = compare(episode, play.events, final_score, self._code, self._lanes)
        return Simulation(
            round=episode.round,
            env=episode.env,
            episode=planned.digest,
            steps=len(episode.steps),
            software=self.software,
            change=planned.change,
            repeat=job.repeat,
            trajectory=trajectory,
            reproduction=reproduction,
        )


def _rolled_back(episode: RecordedEpisode) -> list[RecordedEpisode]:
    """Return the episodes before an episode that must be played to know its loss scale, latest first."""
    found: list[RecordedEpisode] = []
    while episode.previous:
        episode = episode.previous
        found.append(episode)
    return found


def _recorded_scaler(episode: RecordedEpisode) -> Mapping[str, Any] | None:
    """Return the recorded state of the loss scaler before an episode; None without one."""
    scale = episode.loss_scale
    return {"scale": scale.scale, "_growth_tracker": scale.growth_tracker} if scale else None


def _script(job: SimulationJob, change: Change) -> Script:
    """Return the decisions of a changed episode; None where they are left to what follows."""
    recorded = [decision_of(step) for step in job.episode.steps]
    last = max(change.decisions, default=0)
    if change.then != RECORDED:
        recorded = recorded[:last]
    script: list[Decision | None] = [*recorded, *[None] * (last - len(recorded))]
    for step, decision in change.decisions.items():
        script[step - 1] = decision
    return script


def _fallback_of(change: Change) -> tuple[str, str] | None:
    """Return the name of the policy that follows a change, and its plan; None if the env waits."""
    return None if change.then in (RECORDED, NOTHING) else split_plan(change.then)


def _has_fallback(change: Change) -> bool:
    return _fallback_of(change) is not None


def _key(job: SimulationJob, config: Config) -> EpisodeKey:
    """Return the key of the draws of a job: those of its episode, or of another random seed for a repeat."""
    seed = config.seed
    if job.repeat:
        seed = make_generator(config.seed, "what if", job.repeat).initial_seed()
    return EpisodeKey(seed, *job.episode.drawn_as)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
