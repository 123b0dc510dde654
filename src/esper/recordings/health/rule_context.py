"""Context of the anomaly rules: health statistics, active anomalies, and running extremes that make most rules cheap.

The rules check every step of every env, and anomalies are rare. The running extremes show that nothing is wrong without
a scan of the earlier steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from esper.common.domain import Rule
from esper.recordings import events as ev
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state.health_stats import EnvStepStats, NonFiniteValue, RunHealth


class EpisodeExtremes:
    """Running extremes of an env's current episode.

    With them, a rule scans the earlier steps only if the scan could find something.
    """

    __slots__ = ("_lowest_norms", "round", "second_lowest_norms")

    def __init__(self, first: EnvStepStats) -> None:
        self.round = first.round
        self.second_lowest_norms = [math.inf] * (1 + len(first.slots))
        """Second lowest gradient norm of the host, then of each slot: a lower bound of any median of three norms."""
        self._lowest_norms = list(self.second_lowest_norms)

    def fold(self, step: EnvStepStats) -> None:
        """Process a step of the env."""
        low = self.second_lowest_norms
        if step.grad_norm is not None and step.grad_norm < low[0]:
            self._lower(0, step.grad_norm)
        for owner, norm in enumerate(step.slots, 1):
            if norm is not None and norm < low[owner]:
                self._lower(owner, norm)

    def _lower(self, owner: int, norm: float) -> None:
        self._lowest_norms[owner], self.second_lowest_norms[owner] = sorted((self._lowest_norms[owner], norm))


class RuleContext:
    """State that the rules read, including the event that they check.

    Args:
        health: Health statistics of the run so far. The context updates them.
        thresholds: Thresholds of the rules.
    """

    def __init__(self, health: RunHealth, thresholds: Thresholds) -> None:
        self.health = health
        self.thresholds = thresholds
        self.limits = thresholds.limits
        self.active: Collection[str] = ()
        """Active anomalies of the subject of the event, as rule and subject."""
        self.episodes: dict[int, EpisodeExtremes] = {}
        """Keyed by env index."""
        self.not_finite: list[NonFiniteValue] = []
        """Non-finite values of the last step."""
        self._loads: dict[str, float | None] = {}
        """Cached mean load by lane, removed at each new sample."""
        for index, env in health.envs.items():
            for step in env.recent:
                self._fold_env_step(index, step)

    def is_active(self, rule: Rule, where: int | str) -> bool:
        """Return True if an anomaly of the rule is active in the subject of the event: an env index, or a name."""
        # Nothing is active in nearly all events, so the key is built only if something is.
        return bool(self.active) and f"{rule} {f'env {where}' if isinstance(where, int) else where}" in self.active

    def hysteresis(self, rule: Rule, where: int | str) -> float:
        """Return the factor of a rule's maximum: 1, or less while its anomaly is active, so that it does not flicker.

        A rule divides its minimum by it, or the measured value.
        """
        return self.limits.recovery if self.is_active(rule, where) else 1.0

    def fold_step(self, event: ev.EnvStepped) -> None:
        """Process a step of an env."""
        self.not_finite = self.health.fold_step(event)
        self._fold_env_step(event.env, self.health.envs[event.env].recent[-1])

    def fold_sample(self, event: ev.DeviceSampled) -> None:
        """Process a sample of a lane's device."""
        self.health.fold_sample(event)
        self._loads.pop(event.device, None)

    def lane_load(self, lane: str, steps: int) -> float | None:
        """Return `LaneHealth.mean_load` of a sampled lane, cached. All callers must pass the same `steps`."""
        if lane not in self._loads:
            self._loads[lane] = self.health.lanes[lane].mean_load(steps)
        return self._loads[lane]

    def _fold_env_step(self, env: int, step: EnvStepStats) -> None:
        episode = self.episodes.get(env)
        if episode is None or episode.round != step.round:
            self.episodes[env] = episode = EpisodeExtremes(step)
        episode.fold(step)
