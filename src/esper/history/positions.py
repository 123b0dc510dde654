"""Positions of a history to which moments lead: the end of a step, and an event by its number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from esper.history.history import History


def step_end(history: History, position: int) -> int:
    """Return the step boundary at or after a position: where to go to show what happened there.

    Between two steps, that is the position itself; within a step, its end. Rounds, steps and values on the screen then
    belong to one step. A step that the recording does not finish has no end: then the position is returned.
    """
    if not history.state_at(position).working:
        return position
    end = next_step_end(history, position)
    return position if end is None else end


def next_step_end(history: History, position: int) -> int | None:
    """Return the first end of a step at or after a position; None if there is none in the same round."""
    steps, rounds = history.steps, history.rounds
    step, after = bisect_left(steps, position), bisect_left(rounds, position)
    end_of_round = rounds[after] if after < len(rounds) else history.length
    return steps[step] if step < len(steps) and steps[step] <= end_of_round else None


def position_of_event(history: History, seq: int) -> int:
    """Return the position after the event with a number; if its line is missing, after the last event before it."""
    if not history.length:
        return 0

    def seq_at(position: int) -> int:
        return history.state_at(position).seq

    # Without damaged lines, the numbers have no gaps. Every missing line moves the event to an earlier position.
    latest = min(max(seq - seq_at(1) + 1, 0), history.length)
    if seq_at(latest) == seq:
        return latest
    return max(bisect_right(range(latest + 1), seq, key=seq_at) - 1, 0)
