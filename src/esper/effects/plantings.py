"""Mean effects of the plantings of each blueprint, over the episodes of a run whose effects are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from esper.config import ConfigError
from esper.effects.episode import read_round
from esper.effects.report import MeanEffect, blueprint_effects
from esper.effects.results import EpisodeResults, Simulation
from esper.history.history import History


class PlantingEffects(NamedTuple):
    """Known effects of the plantings of one blueprint, each with all later decisions about its seed."""

    effect: MeanEffect
    is_exact: bool
    """False if an effect is approximate."""


def read_results(history: History, simulations: Sequence[Simulation]) -> Iterator[list[EpisodeResults]]:
    """Yield the results of the episodes of each round that has any. Rounds that are not recorded are left out.

    Raises:
        ReadError: The recording cannot be read.
    """
    by_round: dict[int, list[Simulation]] = {}
    for found in simulations:
        by_round.setdefault(found.round, []).append(found)
    for round_number, of_round in sorted(by_round.items()):
        try:
            episodes = read_round(history, round_number)
        except ConfigError:
            continue
        envs = sorted({found.env for found in of_round} & episodes.keys())
        yield [EpisodeResults(episodes[env], of_round) for env in envs]


def planting_effects(results: Iterable[EpisodeResults]) -> dict[str, PlantingEffects]:
    """Return the known effects of plantings in episodes that have ended, keyed by blueprint.

    The effect on the return of an unfinished episode says nothing about the whole.
    """
    ended = [known for known in results if _is_whole(known)]
    approximate = {
        seed.blueprint
        for known in ended
        if (unchanged := known.get()) is not None and not unchanged.is_exact
        for seed in known.episode.seeds
    }
    return {
        blueprint: PlantingEffects(effect, blueprint not in approximate)
        for blueprint, effect in blueprint_effects(ended).items()
    }


def _is_whole(known: EpisodeResults) -> bool:
    """Return True if an episode has ended, and was simulated to its end."""
    unchanged = known.get()
    return known.episode.ended is not None and unchanged is not None and unchanged.steps == len(known.episode.steps)
