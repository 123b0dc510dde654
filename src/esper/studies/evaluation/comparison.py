"""Results of an evaluation: means, intervals and paired differences of policies.

The interval of a trained policy is over its training seeds and the episodes: how good is a policy that is trained like
this, on hosts like these? With a single training seed, and for policies that are not trained, it is over the episodes
only; the field `over` tells. An interval holds for its own value. "Better" and "worse" are corrected for the number of
differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from esper.common.intervals import CONFIDENCE_LEVEL, IntervalEstimate, differ_from_zero, seeds_interval
from esper.common.score_scale import ScoreScale
from esper.recordings.effects.paying import PayingPlantings
from esper.studies.evaluation.results import PPO, EpisodeResult, PolicyRun

REFERENCE_POLICY = "heuristic"
"""Policy with which every other one is compared. PPO is also compared with each of the others."""
WORST_FRACTION = 0.05
"""Fraction of the episodes, those of the lowest net return, whose mean is reported."""
SEEDS_AND_EPISODES, EPISODES = "training seeds and episodes", "episodes"
"""Samples of an interval."""
BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"
"""Verdicts on a difference."""

_EpisodePairs: TypeAlias = list[tuple[EpisodeResult, EpisodeResult]]
"""The episodes of two policies for one training seed. [E]"""


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Results of one policy over all episodes."""

    policy: str
    over: str
    """Samples of the intervals: `training seeds and episodes`, or `episodes`."""
    test_score: IntervalEstimate
    validation_score: IntervalEstimate
    parameter_ratio: IntervalEstimate
    net_return: IntervalEstimate
    test_return: IntervalEstimate
    """Net return with the score gained on the test split."""
    breakdowns: float
    """Fraction of the episodes in which the env broke down."""
    worst_return: float
    """Mean net return of the worst 5 % of the episodes."""
    cpu_seconds: float
    """CPU time of all processes for all of its episodes."""
    plantings: PayingPlantings | None = None
    """Plantings that pay, over the first episodes of each training seed; absent if they were not left out."""
    episodes: list[list[EpisodeResult]]
    """Results of each episode, by training seed. The order of the episodes is the same for every policy."""


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Values of `policy` minus those of `against`, paired by episode."""

    policy: str
    against: str
    over: str
    """Samples of the intervals: `training seeds and episodes`, or `episodes`."""
    net_return: IntervalEstimate
    test_return: IntervalEstimate
    test_score: IntervalEstimate
    verdict: str
    """`better` or `worse` by net return, or `undecided`: corrected for the number of differences (Holm, 1979)."""


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `evaluate`; its JSON output is this struct."""

    checkpoints: list[str]
    """One for each training seed."""
    task: str
    score_name: str
    """Name of the task's score."""
    score_scale: ScoreScale
    """Range and better end of the score."""
    steps: int
    """Steps per episode."""
    episodes: int
    """Episodes per policy and training seed."""
    seed: int
    level: float
    """Confidence level of every interval, and of all verdicts together."""
    policies: list[PolicyResult]
    differences: list[PairedDifference]


def build_report(
    runs: Mapping[str, Sequence[PolicyRun]],
    *,
    checkpoints: Sequence[str],
    task: str,
    score_name: str,
    score_scale: ScoreScale,
    steps: int,
    seed: int,
    plantings: Mapping[str, PayingPlantings | None] = MappingProxyType({}),
) -> EvaluationReport:
    """Compute intervals and paired differences from the results of all policies.

    Args:
        runs: Run of each training seed, keyed by policy; policies that are the same for all of them have one run. The
            episodes are the same for every policy and training seed.
        plantings: Plantings that pay, keyed by policy.
    """
    return EvaluationReport(
        checkpoints=list(checkpoints),
        task=task,
        score_name=score_name,
        score_scale=score_scale,
        steps=steps,
        episodes=len(next(iter(runs.values()))[0].episodes),
        seed=seed,
        level=CONFIDENCE_LEVEL,
        policies=[
            _policy_result(policy, of_policy, plantings.get(policy), score_scale) for policy, of_policy in runs.items()
        ],
        differences=_differences(runs, score_scale),
    )


def _policy_result(
    policy: str, runs: Sequence[PolicyRun], plantings: PayingPlantings | None, scale: ScoreScale
) -> PolicyResult:
    def estimate(name: str) -> IntervalEstimate:
        return seeds_interval([[getattr(episode, name) for episode in run.episodes] for run in runs])

    every = [episode for run in runs for episode in run.episodes]
    returns = sorted(episode.net_return for episode in every)
    return PolicyResult(
        policy=policy,
        over=_over(runs),
        test_score=estimate("test_score").clip(*scale.limits),
        validation_score=estimate("validation_score").clip(*scale.limits),
        parameter_ratio=estimate("parameter_ratio").clip(1.0, math.inf),  # seeds only add to the host
        net_return=estimate("net_return"),
        test_return=estimate("test_return"),
        breakdowns=sum(episode.broke_down for episode in every) / len(every),
        worst_return=statistics.fmean(returns[: max(round(len(returns) * WORST_FRACTION), 1)]),
        cpu_seconds=sum(run.cpu_seconds for run in runs),
        plantings=plantings,
        episodes=[run.episodes for run in runs],
    )


def _differences(runs: Mapping[str, Sequence[PolicyRun]], scale: ScoreScale) -> list[PairedDifference]:
    pairs = _pairs(list(runs))
    episodes = [_pair_episodes(runs[policy], runs[against]) for policy, against in pairs]
    is_decided = differ_from_zero([_paired_values(of_pair, "net_return") for of_pair in episodes])
    return [
        _difference(policy, against, of_pair, scale, is_decided=decided)
        for (policy, against), of_pair, decided in zip(pairs, episodes, is_decided, strict=True)
    ]


def _pair_episodes(first: Sequence[PolicyRun], second: Sequence[PolicyRun]) -> list[_EpisodePairs]:
    """Pair the episodes of two policies by training seed. A policy that is the same for all is paired with each run."""
    return [
        list(zip(first[index % len(first)].episodes, second[index % len(second)].episodes, strict=True))
        for index in range(max(len(first), len(second)))
    ]


def _paired_values(pairs: Sequence[_EpisodePairs], name: str) -> list[list[float]]:
    """Return the differences [S, E] of a field of `EpisodeResult`."""
    return [[getattr(one, name) - getattr(other, name) for one, other in of_seed] for of_seed in pairs]


def _difference(
    policy: str, against: str, pairs: Sequence[_EpisodePairs], scale: ScoreScale, *, is_decided: bool
) -> PairedDifference:
    def estimate(name: str) -> IntervalEstimate:
        return seeds_interval(_paired_values(pairs, name))

    net_return, (low, high) = estimate("net_return"), scale.limits
    decision = BETTER if net_return.mean > 0 else WORSE
    return PairedDifference(
        policy=policy,
        against=against,
        over=_over(pairs),
        net_return=net_return,
        test_return=estimate("test_return"),
        test_score=estimate("test_score").clip(low - high, high - low),
        verdict=decision if is_decided else UNDECIDED,
    )


def _over(runs: Sequence[object]) -> str:
    return SEEDS_AND_EPISODES if len(runs) > 1 else EPISODES


def _pairs(policies: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs to compare: PPO with each other policy, then each other policy with the reference."""
    others = [policy for policy in policies if policy != PPO]
    pairs = [(PPO, other) for other in others] if PPO in policies else []
    if REFERENCE_POLICY in policies:
        pairs += [(other, REFERENCE_POLICY) for other in others if other != REFERENCE_POLICY]
    return pairs
