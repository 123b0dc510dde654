"""Results of an evaluation: means, bootstrap intervals and paired differences of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from esper.evaluation.episodes import EpisodeResult


REFERENCE_POLICY = "heuristic"
"""Policy with which every other one is compared. PPO is also compared with each of the others."""
CONFIDENCE_LEVEL = 0.95
"""Level of every interval."""
BOOTSTRAP_RESAMPLES = 10_000
"""Resamples per interval."""


class IntervalEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over episodes with its percentile bootstrap interval of level `CONFIDENCE_LEVEL` (Efron, 1979)."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if the whole interval is above 0, or below."""
        return self.low > 0 or self.high < 0


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one policy over all episodes."""

    policy: str
    test_accuracy: IntervalEstimate
    validation_accuracy: IntervalEstimate
    parameter_ratio: IntervalEstimate
    net_return: IntervalEstimate
    episodes: list[dict[str, float]]
    """The same four values of each episode. The order of the episodes is the same for every policy."""


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Net return of `policy` minus that of `against`, paired by episode."""

    policy: str
    against: str
    net_return: IntervalEstimate


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `evaluate`; its JSON output is this struct."""

    checkpoint: str
    task: str
    steps: int
    """Steps per episode."""
    episodes: int
    """Episodes per policy."""
    seed: int
    level: float
    """Confidence level of every interval."""
    resamples: int
    """Bootstrap resamples per interval."""
    policies: list[PolicyResult]
    differences: list[PairedDifference]


def build_report(
    results: Mapping[str, Sequence[EpisodeResult]], *, checkpoint: str, task: str, steps: int, seed: int
) -> EvaluationReport:
    """Compute intervals and paired differences from the results of all policies.

    Args:
        results: Results of each episode, keyed by policy; the episodes are the same for every policy.
        checkpoint: Path of the evaluated checkpoint.
        task: Name of its task.
        steps: Steps per episode.
        seed: Random seed of the episodes, also used for resampling.
    """
    returns = {policy: [episode.net_return for episode in episodes] for policy, episodes in results.items()}
    return EvaluationReport(
        checkpoint=checkpoint,
        task=task,
        steps=steps,
        episodes=len(next(iter(returns.values()))),
        seed=seed,
        level=CONFIDENCE_LEVEL,
        resamples=BOOTSTRAP_RESAMPLES,
        policies=[_policy_result(policy, episodes, seed) for policy, episodes in results.items()],
        differences=[
            PairedDifference(
                policy=policy, against=against, net_return=paired_difference(returns[policy], returns[against], seed)
            )
            for policy, against in _pairs(list(results))
        ],
    )


def _policy_result(policy: str, episodes: Sequence[EpisodeResult], seed: int) -> PolicyResult:
    rows = [vars(episode) for episode in episodes]
    means = {name: bootstrap_mean([row[name] for row in rows], seed) for name in rows[0]}
    return PolicyResult(policy=policy, episodes=rows, **means)


def _pairs(policies: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs to compare: PPO with each other policy, then each other policy with the reference."""
    others = [policy for policy in policies if policy != "ppo"]
    pairs = [("ppo", other) for other in others] if "ppo" in policies else []
    if REFERENCE_POLICY in policies:
        pairs += [(other, REFERENCE_POLICY) for other in others if other != REFERENCE_POLICY]
    return pairs


def to_json(report: EvaluationReport) -> str:
    """Encode a report as one line of JSON."""
    return msgspec.json.encode(report).decode()


def bootstrap_mean(values: Sequence[float], seed: int) -> IntervalEstimate:
    """Return the mean of independent values with its bootstrap interval.

    Args:
        values: Two or more values, because one value has no measurable spread.
        seed: Random seed of the resampling.

    Raises:
        ValueError: There are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least two values, got {len(values)}")
    sample = np.asarray(values, dtype=np.float64)
    indices = np.random.default_rng(seed).integers(len(sample), size=(BOOTSTRAP_RESAMPLES, len(sample)))
    tail = (1 - CONFIDENCE_LEVEL) / 2
    low, high = np.quantile(sample[indices].mean(axis=1), [tail, 1 - tail])
    return IntervalEstimate(mean=float(sample.mean()), low=float(low), high=float(high))


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int) -> IntervalEstimate:
    """Return the mean of the pairwise differences `first` − `second`; variation that the pairs share cancels.

    Raises:
        ValueError: The lengths differ, or there are fewer than two pairs.
    """
    return bootstrap_mean([a - b for a, b in zip(first, second, strict=True)], seed)
