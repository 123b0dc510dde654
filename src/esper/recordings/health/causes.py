"""Decisions that can have caused a problem of an env: those that moved an alpha before it.

A decision changes the output of a network only through the alphas of its seeds: a blend begins, follows its ramp,
changes its formula, or ends. Germinating and fossilizing change no output, and neither does a seed in TRAINING.

The decisions are in the order in which a person suspects them: newest first, and of one step the largest. The order is
no estimate: only a simulation of the episode without the decision shows if it was a cause (`effects/verdict.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from esper.common.domain import Op
from esper.common.score_scale import ScoreScale
from esper.recordings.state.series import StepTrace

SCORE_DROP = 0.1
"""Drop of the score, as it is rewarded, below the best of the episode that counts as a symptom."""
_MOVING_OPS = frozenset({Op.ADVANCE.label, Op.SET_ALPHA.label, Op.CULL.label})
"""Ops that can move an alpha."""


class PossibleCause(NamedTuple):
    """A decision that moved an alpha before a symptom."""

    round: int
    env: int
    decision_step: int
    """Step of the decision, from 1."""
    seq: int
    """Sequence number of the event of the decision."""
    last_step: int
    """Last step before the symptom, or that of the symptom, in which it moved the alpha."""
    size: float
    """Absolute change of alpha, 0 to 1; 1 if the formula of the blend changed."""
    text: str


class DropStart(NamedTuple):
    """Step in which the score begins to be `SCORE_DROP` below the best of the episode; indices in a trace."""

    step_index: int
    best_index: int
    """Last step with the best score before."""


class _Move(NamedTuple):
    """Change of the alpha of a seed, or of the formula of its blend."""

    step_index: int
    """Index, in the trace, of the first step that trained with the change."""
    decision_index: int
    """Index of the step of the decision that caused it."""
    slot: str
    blueprint: str
    before: float
    after: float
    blend: str | None
    """New formula of the blend; None if it is the same."""


def drop_starts(trace: Sequence[StepTrace], scale: ScoreScale, chance: float) -> list[DropStart]:
    """Return each step of an episode in which the score begins to be `SCORE_DROP` below its best.

    Args:
        scale: Scale of the score.
        chance: Score of a constant output.
    """
    found: list[DropStart] = []
    best, best_index, was_low = -math.inf, 0, False
    for index, step in enumerate(trace):
        score = scale.fraction(step.score, chance)
        is_low = score < best - SCORE_DROP
        if is_low and not was_low:
            found.append(DropStart(index, best_index))
        if score >= best:
            best, best_index = score, index
        was_low = is_low
    return found


def find_candidates(
    trace: Sequence[StepTrace], slots: Sequence[str], since: int, round_: int, env: int
) -> list[PossibleCause]:
    """Return the decisions that moved an alpha before a symptom, newest first; of one step, the largest first.

    Args:
        trace: Steps of the episode, from its first kept step to the symptom.
        slots: Names of the slots.
        since: First step, from 1, whose moves count.
        round_: Round of the episode, from 1.
    """
    by_decision: dict[int, list[_Move]] = {}
    for index, slot in enumerate(slots):
        for move in _moves(trace, index, slot):
            if trace[move.step_index].step >= since:
                by_decision.setdefault(move.decision_index, []).append(move)
    found: list[PossibleCause] = []
    for decision_index, moves in by_decision.items():
        made, first, last = trace[decision_index], moves[0], moves[-1]
        size = 1.0 if any(move.blend for move in moves) else abs(last.after - first.before)
        text = _describe(made.op, moves, trace[first.step_index].step, trace[last.step_index].step)
        found.append(PossibleCause(round_, env, made.step, made.seq, trace[last.step_index].step, size, text))
    return sorted(found, key=lambda cause: (-cause.last_step, -cause.size, -cause.decision_step))


def _moves(trace: Sequence[StepTrace], slot_index: int, slot: str) -> Iterator[_Move]:
    """Yield the moves of the alpha of a slot, in order. Those whose decision is older than the trace are left out.

    A trace contains the alpha of the next epoch. A decision acts in the epoch of its own step; how far its ramp came
    there is not recorded, so that the next alpha stands for it.
    """
    decision: int | None = None
    blend, blueprint, before, reported = None, "the seed", 0.0, None
    for index, step in enumerate(trace):
        if slot_index >= len(step.alphas):  # an env of a family can have fewer slots
            return
        next_alpha = step.alphas[slot_index] or 0.0
        alpha = next_alpha if reported is None else reported
        style, new_blend = step.decision.get("style"), None
        if step.target == slot:
            if step.op == Op.GERMINATE.label and (chosen := step.decision.get("blueprint")):
                blueprint = chosen.choice
            elif step.op in _MOVING_OPS:
                decision, alpha = index, next_alpha
            if style is not None:
                formula = style.choice.rpartition("_")[2]
                new_blend = formula if step.op == Op.SET_ALPHA.label and blend not in (None, formula) else None
                blend = formula
        is_move = index > 0 and (alpha != before or new_blend)  # before the first kept step, alpha is not known
        if is_move and decision is not None:
            yield _Move(index, decision, slot, blueprint, before, alpha, new_blend)
        before, reported = alpha, next_alpha


def _describe(op: str, moves: Sequence[_Move], first_step: int, last_step: int) -> str:
    """Return a decision and its moves in words: `cull norm in early: alpha 0.46 → 0.04 in steps 15 to 18`."""
    first, last = moves[0], moves[-1]
    verb = "set alpha of" if op == Op.SET_ALPHA.label else op
    if first.before == 0.0:
        change = f"blending begins, alpha {last.after:.3g}"
    elif last.after == 0.0:
        change = f"seed removed at alpha {first.before:.3g}"
    else:
        change = f"alpha {first.before:.3g} → {last.after:.3g}"
    if blend := next((move.blend for move in moves if move.blend), None):
        change = f"blend becomes {blend}, {change}"
    steps = f"step {first_step}" if first_step == last_step else f"steps {first_step} to {last_step}"
    return f"{verb} {first.blueprint} in {first.slot}: {change} in {steps}"
