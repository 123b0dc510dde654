"""Means, bootstrap intervals and paired differences of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from esper.evaluation.episodes import EpisodeResult


REFERENCE = "heuristic"
"""What every policy is compared with; PPO is compared with each of them too."""


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all episodes."""

    policy: str
    test_accuracy: Estimate
    validation_accuracy: Estimate
    parameter_ratio: Estimate
    net_return: Estimate
    episodes: list[dict[str, float]]
    """The same of each episode, in their order: the same for every policy."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Net return of one policy less that of another, paired by episode."""

    policy: str
    against: str
    net_return: Estimate


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `evaluate` says."""

    checkpoint: str
    task: str
    steps: int
    episodes: int
    seed: int
    level: float
    """Of every interval."""
    resamples: int
    policies: list[PolicyReport]
    differences: list[Difference]


def compare(
    results: Mapping[str, Sequence[EpisodeResult]], *, checkpoint: str, task: str, steps: int, seed: int
) -> Comparison:
    """Put results together.

    Args:
        results: by policy, episode by episode, on the same episodes.
        checkpoint: what was evaluated.
        task: its task.
        steps: of an episode.
        seed: of the episodes; of the resampling too.
    """
    returns = {policy: [episode.net_return for episode in episodes] for policy, episodes in results.items()}
    return Comparison(
        checkpoint=checkpoint,
        task=task,
        steps=steps,
        episodes=len(next(iter(returns.values()))),
        seed=seed,
        level=LEVEL,
        resamples=RESAMPLES,
        policies=[_report(policy, episodes, seed) for policy, episodes in results.items()],
        differences=[
            Difference(
                policy=policy, against=against, net_return=paired_difference(returns[policy], returns[against], seed)
            )
            for policy, against in _pairs(list(results))
        ],
    )


def _report(policy: str, episodes: Sequence[EpisodeResult], seed: int) -> PolicyReport:
    rows = [vars(episode) for episode in episodes]
    means = {name: estimate([row[name] for row in rows], seed) for name in rows[0]}
    return PolicyReport(policy=policy, episodes=rows, **means)


def _pairs(policies: Sequence[str]) -> list[tuple[str, str]]:
    """PPO against each other policy, then each other one against the reference."""
    others = [policy for policy in policies if policy != "ppo"]
    pairs = [("ppo", other) for other in others] if "ppo" in policies else []
    if REFERENCE in policies:
        pairs += [(other, REFERENCE) for other in others if other != REFERENCE]
    return pairs


def as_json(comparison: Comparison) -> str:
    """One line of JSON: a `Comparison`."""
    return msgspec.json.encode(comparison).decode()


LEVEL = 0.95
RESAMPLES = 10_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over episodes, and the percentile bootstrap interval of level `LEVEL` around it (Efron, 1979)."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float], seed: int) -> Estimate:
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
    drawn = np.random.default_rng(seed).integers(len(sample), size=(RESAMPLES, len(sample)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(sample[drawn].mean(axis=1), [tail, 1 - tail])
    return Estimate(mean=float(sample.mean()), low=float(low), high=float(high))


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int) -> Estimate:
    """The mean of `first` − `second`, pair by pair: what the pairs share cancels out.

    Raises:
        ValueError: they are not of one length, or there are fewer than two pairs.
    """
    return estimate([a - b for a, b in zip(first, second, strict=True)], seed)
