"""Results of simulations as a simulator would store them, with chosen effects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from esper.recordings.effects.change import UNCHANGED, WITHOUT_GROWTH, Change, without_decision
from esper.recordings.effects.episode import RecordedEpisode, read_episode
from esper.recordings.effects.results import Reproduction, Simulation, Trajectory
from esper.recordings.effects.store import EffectStore
from esper.recordings.history.history import open_history

RENT = 0.01
"""Rent of each decision that a change leaves out."""


def simulated(
    episode: RecordedEpisode, change: Change = UNCHANGED, effect: float = 0.0, differs_from: int | None = None
) -> Simulation:
    """Return the simulation of a change.

    Args:
        effect: Final score and return of the recording minus those of the change.
        differs_from: First step in which the unchanged episode differs from the recording; None for an exact one.
    """
    steps = episode.steps
    final = [*(step.score for step in steps[:-1]), steps[-1].score - effect]
    trajectory = Trajectory(
        scores=[0.1, *final],
        net_return=sum(step.reward for step in steps) - effect,
        costs=0.0 if change == WITHOUT_GROWTH else 0.1 - RENT * len(change.decisions),
        parameter_ratio=steps[-1].parameter_ratio,
        final_score=final[-1],
    )
    quantity = None if differs_from is None else "score"
    reproduction = Reproduction(steps=len(steps), differs_from=differs_from, quantity=quantity)
    return Simulation(
        round=episode.round,
        env=episode.env,
        episode=episode.digest(len(steps)),
        steps=len(steps),
        software="software",
        change=change,
        trajectory=trajectory,
        reproduction=reproduction if change == UNCHANGED else None,
    )


def store_effects(
    recording: Path, round_number: int, env: int, effects: Mapping[int, float], differs_from: int | None = None
) -> RecordedEpisode:
    """Store the effects of some decisions of an episode beside its recording, keyed by step; return the episode."""
    episode = read_episode(open_history(recording), round_number, env)
    store = EffectStore(recording)
    store.add(simulated(episode, differs_from=differs_from))
    for step, effect in effects.items():
        store.add(simulated(episode, without_decision(episode, step), effect))
    return episode
