"""Context of the anomaly rules: their scopes, health statistics, and running extremes that make most rules cheap.

The rules check every step of every env, and anomalies are rare. The running extremes show that nothing is wrong without
a scan of the earlier steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from enum import Enum
from statistics import median

from esper.telemetry import events as ev
from esper.telemetry.health_stats import EnvStepStats, RunHealth

MANY_STEPS = 1 << 30
"""Stands for an unknown number of steps; more than any rule needs."""


class Scope(Enum):
    """Kind of object that a rule checks. Each scope belongs to one event type, which starts and ends its anomalies."""

    ENV = "env"
    """One env, at each of its steps."""
    GOVERNOR = "governor"
    """Rollbacks of one env."""
    LANE = "lane"
    """One lane, at each sample of its device."""
    POLICY = "policy"
    """The policy, at each update."""


class EpisodeExtremes:
    """Running extremes of an env's current episode.

    With them, a rule scans the earlier steps only if the scan could find something.
    """

    __slots__ = ("_best", "_lowest_norms", "round", "second_lowest_norms", "steps_since_best")

    def __init__(self, first: EnvStepStats) -> None:
        self.round = first.round
        self.steps_since_best = 0
        """Steps since the best accuracy; `MANY_STEPS` or more after a NaN, which cannot be compared."""
        self.second_lowest_norms = [math.inf] * (1 + len(first.slots))
        """Second lowest gradient norm of the host, then of each slot: a lower bound of any median of three norms."""
        self._lowest_norms = list(self.second_lowest_norms)
        self._best = -math.inf

    def fold(self, step: EnvStepStats) -> None:
        """Process a step of the env."""
        if step.accuracy > self._best:
            self._best = step.accuracy
            self.steps_since_best = 0
        else:
            self.steps_since_best += 1
            if math.isnan(step.accuracy):
                self._best, self.steps_since_best = math.inf, MANY_STEPS
        low = self.second_lowest_norms
        if step.grad_norm < low[0]:
            self._lower(0, step.grad_norm)
        for owner, norm in enumerate(step.slots, 1):
            if norm is not None and norm < low[owner]:
                self._lower(owner, norm)

    def _lower(self, owner: int, norm: float) -> None:
        self._lowest_norms[owner], self.second_lowest_norms[owner] = sorted((self._lowest_norms[owner], norm))


class SortedAccuracies:
    """Last accuracy of every env, sorted."""

    def __init__(self) -> None:
        self._by_env: dict[int, float] = {}
        self._sorted: list[float] = []
        """Without NaN, which cannot be sorted."""

    def set_accuracy(self, env: int, accuracy: float) -> None:
        """Replace the accuracy of an env."""
        last = self._by_env.get(env, math.nan)
        if last == last:
            del self._sorted[bisect_left(self._sorted, last)]
        self._by_env[env] = accuracy
        if accuracy == accuracy:
            insort(self._sorted, accuracy)

    def median_of_others(self, env: int) -> float | None:
        """Return the median over all envs except one; None if there is no other."""
        accuracies, excluded = self._sorted, self._by_env[env]
        count = len(self._by_env) - 1
        if count == 0:
            return None
        if len(accuracies) <= count:
            return median([accuracy for other, accuracy in self._by_env.items() if other != env])
        # Indices of the middle values, counted as if the excluded accuracy were not in the list.
        skipped, low, high = bisect_left(accuracies, excluded), (count - 1) // 2, count // 2
        low, high = low + (low >= skipped), high + (high >= skipped)
        return accuracies[low] if low == high else (accuracies[low] + accuracies[high]) / 2


class RuleContext:
    """State that the rules read, including the event that they check.

    Args:
        health: Health statistics of the run so far. The context updates them.
    """

    def __init__(self, health: RunHealth) -> None:
        self.health = health
        self.episodes: dict[int, EpisodeExtremes] = {}
        """Keyed by env index."""
        self.not_finite: list[tuple[str, float]] = []
        """Names and values of the non-finite quantities of the last step."""
        self.accuracies = SortedAccuracies()
        self._loads: dict[str, float | None] = {}
        """Cached mean load by lane, removed at each new sample."""
        for index, env in health.envs.items():
            for step in env.recent:
                self._fold_env_step(index, step)

    def fold_step(self, event: ev.EnvStepped) -> bool:
        """Process a step of an env. Return True if it is the first step of an episode."""
        self.not_finite = self.health.fold_step(event)
        return self._fold_env_step(event.env, self.health.envs[event.env].recent[-1])

    def fold_sample(self, event: ev.DeviceSampled) -> None:
        """Process a sample of a lane's device."""
        self.health.fold_sample(event)
        self._loads.pop(event.device, None)

    def lane_load(self, lane: str, steps: int) -> float | None:
        """Return `LaneHealth.mean_load` of a sampled lane, cached. All callers must pass the same `steps`."""
        if lane not in self._loads:
            self._loads[lane] = self.health.lanes[lane].mean_load(steps)
        return self._loads[lane]

    def _fold_env_step(self, env: int, step: EnvStepStats) -> bool:
        episode, is_first = self.episodes.get(env), False
        if episode is None or episode.round != step.round:
            episode, is_first = EpisodeExtremes(step), True
            self.episodes[env] = episode
        episode.fold(step)
        self.accuracies.set_accuracy(env, step.accuracy)
        return is_first
