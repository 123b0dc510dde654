"""Plays: episodes that run side by side on the lanes of a pool, each with its own script, from its own step on.

Shapes: E envs, T steps, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from esper.common.configuration.config import Config
from esper.common.domain import StepNumber
from esper.common.seeding import EpisodeKey, episode_uniforms
from esper.networks.tasks.prepare import PreparedTask
from esper.recordings.effects.results import Trajectory
from esper.recordings.events import EnvStepped
from esper.studies.simulation.scripted import Script, ScriptedAgent
from esper.training.engine import reporter
from esper.training.engine.episode import Episode, EpisodeSnapshot, begin_episodes, capture_episode, install_episode
from esper.training.engine.step import StepResult, play_steps, tick_slots
from esper.training.lanes.pool import EnvPool
from esper.training.policy.agent import Agent

MAX_SNAPSHOT_BYTES = 1 << 30
"""Maximum size of the snapshots of all plays of a run. Beyond it, changes start from an earlier snapshot."""


@dataclass(kw_only=True, eq=False)
class Play:
    """One episode to be played.

    Attributes:
        key: Key of its random draws.
        script: Decisions.
        steps: Number of steps.
        scaler: State of the loss scaler before the first step; None: the initial one, or no loss scaling.
        start: Snapshot to start from, and the index of its step; None: a fresh host.
        keep: Indices of the steps before which a snapshot is taken.
        trajectory: Result.
        events: Events of its steps, as the run would have recorded them.
        snapshots: Snapshots, keyed by index of the next step.
        end_scaler: State of the loss scaler after the last step.
    """

    key: EpisodeKey
    script: Script
    steps: int
    scaler: Mapping[str, Any] | None = None
    start: tuple[int, Snapshot] | None = None
    keep: Collection[int] = ()
    trajectory: Trajectory | None = None
    events: list[EnvStepped] = field(default_factory=list[EnvStepped])
    snapshots: dict[int, Snapshot] = field(default_factory=dict[int, "Snapshot"])
    end_scaler: dict[str, Any] | None = None

    @property
    def first(self) -> int:
        """Index of the first step that is played."""
        return self.start[0] if self.start else 0

    def snapshot_before(self, step: int) -> tuple[int, Snapshot] | None:
        """Return the last snapshot before or at a step, with the index of its step; None without one."""
        kept = [index for index in self.snapshots if index <= step]
        return (max(kept), self.snapshots[max(kept)]) if kept else None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """State of an episode between two steps, and its course until then."""

    state: EpisodeSnapshot
    course: _Course

    @property
    def bytes(self) -> int:
        """Size of its tensors."""
        return sum(tensor.nbytes for tensor in self.state.tensors.values())


@dataclass(kw_only=True)
class _Course:
    """Values of a trajectory so far."""

    scores: list[float]
    net_return: float = 0.0
    parameter_ratio: float = 1.0
    costs: float = 0.0
    broke_down: bool = False

    def copy(self) -> _Course:
        return _Course(
            scores=list(self.scores),
            net_return=self.net_return,
            parameter_ratio=self.parameter_ratio,
            costs=self.costs,
            broke_down=self.broke_down,
        )


class Players:
    """Envs of a pool that play up to `capacity` episodes at the same time.

    Args:
        config: Configuration of the run whose episodes are played.
        lanes: Names of the lanes.
        capacity: Maximum number of episodes that run at the same time.

    Raises:
        ConfigError: Worker processes cannot be started.
    """

    def __init__(self, prepared: PreparedTask, config: Config, lanes: Sequence[str], capacity: int) -> None:
        # Net rewards are those of the simplified reward. An env has its own scale: its neighbours are not simulated.
        self._config = msgspec.structs.replace(
            config,
            envs=capacity,
            reward="simplified",
            scaler="env",
            context_seed=config.context_seed or config.seed,
        )
        self._blueprints = prepared.profile.blueprints
        self._pool = EnvPool(prepared.task, prepared.profile, prepared.data, lanes, self._config)
        self._episodes = [Episode(env, self._config) for env in self._pool.envs]

    @property
    def capacity(self) -> int:
        """Maximum number of episodes that run at the same time."""
        return len(self._episodes)

    def close(self) -> None:
        """Stop the threads and workers of the lanes."""
        self._pool.close()

    def run(self, plays: Sequence[Play], on_step: Callable[[int], None], fallback: Agent | None = None) -> None:
        """Play episodes to their end, side by side.

        Args:
            plays: At most `capacity`; their results are set.
            on_step: Called after each step of some envs with the number of episodes that took it.
            fallback: Policy for the steps that the scripts leave open. All plays must then start from a fresh host,
                because a policy can remember earlier steps.

        Raises:
            FaultError: A lane or the policy failed.
        """
        agent = ScriptedAgent(self._blueprints, [play.script for play in plays], fallback)
        agent.begin_round(episode_uniforms([play.key for play in plays], self._config.steps, self.capacity))
        seats = dict(zip(self._episodes, plays, strict=False))
        courses = self._begin([(episode, play) for episode, play in seats.items() if play.start is None])

        def begin(step: int, episodes: Sequence[Episode]) -> None:
            for episode in episodes:
                play = seats.get(episode)
                if play is None:
                    continue
                if play.start and play.first == step:
                    courses[play] = _resume(episode, play.start[1], play.key)
                    agent.waited[episode.env.index].clear()
                if play in courses and not episode.inactive and step in play.keep:
                    _keep(play, step, episode, courses[play], MAX_SNAPSHOT_BYTES // len(plays))
                if step == play.steps:
                    episode.inactive = True

        def end(result: StepResult) -> None:
            tick_slots(result.episodes)
            taken = [row for row, epoch in enumerate(result.epochs) if epoch]
            for row in taken:
                play = seats[result.episodes[row]]
                self._record(row, play, courses[play], result)
            on_step(len(taken))

        steps = range(min(one.first for one in plays), max(one.steps for one in plays))
        play_steps(self._pool, self._episodes, agent, steps, end, begin=begin)
        for episode, play in seats.items():
            play.trajectory = _trajectory(episode, courses[play], agent.waited[episode.env.index])
            play.end_scaler = episode.env.scaler.state_dict() if episode.env.scaler else None

    def _begin(self, fresh: Sequence[tuple[Episode, Play]]) -> dict[Play, _Course]:
        """Give the envs of plays without a snapshot their fresh hosts, and return their courses."""
        for episode, play in fresh:
            scaler = episode.env.scaler
            if scaler:
                scaler.reset()
                if play.scaler:
                    scaler.load_state_dict(scaler.state_dict() | dict(play.scaler))
        begin_episodes(self._pool, self._episodes, {episode.env: play.key for episode, play in fresh})
        return {play: _Course(scores=list(episode.view.scores)) for episode, play in fresh}

    def _record(self, row: int, play: Play, course: _Course, result: StepResult) -> None:
        """Add a step of one env to the course of its play, after the slots ticked, as training reports it."""
        episode, epoch, outcome = result.episodes[row], result.epochs[row], result.outcomes[row]
        assert epoch is not None
        assert outcome is not None
        course.scores.append(epoch.measured.score)
        course.net_return += sum(outcome.reward_parts.values())
        course.costs -= sum(value for part, value in outcome.reward_parts.items() if part != "score")
        course.parameter_ratio = episode.view.parameter_ratio
        course.broke_down = outcome.breakdown is not None
        at = StepNumber(play.key.round + 1, result.step + 1)
        decision = result.decisions[row]
        play.events.append(reporter.env_stepped(episode, decision, epoch.measured, outcome.reward_parts, at))


def _keep(play: Play, step: int, episode: Episode, course: _Course, max_bytes: int) -> None:
    """Take a snapshot before a step, unless the snapshots of the play would be larger than `max_bytes`."""
    found = capture_episode(episode)
    copied = found._replace(tensors={name: value.clone() for name, value in found.tensors.items()})
    snapshot = Snapshot(copied, course.copy())
    if snapshot.bytes + sum(kept.bytes for kept in play.snapshots.values()) <= max_bytes:
        play.snapshots[step] = snapshot


def _resume(episode: Episode, snapshot: Snapshot, key: EpisodeKey) -> _Course:
    """Set an episode to a snapshot, and return its course so far."""
    episode.env.enter(key)
    install_episode(episode, snapshot.state)
    return snapshot.course.copy()


def _trajectory(episode: Episode, course: _Course, waited: Sequence[int]) -> Trajectory:
    return Trajectory(
        scores=course.scores,
        net_return=course.net_return,
        costs=course.costs,
        parameter_ratio=course.parameter_ratio,
        final_score=episode.view.scores[-1] if course.broke_down else course.scores[-1],
        waited=[step for step in waited if step < len(course.scores)],  # the agent decides after a breakdown, too
        broke_down=course.broke_down,
    )
