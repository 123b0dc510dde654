"""The known results of a run by round, and the effects of the plantings of each blueprint."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from esper.common.configuration.config import ConfigError
from esper.common.intervals import SampleMean
from esper.recordings.effects.change import without_seed
from esper.recordings.effects.episode import read_round
from esper.recordings.effects.references import (
    HostReference,
    episodes_to_measure,
    known_references,
    summarise_references,
)
from esper.recordings.effects.results import Effect, EpisodeResults, Simulation, reproduced_round
from esper.recordings.effects.store import EffectStore
from esper.recordings.files.segments import ReadError
from esper.recordings.history.history import History
from esper.recordings.history.summary import BlueprintSummary, BlueprintWorth, RunSummary
from esper.recordings.history.summary_builder import summarise


class RoundResults(NamedTuple):
    """The known results of a round."""

    round: int
    """Round, from 1."""
    results: list[EpisodeResults]
    """Results of the episodes that have any."""
    references: list[HostReference]
    """Known references of the hosts."""
    has_all_references: bool
    """True if no host lacks a reference that needs one."""
    has_all_effects: bool
    """True if the effects of the seeds of all sampled episodes are known."""


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
    rounds = list(read_results(history, stored))
    summary.references = [
        found for of_round in rounds if (found := summarise_references(of_round.references)) is not None
    ]
    known = (results for of_round in rounds for results in of_round.results)
    for blueprint, worth in planting_effects(known).items():
        seeds = summary.seeds.get(blueprint, BlueprintSummary())
        summary.seeds[blueprint] = msgspec.structs.replace(seeds, worth=worth)
    return summary


def read_results(history: History, simulations: Iterable[Simulation]) -> Iterator[RoundResults]:
    """Yield the results of each round that has any. Rounds that are not recorded are left out.

    Raises:
        ReadError: The recording cannot be read.
    """
    by_round: dict[int, list[Simulation]] = {}
    for found in simulations:
        by_round.setdefault(found.round, []).append(found)
    for number, of_round in sorted(by_round.items()):
        with suppress(ConfigError):
            yield read_round_results(history, number, of_round)


def read_round_results(history: History, number: int, simulations: Sequence[Simulation]) -> RoundResults:
    """Return the known results of a round.

    Raises:
        ConfigError: The recording does not contain the round.
        ReadError: The recording cannot be read.
    """
    results = reproduced_round(read_round(history, number), simulations)
    simulated = {found.env for found in simulations if found.round == number}
    references, missing = known_references(results)
    known = [results[env] for env in sorted(simulated & results.keys())]
    return RoundResults(number, known, references, not missing, not episodes_to_measure(results))


def planting_effects(results: Iterable[EpisodeResults]) -> dict[str, BlueprintWorth]:
    """Return the known effects of plantings in episodes that have ended, keyed by blueprint.

    The effect on the return of an unfinished episode says nothing about the whole.
    """
    found: dict[str, list[tuple[Effect, bool]]] = {}
    for known in results:
        for seed in known.episode.seeds if known.is_whole else ():
            if (worth := known.effect_without(without_seed(seed))) is not None:
                found.setdefault(seed.blueprint, []).append((worth, known.is_exact))
    return {blueprint: _worth(effects) for blueprint, effects in sorted(found.items())}


def _worth(effects: Sequence[tuple[Effect, bool]]) -> BlueprintWorth:
    return BlueprintWorth(
        net=SampleMean.of([effect.net_return for effect, _ in effects]),
        gain=SampleMean.of([effect.gain for effect, _ in effects]),
        rent=SampleMean.of([effect.rent for effect, _ in effects]),
        exact=all(is_exact for _, is_exact in effects),
    )
