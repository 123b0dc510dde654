"""Measures of a run by round: return, score and parameters."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from esper.history.history import History
from esper.sweeps.plan import ObjectiveName
from esper.telemetry import events as ev


class RoundMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of one finished round."""

    mean_return: float
    """Undiscounted return of an episode, mean over the envs."""
    score: float
    """Final score of an episode, median over the envs."""
    parameters: float
    """Parameters of host and seeds at the end, relative to the bare host; mean over the envs."""

    def value(self, objective: ObjectiveName) -> float:
        """Return one measure by the name that it has in the file of a sweep."""
        return {"return": self.mean_return, "score": self.score, "parameters": self.parameters}[objective]


class RunMeasures:
    """Measures of the finished rounds of a run, live or ended.

    Args:
        run: Directory of the run.
    """

    def __init__(self, run: Path) -> None:
        self._history = History(run)
        self._history.readers.append(self)
        self._envs = 0
        self._ends: dict[int, dict[int, ev.EpisodeEnded]] = {}
        """Ends of the episodes of each round, keyed by round and by env."""

    def poll(self) -> None:
        """Read the events that were written since the last call. Raises ReadError."""
        self._history.poll()

    def read(self, position: int, events: Sequence[ev.AnyEvent]) -> None:  # noqa: ARG002 (as HistoryReader)
        """Add events."""
        for event in events:
            if isinstance(event, ev.EpisodeEnded):
                self._ends.setdefault(event.round, {})[event.env] = event
            elif isinstance(event, ev.RoundStarted):
                self._ends.pop(event.round, None)  # played again after a restore
            elif isinstance(event, ev.RunStarted):
                self._envs = len(event.lanes)

    def rewind(self, position: int) -> None:
        """Drop the rounds whose end was undone."""
        self._ends.clear()
        self.read(0, list(self._history.events(0, position)))

    @property
    def rounds(self) -> dict[int, RoundMeasures]:
        """Measures of each finished round, keyed by round from 1, in order."""
        return {
            number: RoundMeasures(
                mean_return=statistics.fmean(end.episode_return for end in ends.values()),
                score=statistics.median(end.score for end in ends.values()),
                parameters=statistics.fmean(end.parameter_ratio for end in ends.values()),
            )
            for number, ends in sorted(self._ends.items())
            if len(ends) == self._envs
        }


def mean_over(rounds: Sequence[RoundMeasures], objective: ObjectiveName, over: int) -> float:
    """Return a measure, averaged over the last rounds.

    Args:
        rounds: One or more finished rounds, in order.
        objective: The measure.
        over: Number of rounds.
    """
    return statistics.fmean(measures.value(objective) for measures in rounds[-over:])


def read_measures(run: Path) -> list[RoundMeasures]:
    """Return the measures of the finished rounds of a run. Raises ReadError."""
    measures = RunMeasures(run)
    measures.poll()
    return list(measures.rounds.values())
