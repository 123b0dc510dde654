"""References: what the hosts of a round reach without growth. They say whether growth helped."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median

import msgspec

from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.results import EpisodeResults
from esper.recordings.history.summary import RoundReference

MAX_SAMPLE = 8
"""Maximum number of hosts with a reference where each env has its own, and of episodes with effects of their seeds."""


class HostReference(msgspec.Struct, frozen=True, kw_only=True):
    """Course of the episode of a host without growth."""

    round: int
    """Round, from 1."""
    envs: list[int]
    """Envs that began the round with this host, and with the same order of the data."""
    scores: list[float]
    """Validation score after each step."""
    final_score: float
    """Validation score at the end."""
    is_exact: bool
    """False if the recorded episode of the host was not reproduced exactly, so that the reference is approximate."""


def summarise_references(hosts: Sequence[HostReference]) -> RoundReference | None:
    """Return the scores of a round without growth; None if no host has a reference."""
    if not hosts:
        return None
    scores = [host.final_score for host in hosts for _ in host.envs]
    exact = all(host.is_exact for host in hosts)
    return RoundReference(round=hosts[0].round, score=median(scores), envs=len(scores), exact=exact)


def scores_by_step(hosts: Sequence[HostReference]) -> dict[int, float]:
    """Return the median score over the envs after each step, keyed by step. A host that broke down has fewer steps."""
    scores = [host.scores for host in hosts for _ in host.envs]
    return {
        step: median(of_env[step - 1] for of_env in scores if len(of_env) >= step)
        for step in range(1, max(map(len, scores), default=0) + 1)
    }


def known_references(results: Mapping[int, EpisodeResults]) -> tuple[list[HostReference], list[RecordedEpisode]]:
    """Return the known references of a round, and one episode of each host that still needs one.

    Where each env has its own host, a sample of the hosts needs one: the same envs in every round. A growth needs none:
    it compares its candidates with the bare host itself.

    Args:
        results: Results of all episodes of the round, keyed by env.
    """
    hosts: dict[Hashable, list[EpisodeResults]] = {}
    for _, of_env in sorted(results.items()):
        if of_env.episode.ended is not None and of_env.episode.training is None:
            hosts.setdefault(of_env.episode.host, []).append(of_env)
    groups = list(hosts.values())
    wanted = [groups[index] for index in _sample(len(groups))] if all(len(group) == 1 for group in groups) else groups
    known: list[HostReference] = []
    missing: list[RecordedEpisode] = []
    for group in groups:
        found = [of_env for of_env in group if of_env.reference]
        if found:
            envs = [of_env.episode.env for of_env in group]
            known.append(_reference(min(found, key=lambda of_env: not of_env.is_exact), envs))
        elif group in wanted:
            missing.append(group[0].episode)
    return known, missing


def _reference(results: EpisodeResults, envs: list[int]) -> HostReference:
    assert results.reference is not None
    trajectory = results.reference.trajectory
    return HostReference(
        round=results.episode.round,
        envs=envs,
        scores=trajectory.scores[1:],
        final_score=trajectory.final_score,
        is_exact=results.is_exact,
    )


def episodes_to_measure(results: Mapping[int, EpisodeResults]) -> list[RecordedEpisode]:
    """Return the episodes of a round the effects of whose seeds are still to be simulated; of many, a sample.

    Arguments are those of `known_references`.
    """
    ended = [of_env for _, of_env in sorted(results.items()) if of_env.episode.ended and of_env.episode.seeds]
    chosen = [ended[index] for index in _sample(len(ended))]
    return [of_env.episode for of_env in chosen if of_env.seed_effects() is None]


def _sample(count: int) -> list[int]:
    """Return up to `MAX_SAMPLE` indices below a number, evenly spread."""
    chosen = min(count, MAX_SAMPLE)
    return [index * count // chosen for index in range(chosen)]
