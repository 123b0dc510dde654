"""Statistics of a whole run, for `show` and `compare`."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

import msgspec

from esper.history.history import History
from esper.history.run_info import display_status, is_being_written
from esper.telemetry import events as ev
from esper.telemetry.series import BlueprintStats, min_median_max


class RoundSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A finished round: what its episodes came to."""

    round: int
    accuracy: tuple[float, float, float]
    """Least, median and greatest validation accuracy at the end of its episodes."""
    episode_return: float
    """Mean over the envs, undiscounted."""
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host at the end, mean over the envs."""


class BestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The greatest validation accuracy, and where it was reached first."""

    accuracy: float
    env: int
    round: int
    step: int


class BlueprintSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the seeds of one blueprint, as the dashboard shows it: `show` prints this as JSON."""

    planted: int = 0
    fossilized: int = 0
    culled: int = 0
    contribution: float | None = None
    """Mean over the measured seeds of the last measurement of each; absent if there is none."""
    measurements: int = 0
    """Number of measured seeds: their contribution is final, as they were culled or their episode has ended."""

    @classmethod
    def from_stats(cls, record: BlueprintStats) -> BlueprintSummary:
        """Return the numbers of a blueprint in a RunState."""
        return cls(
            planted=record.planted,
            fossilized=record.fossilized,
            culled=record.culled,
            contribution=record.contribution,
            measurements=record.judged,
        )


class RunSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run as `show --json` prints it. What was not recorded is absent."""

    run: str
    path: str
    state: str
    """live, paused, done, stopped, failed; or crashed: it has not ended, and nobody writes to it."""
    reason: str | None = None
    """Why it stopped or failed."""
    task: str
    policy: str
    seed: int
    lanes: list[str]
    """For each env, the device of its lane."""
    host_parameters: int
    versions: dict[str, str]
    config: dict[str, Any]
    started: float
    """Seconds since the epoch."""
    duration: float
    """Recorded seconds: the time between a run's end and its resumption does not count."""
    rounds: int
    """What the run was to have."""
    steps: int
    """Steps of an episode."""
    steps_done: int = 0
    """Steps completed, over all rounds."""
    env_steps: int = 0
    """Steps completed, over all rounds and envs."""
    env_steps_per_second: float | None = None
    """Over the wall time of the steps."""
    finished: list[RoundSummary] = []
    """Every finished round, in order."""
    best: BestResult | None = None
    seeds: dict[str, BlueprintSummary] = {}
    """By blueprint."""
    anomalies: dict[str, int] = {}
    """By rule, how often it was broken."""
    skipped: dict[str, int] = {}
    """Optimizer steps skipped for gradients that were not finite, by owner: host or slot."""
    rollbacks: int = 0
    """Envs that the governor took back to a good state."""
    pauses: int = 0
    checkpoints: int = 0
    """How many were written."""
    last_checkpoint: str | None = None
    """Where the last one is."""
    phases: dict[str, float] = {}
    """Seconds spent in each phase."""
    notices: list[str] = []
    """What of the recording could not be read."""


def summarise(history: History, now: float) -> RunSummary | None:
    """Sum a recording up; None if the run has not said what it is.

    Args:
        history: of the run.
        now: seconds since the epoch.

    Raises:
        ReadError: a file cannot be read.
        OSError: it cannot be told whether a process writes to the run.
    """
    state = history.state_at(history.length)
    started = state.started
    if started is None:
        return None
    tally = _SummaryBuilder(envs=len(started.lanes))
    for event in history.events():
        tally.add(event)
    directory = history.path if history.path.is_dir() else history.path.parent
    wall = tally.wall
    return RunSummary(
        run=started.run,
        path=str(history.path),
        state=display_status(state.status, live=is_being_written(directory, state.time, now)),
        reason=state.reason,
        task=started.task,
        policy=started.policy,
        seed=started.seed,
        lanes=started.lanes,
        host_parameters=started.host_parameters,
        versions=started.versions,
        config=started.config,
        started=state.start_time,
        duration=history.duration,
        rounds=started.rounds,
        steps=started.steps,
        steps_done=state.steps_done,
        env_steps=tally.env_steps,
        env_steps_per_second=tally.env_steps / wall if wall > 0 else None,
        finished=tally.finished,
        best=tally.best,
        seeds={blueprint: BlueprintSummary.from_stats(record) for blueprint, record in state.blueprints.items()},
        anomalies=dict(tally.anomalies.most_common()),
        skipped=dict(tally.skipped),
        rollbacks=tally.rollbacks,
        pauses=tally.pauses,
        checkpoints=tally.checkpoints,
        last_checkpoint=tally.last_checkpoint,
        phases=state.phases,
        notices=history.notices,
    )


class _SummaryBuilder:
    """The counts of a pass."""

    def __init__(self, envs: int) -> None:
        self._envs = envs
        self._episodes: dict[int, ev.EpisodeEnded] = {}
        """Those of the round in progress, by env."""
        self.finished: list[RoundSummary] = []
        self.best: BestResult | None = None
        self.anomalies: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.env_steps = self.rollbacks = self.pauses = self.checkpoints = 0
        self.last_checkpoint: str | None = None
        self.wall = 0.0

    def add(self, event: ev.AnyEvent) -> None:
        """Count an event."""
        match event:
            case ev.EnvStepped():
                self._step(event)
            case ev.RoundStarted():
                self._episodes = {}
            case ev.PhaseTimed():
                self.wall += event.wall
            case ev.EpisodeEnded():
                self._episode(event)
            case ev.AnomalyFound():
                self.anomalies[event.rule] += 1
            case ev.GovernorRolledBack():
                self.rollbacks += 1
            case ev.Paused():
                self.pauses += 1
            case ev.CheckpointSaved():
                self.checkpoints += 1
                self.last_checkpoint = event.path

    def _step(self, event: ev.EnvStepped) -> None:
        self.env_steps += 1
        if math.isfinite(event.accuracy) and (self.best is None or event.accuracy > self.best.accuracy):
            self.best = BestResult(accuracy=event.accuracy, env=event.env, round=event.round, step=event.step)
        if event.skipped:
            self.skipped.update(event.skipped)

    def _episode(self, event: ev.EpisodeEnded) -> None:
        self._episodes[event.env] = event
        if len(self._episodes) < self._envs:
            return
        episodes = self._episodes.values()
        self.finished.append(
            RoundSummary(
                round=event.round,
                accuracy=min_median_max([episode.accuracy for episode in episodes]),
                episode_return=statistics.fmean(episode.episode_return for episode in episodes),
                parameter_ratio=statistics.fmean(episode.parameter_ratio for episode in episodes),
            )
        )


def config_diff(config: dict[str, Any], other: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """What two configurations say differently, by key (`ppo.gamma`); None for a key that only one of them has."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*config, *other]):
        mine, theirs = config.get(key), other.get(key)
        if isinstance(mine, dict) or isinstance(theirs, dict):
            found |= config_diff(mine or {}, theirs or {}, f"{prefix}{key}.")
        elif mine != theirs:
            found[f"{prefix}{key}"] = (mine, theirs)
    return found


def config_value(config: dict[str, Any], key: str) -> Any:
    """The value of a key as `differences` writes it; None where the configuration does not have it."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
