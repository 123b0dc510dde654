"""Mean effects of the plantings of each blueprint, over the episodes of a run whose effects are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from esper.config import ConfigError
from esper.effects.change import without_steps
from esper.effects.episode import read_round
from esper.effects.results import EpisodeResults, Simulation
from esper.history.address import MomentError
from esper.history.history import History


class PlantingEffects(msgspec.Struct, kw_only=True):
    """Known effects of the plantings of one blueprint on the return."""

    total: float = 0.0
    count: int = 0
    """Number of plantings whose effect is known."""
    is_exact: bool = True
    """False if an effect is approximate."""

    @property
    def mean(self) -> float:
        """Mean effect on the return."""
        return self.total / self.count


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
        except (ConfigError, MomentError):
            continue
        envs = sorted({found.env for found in of_round} & episodes.keys())
        yield [EpisodeResults(episodes[env], of_round) for env in envs]


def planting_effects(results: Iterable[EpisodeResults]) -> dict[str, PlantingEffects]:
    """Return the known effects of plantings, each with all later decisions about its seed, keyed by blueprint.

    Only episodes that have ended count, because the effect on an unfinished return says nothing about the whole.
    """
    effects: dict[str, PlantingEffects] = {}
    for known in results:
        episode, unchanged = known.episode, known.get()
        if episode.ended is None or unchanged is None or unchanged.steps < len(episode.steps):
            continue
        for seed in episode.seeds:
            if effect := known.effect_without(without_steps(seed.decisions)):
                of_blueprint = effects.setdefault(seed.blueprint, PlantingEffects())
                of_blueprint.total += effect.net_return
                of_blueprint.count += 1
                of_blueprint.is_exact &= unchanged.is_exact
    return effects
