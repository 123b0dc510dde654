"""Statistics of groups of runs, for `compare --group-by`: means over the runs with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from esper.common.intervals import t_interval
from esper.recordings.history.measures import LAST_RETURN, LAST_SCORE, MEASURES, Measure
from esper.recordings.history.run_groups import GroupCurve, RunGroup, group_curve
from esper.recordings.history.summary import RunSummary


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared with others."""

    summary: RunSummary
    title: str
    """Display name in the notes on the run, else its name."""
    config: dict[str, Any]
    """Configuration, flat, with keys like `ppo.gamma`."""


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
    """Results of the whole runs and of their last finished rounds, keyed by name in `MEASURES`."""
    score: MeanCurve
    """Median over the envs of the final validation score, by round."""
    episode_return: MeanCurve
    """Mean over the envs of the return, by round."""


def summarise_group(group: RunGroup[ComparedRun]) -> GroupSummary:
    """Return the summary of a group."""
    results = {name: mean_result(measure, group.runs) for name, measure in MEASURES.items()}
    return GroupSummary(
        label=group.label,
        values=group.values,
        runs=[run.summary.run for run in group.runs],
        results={name: result for name, result in results.items() if result is not None},
        score=_mean_curve(round_curve(group.runs, LAST_SCORE)),
        episode_return=_mean_curve(round_curve(group.runs, LAST_RETURN)),
    )


def mean_result(measure: Measure, runs: Sequence[ComparedRun]) -> MeanResult | None:
    """Return the mean of a number over runs, with its interval; None if it was not measured."""
    values = [value for run in runs if (value := measure.of(run.summary)) is not None]
    if not values:
        return None
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return MeanResult(mean=sum(values) / len(values), runs=len(values))
    interval = t_interval(values).clip(*measure.limits_in(runs[0].summary.score_scale))
    return MeanResult(mean=interval.mean, low=interval.low, high=interval.high, runs=len(values))


def round_curve(runs: Sequence[ComparedRun], measure: Measure) -> GroupCurve:
    """Return the mean over runs of a measure of each finished round, by the number of the round."""
    value = measure.of_round
    assert value is not None
    return group_curve(
        [([finished.round for finished in run.summary.finished], [*map(value, run.summary.finished)]) for run in runs]
    )


def _mean_curve(curve: GroupCurve) -> MeanCurve:
    rounds, mean, low, high = (column.tolist() for column in curve)
    ends = {} if any(map(math.isnan, low)) else {"low": low, "high": high}
    return MeanCurve(rounds=[int(number) for number in rounds], mean=mean, **ends)
