"""Statistics of groups of runs, for `compare --group-by`: means over the runs with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from esper.history.run_groups import GroupCurve, RunGroup, group_curve
from esper.history.summary import RoundSummary, RunSummary
from esper.intervals import t_interval


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared with others."""

    summary: RunSummary
    title: str
    """Display name in the notes on the run, else its name."""
    config: dict[str, Any]
    """Configuration, flat, with keys like `ppo.gamma`."""


@dataclass(frozen=True)
class Metric:
    """A number of a run."""

    value: Callable[[RunSummary], float | None]
    """Returns the number; None if it was not measured."""
    limits: tuple[float, float] = (0.0, math.inf)
    """Minimum and maximum that the number can have."""


def _of_last_round(value: Callable[[RoundSummary], float]) -> Callable[[RunSummary], float | None]:
    """Return a function that returns a value of the last finished round; None without one."""
    return lambda run: value(run.finished[-1]) if run.finished else None


METRICS: dict[str, Metric] = {
    "finished_rounds": Metric(lambda run: len(run.finished)),
    "env_steps": Metric(lambda run: run.env_steps),
    "env_steps_per_second": Metric(lambda run: run.env_steps_per_second),
    "duration": Metric(lambda run: run.duration),
    "best_score": Metric(lambda run: run.best.score if run.best else None, (0.0, 1.0)),
    "last_score": Metric(_of_last_round(lambda last: last.score.median), (0.0, 1.0)),
    "last_return": Metric(_of_last_round(lambda last: last.episode_return), (-math.inf, math.inf)),
    "last_parameter_ratio": Metric(_of_last_round(lambda last: last.parameter_ratio), (1.0, math.inf)),
    "planted": Metric(lambda run: sum(seeds.planted for seeds in run.seeds.values())),
    "fossilized": Metric(lambda run: sum(seeds.fossilized for seeds in run.seeds.values())),
    "culled": Metric(lambda run: sum(seeds.culled for seeds in run.seeds.values())),
    "anomalies": Metric(lambda run: sum(run.anomalies.values())),
    "skipped_batches": Metric(lambda run: run.skipped_batches),
    "rollbacks": Metric(lambda run: run.rollbacks),
    "checkpoints": Metric(lambda run: run.checkpoints),
}
"""Numbers of a run that are compared. The score is the median over the envs, return and parameters the mean."""


class MeanResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean of a number over the runs of a group that have it."""

    mean: float
    """Mean over these runs."""
    low: float | None = None
    """Lower end of the 95 % t interval over the runs; absent with one run, or if a value is not finite."""
    high: float | None = None
    """Upper end of the interval."""
    runs: int
    """Number of runs that have the number."""


class MeanCurve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean of a curve over the runs of a group: at each round that two of them have, or the only run."""

    rounds: list[int] = []
    """Numbers of the rounds."""
    mean: list[float] = []
    """Means over the runs that have the round."""
    low: list[float] | None = None
    """Lower ends of the 95 % t intervals over the runs; absent with one run."""
    high: list[float] | None = None
    """Upper ends of the intervals."""


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of a group of runs, as `compare --group-by --json` prints it."""

    label: str
    """Values by which the group differs from the others."""
    values: dict[str, Any]
    """Configuration that the runs of the group share: the values of the grouping keys."""
    runs: list[str]
    """Names of the runs."""
    results: dict[str, MeanResult]
    """Results of the whole runs and of their last finished rounds, keyed by metric."""
    score: MeanCurve
    """Median over the envs of the final validation score, by round."""
    episode_return: MeanCurve
    """Mean over the envs of the return, by round."""


def summarise_group(group: RunGroup[ComparedRun]) -> GroupSummary:
    """Return the summary of a group."""
    results = {name: mean_result(metric, group.runs) for name, metric in METRICS.items()}
    return GroupSummary(
        label=group.label,
        values=group.values,
        runs=[run.summary.run for run in group.runs],
        results={name: result for name, result in results.items() if result is not None},
        score=_mean_curve(round_curve(group.runs, lambda finished: finished.score.median)),
        episode_return=_mean_curve(round_curve(group.runs, lambda finished: finished.episode_return)),
    )


def mean_result(metric: Metric, runs: Sequence[ComparedRun]) -> MeanResult | None:
    """Return the mean of a number over runs, with its interval; None if it was not measured."""
    values = [value for run in runs if (value := metric.value(run.summary)) is not None]
    if not values:
        return None
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return MeanResult(mean=sum(values) / len(values), runs=len(values))
    interval = t_interval(values).clip(*metric.limits)
    return MeanResult(mean=interval.mean, low=interval.low, high=interval.high, runs=len(values))


def round_curve(runs: Sequence[ComparedRun], value: Callable[[RoundSummary], float]) -> GroupCurve:
    """Return the mean over runs of a value of each finished round, by the number of the round."""
    return group_curve(
        [([finished.round for finished in run.summary.finished], [*map(value, run.summary.finished)]) for run in runs]
    )


def _mean_curve(curve: GroupCurve) -> MeanCurve:
    rounds, mean, low, high = (column.tolist() for column in curve)
    ends = {} if any(map(math.isnan, low)) else {"low": low, "high": high}
    return MeanCurve(rounds=[int(number) for number in rounds], mean=mean, **ends)
