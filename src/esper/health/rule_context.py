"""What an anomaly rule may look at besides its event.

Every step of every env is looked at, and anomalies are rare. What is kept here is at hand, or tells that a look back
would find nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from statistics import median

from esper.telemetry import events as ev
from esper.telemetry.health_stats import EnvStepStats, RunHealth

MANY_STEPS = 1 << 30
"""More steps than any rule asks for."""


class EpisodeExtremes:
    """Running extremes of the episode that an env is in.

    They tell when a look back over its steps could find nothing, which is most of the time.
    """

    __slots__ = ("_best", "_least", "round", "second_lowest_norms", "steps_since_best")

    def __init__(self, first: EnvStepStats) -> None:
        self.round = first.round
        self.steps_since_best = 0
        """Steps since the best accuracy; at least so many, if one was NaN, which compares with nothing."""
        self.second_lowest_norms = [math.inf] * (1 + len(first.slots))
        """Second least gradient norm: of the host, then of what was in each slot. No median of three is less."""
        self._least = list(self.second_lowest_norms)
        self._best = -math.inf

    def fold(self, vital: EnvStepStats) -> None:
        """Take a step in."""
        if vital.accuracy > self._best:
            self._best = vital.accuracy
            self.steps_since_best = 0
        else:
            self.steps_since_best += 1
            if math.isnan(vital.accuracy):
                self._best, self.steps_since_best = math.inf, MANY_STEPS
        low = self.second_lowest_norms
        if vital.grad_norm < low[0]:
            self._lower(0, vital.grad_norm)
        for owner, norm in enumerate(vital.slots, 1):
            if norm is not None and norm < low[owner]:
                self._lower(owner, norm)

    def _lower(self, owner: int, norm: float) -> None:
        self._least[owner], self.second_lowest_norms[owner] = sorted((self._least[owner], norm))


class SortedAccuracies:
    """The last accuracy of every env, in order."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._ordered: list[float] = []
        """Those that are numbers: a NaN has no place in an order."""

    def set_accuracy(self, env: int, accuracy: float) -> None:
        """Take the last accuracy of an env in."""
        last = self._of.get(env, math.nan)
        if last == last:
            del self._ordered[bisect_left(self._ordered, last)]
        self._of[env] = accuracy
        if accuracy == accuracy:
            insort(self._ordered, accuracy)

    def median_of_others(self, env: int) -> float | None:
        """Median over all envs but one; None where there is no other."""
        ordered, mine = self._ordered, self._of[env]
        count = len(self._of) - 1
        if count == 0:
            return None
        if len(ordered) <= count:
            return median([accuracy for other, accuracy in self._of.items() if other != env])
        # Its own place is left out.
        own, low, high = bisect_left(ordered, mine), (count - 1) // 2, count // 2
        low, high = low + (low >= own), high + (high >= own)
        return ordered[low] if low == high else (ordered[low] + ordered[high]) / 2


class RuleContext:
    """All that is known of a run at an event, the event itself taken in."""

    def __init__(self, vitals: RunHealth) -> None:
        """`vitals` are those of the run so far; they are kept up to date here."""
        self.health = vitals
        self.episodes: dict[int, EpisodeExtremes] = {}
        """By env."""
        self.not_finite: list[tuple[str, float]] = []
        """Of the last step: the quantity, as people name it, and its value."""
        self.accuracies = SortedAccuracies()
        self._loads: dict[str, float | None] = {}
        """By lane, as of its last sample; only those that were asked for since."""
        for number, env in vitals.envs.items():
            for vital in env.recent:
                self._follow(number, vital)

    def fold_step(self, event: ev.EnvStepped) -> bool:
        """Take a step of an env in. Returns whether an episode began with it."""
        self.not_finite = self.health.fold_step(event)
        return self._follow(event.env, self.health.envs[event.env].recent[-1])

    def fold_sample(self, event: ev.DeviceSampled) -> None:
        """Take a sample of a device in."""
        self.health.fold_sample(event)
        self._loads.pop(event.device, None)

    def lane_load(self, lane: str, steps: int) -> float | None:
        """As `LaneVitals.load`, of a lane that was sampled; it is always asked for over as many steps."""
        if lane not in self._loads:
            self._loads[lane] = self.health.lanes[lane].mean_load(steps)
        return self._loads[lane]

    def _follow(self, number: int, vital: EnvStepStats) -> bool:
        episode, begins = self.episodes.get(number), False
        if episode is None or episode.round != vital.round:
            episode, begins = EpisodeExtremes(vital), True
            self.episodes[number] = episode
        episode.fold(vital)
        self.accuracies.set_accuracy(number, vital.accuracy)
        return begins
