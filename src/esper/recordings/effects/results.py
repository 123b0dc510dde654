"""Results of simulations: trajectories, how exactly a recording was reproduced, and the effects of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from esper.recordings.effects.change import UNCHANGED, WITHOUT_GROWTH, Change, changes_of, without_seed
from esper.recordings.effects.episode import RecordedEpisode


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Course of a simulated episode."""

    scores: list[float]
    """Validation score before the first step, then after each step. After a breakdown there are no more."""
    net_return: float
    """Sum over the steps: gain of the score, minus rent, cost of the op and penalty."""
    costs: float
    """Rent, costs of ops and penalty, which the net return contains."""
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host, at the end."""
    final_score: float
    """Validation score at the end; after a breakdown, that of the restored network."""
    waited: list[int] = []
    """Steps, from 1, whose decision had become illegal, so that the env waited."""
    broke_down: bool = False

    @property
    def num_steps(self) -> int:
        """Number of steps, up to a breakdown."""
        return len(self.scores) - 1


_UNKNOWN_CAUSE = "no cause was found: another processor, or state of the network outside its buffers"


class Reproduction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How exactly a simulation without a change reproduces the recording."""

    steps: int
    """Number of simulated steps."""
    differs_from: int | None = None
    """First step, from 1, in which a value differs; None if all are equal."""
    quantity: str | None = None
    """First quantity that differs there."""
    cause: str | None = None
    """Why the values can differ; None if no cause was found."""

    @property
    def is_exact(self) -> bool:
        """True if every recorded value is equal."""
        return self.differs_from is None

    def __str__(self) -> str:
        if self.is_exact:
            return f"reproduced exactly, {self.steps} of {self.steps} steps"
        why = self.cause or _UNKNOWN_CAUSE
        return f"approximate: {self.quantity} differs from step {self.differs_from} on ({why})"


class Simulation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of one simulation, as it is stored."""

    round: int
    """Round of the episode, from 1."""
    env: int
    episode: str
    """Result of `RecordedEpisode.digest` for the simulated steps."""
    steps: int
    """Number of simulated steps."""
    software: str
    """Digest of package, torch and the task's code, and the kind of device: those of another one can differ."""
    change: Change = UNCHANGED
    repeat: int = 0
    """0 for the recorded host and data order; from 1 for other ones."""
    trajectory: Trajectory
    reproduction: Reproduction | None = None
    """Of the episode without a change on its own host; None for all others."""

    @property
    def is_exact(self) -> bool:
        """True if this is the unchanged episode, and it reproduces the recording exactly."""
        return self.reproduction is not None and self.reproduction.is_exact


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Difference that decisions made: a trajectory with them minus one without."""

    net_return: float
    """Final minus initial validation score, minus rent, costs of ops and penalties."""
    rent: float
    """Rent, costs of ops and penalties, which the net return contains."""
    score: float
    """Final validation score."""
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host, at the end."""

    @property
    def gain(self) -> float:
        """Net return without rent, costs of ops and penalties: the rewarded gain in score."""
        return self.net_return + self.rent


def effect(with_it: Trajectory, without: Trajectory) -> Effect:
    """Return the difference between two trajectories of one episode."""
    return Effect(
        net_return=with_it.net_return - without.net_return,
        rent=with_it.costs - without.costs,
        score=with_it.final_score - without.final_score,
        parameter_ratio=with_it.parameter_ratio - without.parameter_ratio,
    )


