"""Compares two runs: where they diverge, and the second as a ghost beside the first."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from esper.history.history import History
from esper.history.playback import Playback
from esper.history.timeline import Mark, MarkKind
from esper.telemetry import events as ev
from esper.telemetry.state import RunState

DETERMINISTIC_EVENTS = frozenset(
    {
        ev.RoundStarted,
        ev.EnvStepped,
        ev.SeedMoved,
        ev.GateRefused,
        ev.GateOpened,
        ev.PolicyUpdated,
        ev.GovernorRolledBack,
        ev.EpisodeEnded,
    }
)
"""What follows from the seed. The others say when, where and at whose wish, or are derived from these."""
EVENTS_PER_CLOCK_CHECK = 64
"""Events compared between two looks at the clock."""
MAX_FIELDS_SHOWN = 3
"""Differing fields that a sentence names."""


class Divergence(NamedTuple):
    """The first difference."""

    position: int
    """In the history that is watched: after the event that differs."""
    elapsed: float
    """Recorded seconds to it."""
    other_position: int
    """In the other history, likewise."""
    round: int
    step: int | None
    """None where the event is about a whole round."""
    env: int | None
    text: str
    """One sentence for people."""


class DivergenceSearch:
    """Two histories read side by side, a slice at a time, in bounded memory.

    Args:
        run: the history that is watched; `search` wants it read to its end, and the other too.
        other: the one that it is held against.
        names: of both, for sentences.
    """

    def __init__(self, run: History, other: History, names: tuple[str, str]) -> None:
        self._names = names
        self._elapsed = run.elapsed
        self.num_equal = 0
        """Computed events that are equal in both."""
        self.divergence: Divergence | None = None
        self.done = False
        """Both were read as far as both go, or to the first difference; or they are unlike, and need not be."""
        self.incomparable_setting: str | None = None
        """In what two runs differ of which one expects no likeness, such as their seeds."""
        self._unlikeness = ""
        """That, as a sentence."""
        self._pairs = self._read(run, other)

    def search(self, within: float = math.inf) -> bool:
        """Compare on for so many seconds; True if that settled it. Raises ReadError as the histories do."""
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
        """What is known so far, for people."""
        here, there = self._names
        if self.incomparable_setting is not None:
            return self._unlikeness
        if self.divergence is not None:
            return self.divergence.text
        if self.done:
            return f"{here} and {there} computed the same as far as both go: {self.num_equal} equal events"
        return f"{here} and {there} computed the same so far: {self.num_equal} equal events"

    def _read(self, run: History, other: History) -> Iterator[tuple[tuple[int, ev.AnyEvent], tuple[int, ev.AnyEvent]]]:
        """What both computed, side by side, each with the position after it."""
        made, other_made = _run_identity(run), _run_identity(other)
        for name in made if other_made else ():
            if made[name] != other_made[name]:
                here, there = self._names
                both = f"{here} has the {name} {made[name]} and {there} {other_made[name]}"
                self.incomparable_setting, self._unlikeness = name, f"{both}: they differ from the start"
                return
        start, other_start = _common_start(run, other)
        yield from zip(_computed(run, start), _computed(other, other_start), strict=False)

    def _divergence(self, event: ev.AnyEvent, positions: tuple[int, int], differences: list[str]) -> Divergence:
        here, there = self._names
        round_, step, env = (getattr(event, name, None) for name in ("round", "step", "env"))
        assert round_ is not None  # every computed event is of a round
        place = f"round {round_}" + (f" step {step}" if step else "") + (f", env {env:02d}" if env is not None else "")
        more = f" and {len(differences) - MAX_FIELDS_SHOWN} more" if len(differences) > MAX_FIELDS_SHOWN else ""
        what = ", ".join(differences[:MAX_FIELDS_SHOWN]) + more
        text = f"{here} and {there} diverge at {place}: {what} (this run, the other)"
        elapsed = self._elapsed(positions[0] - 1, event.time)
        return Divergence(positions[0], elapsed, positions[1], round_, step, env, text)


def position_after(history: History, steps: int) -> int:
    """The position after so many recorded steps; the end where there are fewer."""
    return 0 if steps <= 0 else history.steps[steps - 1] if steps <= len(history.steps) else history.length


def _common_start(run: History, other: History) -> tuple[int, int]:
    """The positions of the first moment that is in both: the end of a step, unless both were recorded from the start.

    A recording that was cut out of a run begins in its midst.
    """
    begun = [history.state_at(0) for history in (run, other)]
    steps = max(state.steps_done + 1 if state.seq else 0 for state in begun)
    return position_after(run, steps - begun[0].steps_done), position_after(other, steps - begun[1].steps_done)


def _run_identity(history: History) -> dict[str, Any]:
    """What all that a run computes depends on, named for people; nothing where the run has not said what it is."""
    started = history.state_at(min(history.length, 1)).started
    if started is None:
        return {}
    return {
        "seed": started.seed,
        "task": started.task,
        "number of envs": len(started.lanes),
        "number of steps in an episode": started.steps,
        "slots": " ".join(started.slots),
    }


def _computed(history: History, start: int) -> Iterator[tuple[int, ev.AnyEvent]]:
    """The computed events from a position on, each with the position after it."""
    for position, event in enumerate(history.events(start), start=start + 1):
        if type(event) in DETERMINISTIC_EVENTS:
            yield position, event


def _differing(event: ev.AnyEvent, other: ev.AnyEvent) -> Iterator[str]:
    """What differs between two events beside their numbers and dates, in words."""
    if type(event) is not type(other):
        yield f"{type(event).__name__} against {type(other).__name__}"
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
            for key in dict.fromkeys([*value, *other]):
                yield from _differing_values(value.get(key), other.get(key), f"{name}.{key}")
        case list(), list() if len(value) == len(other):
            for index, (mine, theirs) in enumerate(zip(value, other, strict=True)):
                yield from _differing_values(mine, theirs, f"{name}[{index}]")
        case _:
            yield f"{name} {_word(value)} against {_word(other)}"


def _word(value: Any) -> str:
    return "nothing" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


class GhostRun:
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
        self.comparison = DivergenceSearch(history, other, (history.path.resolve().name, self.name))
        self._told = False

    @property
    def state(self) -> RunState:
        """What was true of the rival at the step that `go_along` was last given."""
        return self._playback.state

    def follow(self, state: RunState, within: float) -> None:
        """Go to where the rival was when as many steps had ended; for so many seconds, read on or compare.

        The first difference becomes a mark of the run that is watched. Raises ReadError as the histories do.
        """
        history = self._playback.history
        if not history.is_fully_read:
            self._playback.poll(within)
        elif self._history.is_fully_read and self.comparison.search(within) and self.comparison.divergence is not None:
            found = self.comparison.divergence
            self._history.marks.add(Mark(MarkKind.DIVERGENCE, found.position, found.elapsed))
        position = position_after(history, state.steps_done - self._skipped)
        if state.step == 0 and state.round:  # a round has begun, and none of its steps has ended
            index = bisect_left(history.rounds, position)
            position = history.rounds[index] + 1 if index < len(history.rounds) else position
        self._playback.seek(position)

    @property
    def comparison_label(self) -> str:
        """In a few words, how the two compare as far as is known."""
        comparison = self.comparison
        if (found := comparison.divergence) is not None:
            return f"≠ from round {found.round}{f' step {found.step}' if found.step else ''}: {self.name}"
        if comparison.incomparable_setting:
            return f"≠ {comparison.incomparable_setting}: {self.name}"
        return f"= {self.name}" if comparison.done else f"= so far: {self.name}"

    def pop_message(self) -> str | None:
        """The sentence about where the two part, or that they do not: once, when that is settled."""
        if self._told or not self.comparison.done:
            return None
        self._told = True
        return self.comparison.description
