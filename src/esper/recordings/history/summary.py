"""The summary of a whole run, for `show` and `compare`."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Any, cast

import msgspec

from esper.common.intervals import SampleMean
from esper.common.score_scale import ScoreScale
from esper.recordings import events as ev
from esper.recordings.state.search_state import SearchState
from esper.recordings.state.series import BlueprintStats, FiveNumbers, five_numbers


class RoundSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the episodes of a finished round."""

    round: int
    score: FiveNumbers
    """Minimum, quartiles and maximum of the validation score at the end of the episodes."""
    episode_return: float
    """Undiscounted return, mean over the envs."""
    parameter_ratio: float
    """Parameters of host and seeds at the end, relative to those of the bare host; mean over the envs."""


def summarise_round(number: int, episodes: Collection[ev.EpisodeEnded]) -> RoundSummary:
    """Return the results of a finished round.

    Args:
        number: Number of the round, from 1.
        episodes: The ended episode of each env.
    """
    return RoundSummary(
        round=number,
        score=five_numbers([episode.score for episode in episodes]),
        episode_return=statistics.fmean(episode.episode_return for episode in episodes),
        parameter_ratio=statistics.fmean(episode.parameter_ratio for episode in episodes),
    )


class BestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Best validation score, and where it was first reached; of a growth, in the trainings of its answer."""

    score: float
    env: int
    round: int
    step: int


class RoundReference(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a round without growth."""

    round: int
    """Round, from 1."""
    score: float
    """Validation score at the end of the episodes, median over the envs; each env has that of its host."""
    envs: int
    """Number of envs whose host was simulated."""
    exact: bool
    """False if an episode of these hosts was not reproduced exactly, so that the score is approximate."""


class BlueprintWorth(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of the plantings of a blueprint on the return, each with all later decisions about its seed."""

    net: SampleMean
    """Effect on the net return."""
    gain: SampleMean
    """The same before rent, costs of ops and penalties."""
    rent: SampleMean
    """Rent, costs of ops and penalties."""
    exact: bool
    """False if an effect is approximate."""


class BlueprintSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics of the seeds of one blueprint, as `show --json` prints them."""

    planted: int = 0
    fossilized: int = 0
    culled: int = 0
    worth: BlueprintWorth | None = None
    """Effects of the seeds on the return; absent if none was computed."""

    @classmethod
    def from_stats(cls, record: BlueprintStats) -> BlueprintSummary:
        """Convert the statistics of a blueprint in a RunState."""
        return cls(
            planted=record.planted,
            fossilized=record.fossilized,
            culled=record.culled,
        )


class RunSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Summary of a run, as `show --json` prints it. Values that were not recorded are absent."""

    run: str
    path: str
    state: str
    """Name of the run's status, see `RunStatus`."""
    health: str
    """The status in a few words: `silent for 12s`, `crashed, can be resumed`."""
    reason: str | None = None
    """Why the run stopped or failed."""
    task: str
    policy: str
    seed: int
    lanes: list[str]
    """Device of each env's lane."""
    host_parameters: int
    versions: dict[str, str]
    config: dict[str, Any]
    task_defaults: dict[str, Any] = {}
    """Part of the configuration that the task itself sets: its slots and settings; absent if it is not known."""
    started: float
    """Time of the first event, in seconds since the epoch."""
    duration: float
    """Recorded seconds, without the time between the end of a run and its resumption."""
    rounds: int
    """Configured number of rounds; for a growth, an upper limit."""
    steps: int
    """Number of steps of an episode."""
    score_name: str
    """Name of the task's score."""
    score_scale: ScoreScale
    """Range and better end of the score."""
    steps_done: int = 0
    """Number of completed steps over all rounds."""
    env_steps: int = 0
    """Number of completed steps over all rounds and envs."""
    env_steps_per_second: float | None = None
    """Env steps per second of the wall time of all steps."""
    finished: list[RoundSummary] = []
    """Finished rounds, in order: those in which all episodes have ended."""
    references: list[RoundReference] = []
    """Scores without growth, by round, where they were computed."""
    measures: dict[str, float] = {}
    """Numbers of the run, keyed by their names in `measures.py`; those that were not measured are absent."""
    best: BestResult | None = None
    metrics: dict[str, FiveNumbers] = {}
    """Minimum, quartiles and maximum over the envs at the end of their last episode, keyed by metric of the task.
    Absent for a growth, whose last round may train networks that are only compared."""
    seeds: dict[str, BlueprintSummary] = {}
    """Keyed by blueprint."""
    anomalies: dict[str, int] = {}
    """Number of anomalies, keyed by rule."""
    skipped_batches: int = 0
    """Batches without an optimizer step, because a gradient overflowed."""
    overflows_by_owner: dict[str, int] = {}
    """Batches in which a gradient overflowed, keyed by its owner: the host or a slot."""
    rollbacks: int = 0
    """Number of rollbacks by the governor."""
    pauses: int = 0
    checkpoints: int = 0
    """Number of written checkpoints."""
    last_checkpoint: str | None = None
    """Path of the last checkpoint."""
    habits: list[str] = []
    """Sentences on what the policy does, in the last rounds and in the first ones; absent before the end of the first
    round, and for a growth."""
    phases: dict[str, float] = {}
    """Seconds spent in each phase, keyed by phase."""
    search: SearchState | None = None
    """Candidates and answer of a growth; absent for another run."""
    notices: list[str] = []
    """Messages about damaged or missing parts of the recording."""


def flat_config(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a configuration, keyed like `ppo.gamma`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= flat_config(cast("dict[str, Any]", value), f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
