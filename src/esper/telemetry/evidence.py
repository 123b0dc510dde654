"""What the rules of `anomalies.py` may look at beside an event: the vital signs, and each env's episode so far."""

from __future__ import annotations

import math

from esper.telemetry import events as ev
from esper.telemetry.vitals import Vital, Vitals

UNKNOWN = 1 << 30
"""More steps than any rule asks for."""


class EpisodeSoFar:
    """Running extremes of the episode that an env is in.

    They tell when a look back over its steps could find nothing, which is most of the time.
    """

    __slots__ = ("_best", "least", "round", "unimproved")

    def __init__(self, first: Vital) -> None:
        self.round = first.round
        self.unimproved = 0
        """Steps since the best accuracy; at least so many, if one was NaN, which compares with nothing."""
        self.least = [math.inf] * (1 + len(first.slots))
        """Least gradient norm: of the host, then of what was in each slot."""
        self._best = -math.inf

    def fold(self, vital: Vital) -> None:
        """Take a step in."""
        if vital.accuracy > self._best:
            self._best = vital.accuracy
            self.unimproved = 0
        else:
            self.unimproved += 1
            if math.isnan(vital.accuracy):
                self._best, self.unimproved = math.inf, UNKNOWN
        least = self.least
        if vital.grad_norm < least[0]:
            least[0] = vital.grad_norm
        for number, norm in enumerate(vital.slots, 1):
            if norm is not None and norm < least[number]:
                least[number] = norm


class Evidence:
    """All that is known of a run at an event, the event itself taken in."""

    def __init__(self, vitals: Vitals) -> None:
        """`vitals` are those of the run so far; they are kept up to date here."""
        self.vitals = vitals
        self.episodes: dict[int, EpisodeSoFar] = {}
        """By env."""
        self.not_finite: list[tuple[str, float]] = []
        """Of the last step: the quantity, as people name it, and its value."""
        for number, env in vitals.envs.items():
            for vital in env.recent:
                self._follow(number, vital)

    def fold_step(self, event: ev.EnvStepped) -> bool:
        """Take a step of an env in. Returns whether an episode began with it."""
        self.not_finite = self.vitals.fold_step(event)
        return self._follow(event.env, self.vitals.envs[event.env].recent[-1])

    def _follow(self, number: int, vital: Vital) -> bool:
        episode, begins = self.episodes.get(number), False
        if episode is None or episode.round != vital.round:
            episode, begins = EpisodeSoFar(vital), True
            self.episodes[number] = episode
        episode.fold(vital)
        return begins
