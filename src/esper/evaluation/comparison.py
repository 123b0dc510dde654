"""Means, bootstrap intervals and paired differences of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from esper.evaluation.episodes import EpisodeResult


REFERENCE_POLICY = "heuristic"
"""What every policy is compared with; PPO is compared with each of them too."""


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all episodes."""

    policy: str
    test_accuracy: IntervalEstimate
    validation_accuracy: IntervalEstimate
    parameter_ratio: IntervalEstimate
    net_return: IntervalEstimate
    episodes: list[dict[str, float]]
    """The same of each episode, in their order: the same for every policy."""


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Net return of one policy less that of another, paired by episode."""

    policy: str
    against: str
    net_return: IntervalEstimate


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `evaluate` says."""

    checkpoint: str
    task: str
    steps: int
    episodes: int
    seed: int
    level: float
    """Of every interval."""
    resamples: int
    policies: list[PolicyResult]
    differences: list[PairedDifference]


def build_report(
    results: Mapping[str, Sequence[EpisodeResult]], *, checkpoint: str, task: str, steps: int, seed: int
) -> EvaluationReport:
    """Put results together.

    Args:
        results: by policy, episode by episode, on the same episodes.
        checkpoint: what was evaluated.
        task: its task.
        steps: of an episode.
        seed: of the episodes; of the resampling too.
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
        policies=[_report(policy, episodes, seed) for policy, episodes in results.items()],
        differences=[
            PairedDifference(
                policy=policy, against=against, net_return=paired_difference(returns[policy], returns[against], seed)
            )
            for policy, against in _pairs(list(results))
        ],
    )


def _report(policy: str, episodes: Sequence[EpisodeResult], seed: int) -> PolicyResult:
    rows = [vars(episode) for episode in episodes]
    means = {name: bootstrap_mean([row[name] for row in rows], seed) for name in rows[0]}
    return PolicyResult(policy=policy, episodes=rows, **means)


def _pairs(policies: Sequence[str]) -> list[tuple[str, str]]:
    """PPO against each other policy, then each other one against the reference."""
    others = [policy for policy in policies if policy != "ppo"]
    pairs = [("ppo", other) for other in others] if "ppo" in policies else []
    if REFERENCE_POLICY in policies:
        pairs += [(other, REFERENCE_POLICY) for other in others if other != REFERENCE_POLICY]
    return pairs


def to_json(comparison: EvaluationReport) -> str:
    """One line of JSON: a `Comparison`."""
    return msgspec.json.encode(comparison).decode()


CONFIDENCE_LEVEL = 0.95
BOOTSTRAP_RESAMPLES = 10_000


class IntervalEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over episodes, and the percentile bootstrap interval of level `LEVEL` around it (Efron, 1979)."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def bootstrap_mean(values: Sequence[float], seed: int) -> IntervalEstimate:
    """The mean of independent values.

    Args:
        values: two or more; of one, nothing can be said of its spread.
        seed: of the resampling.

    Raises:
        ValueError: there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs two values or more, not {len(values)}")
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(sample), size=(BOOTSTRAP_RESAMPLES, len(sample)))
    tail = (1 - CONFIDENCE_LEVEL) / 2
    low, high = np.quantile(sample[drawn].mean(axis=1), [tail, 1 - tail])
    return IntervalEstimate(mean=float(sample.mean()), low=float(low), high=float(high))


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int) -> IntervalEstimate:
    """The mean of `first` − `second`, pair by pair: what the pairs share cancels out.

    Raises:
        ValueError: they are not of one length, or there are fewer than two pairs.
    """
    return bootstrap_mean([a - b for a, b in zip(first, second, strict=True)], seed)
