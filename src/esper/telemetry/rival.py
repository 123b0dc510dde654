"""Another run beside the one that is watched: at the same step, and held against it event by event."""

from __future__ import annotations

from bisect import bisect_left

from esper.telemetry.divergence import Comparison, position_after
from esper.telemetry.marks import Mark, Sign
from esper.telemetry.playback import Playback
from esper.telemetry.reader import History
from esper.telemetry.state import RunState


class Rival:
    """A second recording whose play head goes along with the first.

    Args:
        history: of the run that is watched.
        other: of the rival.
    """

    def __init__(self, history: History, other: History) -> None:
        self._history = history
        self._playback = Playback(other)
        self._skipped = other.state_at(0).steps_done
        """Steps of it that were done before its recording begins."""
        self.name = other.path.resolve().name
        self.comparison = Comparison(history, other, (history.path.resolve().name, self.name))
        self._told = False

    @property
    def state(self) -> RunState:
        """What was true of the rival at the step that `go_along` was last given."""
        return self._playback.state

    def go_along(self, state: RunState, within: float) -> None:
        """Go to where the rival was when as many steps had ended; for so many seconds, read on or compare.

        The first difference becomes a mark of the run that is watched. Raises ReadError as the histories do.
        """
        history = self._playback.history
        if not history.loaded:
            self._playback.poll(within)
        elif self._history.loaded and self.comparison.search(within) and self.comparison.found is not None:
            found = self.comparison.found
            self._history.marks.add(Mark(Sign.DIVERGENCE, found.position, found.elapsed))
        position = position_after(history, state.steps_done - self._skipped)
        if state.step == 0 and state.round:  # a round has begun, and none of its steps has ended
            index = bisect_left(history.rounds, position)
            position = history.rounds[index] + 1 if index < len(history.rounds) else position
        self._playback.seek(position)

    @property
    def note(self) -> str:
        """In a few words, how the two compare as far as is known."""
        comparison = self.comparison
        if (found := comparison.found) is not None:
            return f"≠ from round {found.round}{f' step {found.step}' if found.step else ''}: {self.name}"
        if comparison.unlike:
            return f"≠ {comparison.unlike}: {self.name}"
        return f"= {self.name}" if comparison.done else f"= so far: {self.name}"

    def news(self) -> str | None:
        """The sentence about where the two part, or that they do not: once, when that is settled."""
        if self._told or not self.comparison.done:
            return None
        self._told = True
        return self.comparison.sentence
