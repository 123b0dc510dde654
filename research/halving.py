"""Successive halving: a search for the best of many candidates by playing episodes.

In a rung, every remaining candidate plays the same number of episodes, on hosts that no other rung uses. The best
candidates by mean return go to the next rung.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

REDUCTION = 3
"""Candidates of a rung, divided by those of the next one."""
FIRST_RUNG_EPISODES = 3
"""Minimum number of episodes of each candidate in the first rung."""
MIN_SEARCH_EPISODES = REDUCTION * FIRST_RUNG_EPISODES
"""Minimum number of episodes of a search."""

Play = Callable[[Sequence[T], int], Sequence[float]]
"""Function that plays an episode of every candidate on a host, given its index, and returns their net returns."""


class Rung(NamedTuple):
    """One round of a search."""

    candidates: int
    hosts: range
    """Hosts that every candidate meets, one episode each."""

    @property
    def episodes(self) -> int:
        """Number of episodes of all candidates."""
        return self.candidates * len(self.hosts)


class Found(NamedTuple):
    """Result of a search."""

    candidate: int
    """Index of the best candidate."""
    mean_return: float
    """Its mean return in the last rung. It is too high: the candidate was chosen by it."""


def halving_schedule(episodes: int) -> list[Rung]:
    """Return the rungs of successive halving (Jamieson and Talwalkar, 2016), each with about as many episodes.

    Each rung has a third of the candidates of the one before, down to three. There are as many rungs as leave every
    candidate of the first one `FIRST_RUNG_EPISODES` episodes.

    Args:
        episodes: Maximum number of episodes of all rungs, at least `MIN_SEARCH_EPISODES`.
    """
    rungs = 1
    while episodes // (rungs + 1) >= FIRST_RUNG_EPISODES * REDUCTION ** (rungs + 1):
        rungs += 1
    schedule: list[Rung] = []
    first_host = 0
    for left in range(rungs, 0, -1):
        candidates = REDUCTION**left
        hosts = range(first_host, first_host + episodes // rungs // candidates)
        schedule.append(Rung(candidates, hosts))
        first_host = hosts.stop
    return schedule


def find_best(candidates: Sequence[T], schedule: Sequence[Rung], play: Play[T]) -> Found:
    """Search for the candidate with the highest mean return.

    Args:
        candidates: As many as the first rung has.
        schedule: Rungs of the search.
        play: Plays the candidates on a host.
    """
    remaining = list(range(len(candidates)))
    means: Mapping[int, float] = {}
    for rung in schedule:
        remaining = remaining[: rung.candidates]
        playing = [candidates[number] for number in remaining]
        by_host = [play(playing, host) for host in rung.hosts]
        means = dict(zip(remaining, map(statistics.fmean, zip(*by_host, strict=True)), strict=True))
        remaining.sort(key=lambda number: -means[number])
    return Found(remaining[0], means[remaining[0]])
