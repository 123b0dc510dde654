"""Effects of the plantings of each blueprint, over the episodes of a run whose effects are known."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from esper.common.configuration.config import ConfigError
from esper.recordings.effects.episode import read_round
from esper.recordings.effects.report import MeanEffect, blueprint_effects
from esper.recordings.effects.results import EpisodeResults, Simulation, reproduced_results
from esper.recordings.effects.store import EffectStore
from esper.recordings.files.segments import ReadError
from esper.recordings.history.history import History
from esper.recordings.history.summary import BlueprintSummary, RunSummary
from esper.recordings.history.summary_builder import summarise


class PlantingEffects(NamedTuple):
    """Known effects of the plantings of one blueprint, each with all later decisions about its seed."""

    effect: MeanEffect
    is_exact: bool
    """False if an effect is approximate."""


def summarise_with_effects(history: History) -> RunSummary:
    """Return statistics of a whole run, with the stored effects of its plantings.

    Raises:
        ReadError: A file cannot be read, or nothing of the recording.
        ConfigError: The run has no events yet.
    """
    summary = summarise(history, time.time())
    if summary is None:
        if history.notices:
            raise ReadError(history.notices[0])
        raise ConfigError(f"{history.path} has no events yet")
    try:
        stored = EffectStore(history.path).read()
    except OSError as error:
        summary.notices = [*summary.notices, f"stored effects cannot be read: {error.strerror or error}"]
        return summary
    known = itertools.chain.from_iterable(read_results(history, stored))
    for blueprint, effects in planting_effects(known).items():
        seeds = summary.seeds.get(blueprint, BlueprintSummary())
        summary.seeds[blueprint] = msgspec.structs.replace(
            seeds, effect=effects.effect.mean, effects=effects.effect.n, effects_approximate=not effects.is_exact
        )
    return summary


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
        yield [reproduced_results(episodes[env], of_round) for env in envs]


def planting_effects(results: Iterable[EpisodeResults]) -> dict[str, PlantingEffects]:
    """Return the known effects of plantings in episodes that have ended, keyed by blueprint.

    The effect on the return of an unfinished episode says nothing about the whole.
    """
    ended = [known for known in results if known.is_whole]
    approximate = {seed.blueprint for known in ended if not known.is_exact for seed in known.episode.seeds}
    return {
        blueprint: PlantingEffects(effect, blueprint not in approximate)
        for blueprint, effect in blueprint_effects(ended).items()
    }
