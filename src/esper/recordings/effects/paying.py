"""Plantings that pay: their number, their fraction with its interval, and the mean effect of all plantings.

Shapes: S training seeds, E episodes, N plantings of an episode.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import msgspec

from esper.common.formatting import APPROXIMATE, pluralise
from esper.common.intervals import IntervalEstimate, fraction_interval, ratio_interval
from esper.recordings.effects.results import EpisodeResults

PAYS = 0.005
"""Effect on the net return from which a decision pays; below its negative it costs."""
HEADING = "plantings that pay"
MEASURED_ROUNDS, MEASURED_EPISODES = 10, 32
"""Number of the last rounds, and number of their episodes, that the suggested command measures."""


class PayingPlantings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Plantings with a known effect: the net return of their episode minus that without the seed.

    The intervals are over the episodes, because the plantings of one episode are not independent.
    """

    n: int
    """Number of plantings."""
    pays: int
    """Number of plantings with an effect above 0.005."""
    fraction: IntervalEstimate | None = None
    """Fraction of the plantings that pay; absent with plantings in fewer than two episodes."""
    effect: IntervalEstimate | None = None
    """Mean effect of all plantings; absent with plantings in fewer than two episodes."""
    episodes: int
    """Number of episodes in which every planting was left out in turn."""
    exact: int
    """Number of these episodes that were reproduced exactly."""

    def describe(self, *, with_effect: bool = True) -> str:
        """Return the figures as text, such as `41 of 60, 68% [55, 80], mean effect +0.120 [+0.080, +0.160] (exact, …)`.

        Args:
            with_effect: Include the mean effect.
        """
        is_exact = self.exact == self.episodes
        sign = "" if is_exact else APPROXIMATE
        parts = [f"{sign}{self.pays} of {self.n}" if self.n else "none planted"]
        if self.fraction:
            low, high = (round(100 * bound) for bound in (self.fraction.low, self.fraction.high))
            parts.append(f"{sign}{self.fraction.mean:.0%} [{low}, {high}]")
        if self.effect and with_effect:
            parts.append(f"mean effect {sign}{self.effect.signed}")
        episodes = pluralise(self.episodes, "episode")
        return f"{', '.join(parts)} ({f'exact, {episodes}' if is_exact else f'{self.exact} of {episodes} exact'})"

    def __str__(self) -> str:
        return self.describe()


def paying_command(run: str, ended_rounds: int) -> str | None:
    """Return the command that measures the plantings of the last rounds of a run; None before a round has ended.

    Args:
        run: Name or path of the run.
        ended_rounds: Number of rounds that have ended.
    """
    if not ended_rounds:
        return None
    first = max(1, ended_rounds + 1 - MEASURED_ROUNDS)
    rounds = f"{first}-{ended_rounds}" if first < ended_rounds else str(first)
    return shlex.join(["esper-sanctum", "whatif", run, "--rounds", rounds, "--sample", str(MEASURED_EPISODES)])


def paying_plantings(results: Iterable[EpisodeResults]) -> PayingPlantings | None:
    """Return how many plantings pay in the episodes that have ended and whose plantings all have a known effect.

    Other episodes are left out: a user requests the effect of a single planting because it is remarkable, and it would
    bias the fraction.

    Returns:
        None if there is no such episode.
    """
    whole = [(known.is_exact, known.seed_effects()) for known in results if known.is_whole]
    complete = [(is_exact, effects) for is_exact, effects in whole if effects is not None]
    return count_paying([[effects for _, effects in complete]], exact=sum(is_exact for is_exact, _ in complete))


def count_paying(effect_SEN: Sequence[Sequence[Sequence[float]]], *, exact: int) -> PayingPlantings | None:
    """Return the figures of some plantings; None without an episode.

    Args:
        effect_SEN: Effect of each planting on the net return. The episodes are the same for every training seed.
        exact: Number of episodes that were reproduced exactly, over all training seeds.
    """
    episodes = sum(map(len, effect_SEN))
    if not episodes:
        return None
    paying_SE = [[sum(effect > PAYS for effect in effect_N) for effect_N in effect_EN] for effect_EN in effect_SEN]
    count_SE = [list(map(len, effect_EN)) for effect_EN in effect_SEN]
    has_intervals = sum(map(any, zip(*count_SE, strict=True))) > 1
    return PayingPlantings(
        n=sum(map(sum, count_SE)),
        pays=sum(map(sum, paying_SE)),
        fraction=fraction_interval(paying_SE, count_SE) if has_intervals else None,
        effect=ratio_interval([list(map(sum, effect_EN)) for effect_EN in effect_SEN], count_SE)
        if has_intervals
        else None,
        episodes=episodes,
        exact=exact,
    )