class EpisodeResults:
    """The known simulations of one recorded episode by one software, on its own host and on others.

    Args:
        known: These simulations, oldest first; later ones replace earlier ones of the same change.
    """

    def __init__(self, episode: RecordedEpisode, known: Iterable[Simulation] = ()) -> None:
        self.episode = episode
        self._known = {(found.change.key, found.repeat): found for found in known}

    @property
    def is_exact(self) -> bool:
        """True if the episode was simulated without a change, and every recorded value was reproduced."""
        unchanged = self.get()
        return unchanged is not None and unchanged.is_exact

    @property
    def is_whole(self) -> bool:
        """True if the episode has ended, and was simulated to its end: only then do effects on its return count."""
        unchanged = self.get()
        return self.episode.ended is not None and unchanged is not None and unchanged.steps == len(self.episode.steps)

    def add(self, found: Simulation) -> None:
        """Add a result of this episode by the same software."""
        self._known[found.change.key, found.repeat] = found

    def get(self, change: Change = UNCHANGED, repeat: int = 0) -> Simulation | None:
        """Return the simulation of a change; None if it is not known."""
        return self._known.get((change.key, repeat))

    def effect_without(self, change: Change) -> Effect | None:
        """Return the effect of the decisions that a change leaves out; None if it is not known."""
        unchanged, changed = self.get(), self.get(change)
        return effect(unchanged.trajectory, changed.trajectory) if unchanged and changed else None

    def decision_effects(self) -> dict[int, Effect]:
        """Return the known effects of single decisions and of seeds, keyed by step, from 1."""
        found = {step: self.effect_without(change) for step, change in changes_of(self.episode).items()}
        return {step: value for step, value in found.items() if value}

    @property
    def reference(self) -> Simulation | None:
        """Simulation of the episode without growth; None if it is not known."""
        return self.get(WITHOUT_GROWTH)

    def seed_effects(self) -> list[float] | None:
        """Return the effect of each planting on the net return, with all later decisions about its seed.

        None unless all of them are known, and the episode was simulated without a change.
        """
        if self.get() is None:
            return None
        found = [self.effect_without(without_seed(seed)) for seed in self.episode.seeds]
        known = [worth.net_return for worth in found if worth is not None]
        return known if len(known) == len(found) else None


def results_by_software(episode: RecordedEpisode, simulations: Iterable[Simulation], software: str) -> EpisodeResults:
    """Return the results of all recorded steps of an episode by one software.

    Args:
        simulations: Stored results of any episodes, oldest first.
        software: Digest of the software.
    """
    return EpisodeResults(episode, _group(episode, simulations).get((software, len(episode.steps)), ()))


def reproduced_results(episode: RecordedEpisode, simulations: Iterable[Simulation]) -> EpisodeResults:
    """Return the results of the last software that reproduced an episode: exactly, if any did.

    Args:
        simulations: Stored results of any episodes, oldest first.
    """
    known = [EpisodeResults(episode, group) for group in _group(episode, simulations).values()]
    reproduced = [results for results in known if results.get() is not None]
    exact = [results for results in reproduced if results.is_exact]
    return (exact or reproduced or [EpisodeResults(episode)])[-1]


def reproduced_round(
    episodes: Mapping[int, RecordedEpisode], simulations: Iterable[Simulation]
) -> dict[int, EpisodeResults]:
    """Return `reproduced_results` of each episode of a round, keyed by env as the episodes are."""
    by_episode: dict[tuple[int, int], list[Simulation]] = {}
    for found in simulations:
        by_episode.setdefault((found.round, found.env), []).append(found)
    return {
        env: reproduced_results(episode, by_episode.get((episode.round, env), ())) for env, episode in episodes.items()
    }


def _group(episode: RecordedEpisode, simulations: Iterable[Simulation]) -> dict[tuple[str, int], list[Simulation]]:
    """Return the simulations of an episode, keyed by software and number of steps. Groups are never mixed."""
    digests: dict[int, str] = {}
    groups: dict[tuple[str, int], list[Simulation]] = {}
    for found in simulations:
        if (found.round, found.env) != (episode.round, episode.env) or found.steps > len(episode.steps):
            continue
        if found.steps not in digests:
            digests[found.steps] = episode.digest(found.steps)
        if found.episode == digests[found.steps]:
            groups.setdefault((found.software, found.steps), []).append(found)
    return groups
