"""Comparison of two runs: the first event that differs, and the second run as a ghost beside the first."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple, cast

import msgspec

from esper.recordings import events as ev
from esper.recordings.history.history import History
from esper.recordings.history.playback import Playback
from esper.recordings.history.timeline import Mark, MarkKind
from esper.recordings.state.state import RunState

DETERMINISTIC_EVENTS = frozenset(
    {
        ev.RoundStarted,
        ev.EpisodeStarted,
        ev.EnvStepped,
        ev.SeedMoved,
        ev.GateRefused,
        ev.GateOpened,
        ev.PolicyUpdated,
        ev.GovernorRolledBack,
        ev.EpisodeEnded,
    }
)
"""Event types that the random seed determines. Other types depend on time, hardware or requests, or on these types."""
EVENTS_PER_CLOCK_CHECK = 64
"""Number of events compared between two reads of the clock."""
MAX_FIELDS_SHOWN = 3
"""Maximum number of differing fields in a message."""


class Divergence(NamedTuple):
    """The first difference between two runs."""

    position: int
    """Position in the watched history, after the event that differs."""
    elapsed: float
    """Recorded seconds from the first event of the watched history to the event that differs."""
    other_position: int
    """Position in the other history, after the event that differs."""
    round: int
    step: int | None
    """None if the event is about a whole round."""
    env: int | None
    """None if the event is about all envs."""
    text: str
    """One sentence for the user."""


class DivergenceSearch:
    """Search for the first difference of two histories, in time slices and bounded memory.

    Args:
        run: Watched history. Both histories must be completely read before `search`.
        other: History to compare with.
        names: Names of both runs, for messages.
    """

    def __init__(self, run: History, other: History, names: tuple[str, str]) -> None:
        self._names = names
        self._elapsed = run.elapsed
        self.num_equal = 0
        """Number of deterministic events that are equal in both."""
        self.divergence: Divergence | None = None
        self.done = False
        """True once the search has ended: at a difference, at the end of a history, or if the runs are incomparable."""
        self.incomparable_setting: str | None = None
        """Setting that makes the runs incomparable, such as the random seed; None if they are comparable."""
        self._incomparable_message = ""
        self._pairs = self._read(run, other)

    def search(self, within: float = math.inf) -> bool:
        """Continue the comparison.

        Args:
            within: Seconds after which the method returns.

        Returns:
            True if this call ended the search.

        Raises:
            ReadError: A history cannot be read.
        """
        deadline = perf_counter() + within
        while not self.done:
            for _ in range(EVENTS_PER_CLOCK_CHECK):
                pair = next(self._pairs, None)
                if pair is None:
                    self.done = True
                    return True
                (position, event), (other_position, other_event) = pair
                if differences := list(_differing(event, other_event)):
                    self.divergence = self._divergence(event, (position, other_position), differences)
                    self.done = True
                    return True
                self.num_equal += 1
            if perf_counter() > deadline:
                break
        return False

    @property
    def description(self) -> str:
        """Result so far, one sentence for the user."""
        name, other_name = self._names
        if self.incomparable_setting is not None:
            return self._incomparable_message
        if self.divergence is not None:
            return self.divergence.text
        if self.done:
            return f"{name} and {other_name} are equal until one of them ends: {self.num_equal} equal events"
        return f"{name} and {other_name} are equal so far: {self.num_equal} equal events"

    def _read(self, run: History, other: History) -> Iterator[tuple[tuple[int, ev.AnyEvent], tuple[int, ev.AnyEvent]]]:
        """Yield pairs of deterministic events of both histories, each with the position after it."""
        settings, other_settings = _run_settings(run), _run_settings(other)
        for setting in settings if other_settings else ():
            if settings[setting] != other_settings[setting]:
                name, other_name = self._names
                both = f"{name} has {setting} {settings[setting]}, {other_name} has {other_settings[setting]}"
                self.incomparable_setting, self._incomparable_message = (
                    setting,
                    f"{both}; only their curves by round can be compared",
                )
                return
        start, other_start = _common_start(run, other)
        yield from zip(_deterministic_events(run, start), _deterministic_events(other, other_start), strict=False)

    def _divergence(self, event: ev.AnyEvent, positions: tuple[int, int], differences: list[str]) -> Divergence:
        name, other_name = self._names
        round_, step, env = (getattr(event, field, None) for field in ("round", "step", "env"))
        assert round_ is not None  # every deterministic event has a round
        place = f"round {round_}" + (f" step {step}" if step else "") + (f", env {env:02d}" if env is not None else "")
        more = f" and {len(differences) - MAX_FIELDS_SHOWN} more" if len(differences) > MAX_FIELDS_SHOWN else ""
        changes = ", ".join(differences[:MAX_FIELDS_SHOWN]) + more
        text = f"{name} and {other_name} diverge at {place}: {changes} (first value: {name})"
        elapsed = self._elapsed(positions[0] - 1, event.time)
        return Divergence(positions[0], elapsed, positions[1], round_, step, env, text)


def position_after(history: History, steps: int) -> int:
    """Return the position after that many recorded steps; the end if there are fewer."""
    return 0 if steps <= 0 else history.steps[steps - 1] if steps <= len(history.steps) else history.length


def _common_start(run: History, other: History) -> tuple[int, int]:
    """Return the positions of the first moment that is in both histories.

    This is their start, unless one of them is an excerpt, which starts within a run; then it is the end of a step.
    """
    first_states = [history.state_at(0) for history in (run, other)]
    steps = max(state.steps_done + 1 if state.seq else 0 for state in first_states)
    skipped, other_skipped = (state.steps_done for state in first_states)
    return position_after(run, steps - skipped), position_after(other, steps - other_skipped)


def _run_settings(history: History) -> dict[str, Any]:
    """Return the settings that determine all results of a run, keyed by their name in messages; empty if unknown."""
    started = history.state_at(min(history.length, 1)).started
    if started is None:
        return {}
    return {
        "random seed": started.seed,
        "task": started.task,
        "number of envs": len(started.lanes),
        "number of steps in an episode": started.steps,
        "slots": " ".join(started.slot_names),
    }


def _deterministic_events(history: History, start: int) -> Iterator[tuple[int, ev.AnyEvent]]:
    """Yield the deterministic events from a position on, each with the position after it."""
    for position, event in enumerate(history.events(start), start=start + 1):
        if type(event) in DETERMINISTIC_EVENTS:
            yield position, event


def _differing(event: ev.AnyEvent, other: ev.AnyEvent) -> Iterator[str]:
    """Yield a description of each difference between two events, except in `seq` and `time`."""
    if type(event) is not type(other):
        yield f"{type(event).__name__} vs {type(other).__name__}"
        return
    for name in event.__struct_fields__:
        if name not in ("seq", "time"):
            yield from _differing_values(getattr(event, name), getattr(other, name), name)


def _differing_values(value: Any, other: Any, name: str) -> Iterator[str]:
    if value == other:
        return
    match value, other:
        case float(), float() if math.isnan(value) and math.isnan(other):
            return
        case msgspec.Struct(), msgspec.Struct():
            for field in value.__struct_fields__:
                yield from _differing_values(getattr(value, field), getattr(other, field), f"{name}.{field}")
        case dict(), dict():
            items, other_items = cast("dict[str, Any]", value), cast("dict[str, Any]", other)
            for key in dict.fromkeys([*items, *other_items]):
                yield from _differing_values(items.get(key), other_items.get(key), f"{name}.{key}")
        case list(), list() if len(cast("list[Any]", value)) == len(cast("list[Any]", other)):
            for index, pair in enumerate(zip(cast("list[Any]", value), cast("list[Any]", other), strict=True)):
                yield from _differing_values(*pair, f"{name}[{index}]")
        case _:
            yield f"{name} {_format_value(value)} vs {_format_value(other)}"


def _format_value(value: Any) -> str:
    return "no value" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


class GhostRun:
    """A second recording, overlaid on a replay at the same step, or at the same round if their lengths differ.

    Args:
        history: History of the watched run.
        other: History of the ghost run.
    """

    def __init__(self, history: History, other: History) -> None:
        self._history = history
        self._playback = Playback(other)
        first = other.state_at(0)
        self._skipped, self._skipped_rounds = first.steps_done, first.round
        """Number of steps and of rounds of the ghost run before the start of its recording."""
        self.name = other.path.resolve().name
        self.comparison = DivergenceSearch(history, other, (history.path.resolve().name, self.name))
        self._was_reported = False

    @property
    def state(self) -> RunState:
        """State of the ghost run at the step that was last passed to `follow`."""
        return self._playback.state

    def follow(self, state: RunState, within: float) -> None:
        """Move the ghost run to the step of the watched run; continue to read or compare it.

        The first difference is marked in the history of the watched run.

        Args:
            state: State of the watched run.
            within: Seconds for which to read or compare.

        Raises:
            ReadError: A history cannot be read.
        """
        history = self._playback.history
        if not history.is_fully_read:
            self._playback.poll(within)
        elif self._history.is_fully_read and self.comparison.search(within) and self.comparison.divergence is not None:
            found = self.comparison.divergence
            self._history.marks.add(Mark(MarkKind.DIVERGENCE, found.position, found.elapsed))
        self._playback.seek(
            self._position_by_step(state) if self._has_equal_rounds(state) else self._position_by_round(state)
        )

    def _has_equal_rounds(self, state: RunState) -> bool:
        """Return True if the rounds of both runs have the same number of steps."""
        other = self._playback.history
        started = self._playback.state.started or other.state_at(min(other.length, 1)).started
        return started is None or state.started is None or started.steps == state.started.steps

    def _position_by_step(self, state: RunState) -> int:
        history = self._playback.history
        position = position_after(history, state.steps_done - self._skipped)
        if state.step == 0 and state.round:  # a round has started, and none of its steps has ended
            index = bisect_left(history.rounds, position)
            position = history.rounds[index] + 1 if index < len(history.rounds) else position
        return position

    def _position_by_round(self, state: RunState) -> int:
        """Return the position after the same step of the same round; after the round if the watched one has ended."""
        assert state.started is not None
        history = self._playback.history
        index = state.round - 1 - self._skipped_rounds
        if index < 0:
            return 0
        if index >= len(history.rounds):
            return history.length
        end = history.rounds[index + 1] if index + 1 < len(history.rounds) else history.length
        if state.step >= state.started.steps:
            return end
        start = history.rounds[index] + 1
        step = bisect_left(history.steps, start) + state.step - 1
        return start if state.step == 0 else min(history.steps[step], end) if step < len(history.steps) else end

    @property
    def comparison_label(self) -> str:
        """Short result of the comparison so far, for the header."""
        comparison = self.comparison
        if (found := comparison.divergence) is not None:
            return f"≠ from round {found.round}{f' step {found.step}' if found.step else ''}: {self.name}"
        if comparison.incomparable_setting:
            return f"≠ {comparison.incomparable_setting}: {self.name}"
        return f"= {self.name}" if comparison.done else f"= so far: {self.name}"

    def pop_message(self) -> str | None:
        """Return the result of the comparison, once, when the search has ended; otherwise None."""
        if self._was_reported or not self.comparison.done:
            return None
        self._was_reported = True
        return self.comparison.description
