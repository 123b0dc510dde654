"""The finished rounds of a run, as far as they are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from esper.recordings import events as ev
from esper.recordings.history.history import History
from esper.recordings.history.summary import RoundSummary, summarise_round
from esper.recordings.state.state import RunState


class FinishedRounds:
    """Results of the finished rounds of a run, live or ended.

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

    def read(self, position: int, events: Iterable[ev.AnyEvent]) -> None:  # noqa: ARG002 (as HistoryReader)
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
        self.read(0, self._history.events(0, position))

    @property
    def rounds(self) -> list[RoundSummary]:
        """Results of the finished rounds, in order."""
        return [
            summarise_round(number, ends.values())
            for number, ends in sorted(self._ends.items())
            if len(ends) == self._envs
        ]

    @property
    def last_state(self) -> RunState:
        """State of the run after the last event that was read."""
        return self._history.state_at(self._history.length)
