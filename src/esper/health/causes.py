"""Decisions that can have caused a problem of an env, ordered by evidence.

A decision changes the output of a network only through the alphas of its seeds: a blend begins, follows its ramp,
changes its formula, or ends. Germinating and fossilizing change no output, and neither does a seed in TRAINING.

A drop of the score has a second witness. If a decision causes it, the epoch trains the changed network, so the training
score falls in the same step. If only the validation score falls, the last updates of the epoch cause the drop.

Measured by simulation on 263 drops of three runs, where a decision is confirmed if the drop is at most half as large
without it: 80 of 97 first candidates were confirmed. In the drops without a candidate, decisions that had just moved an
alpha were confirmed no more often (73 of 191) than old decisions (201 of 438).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from esper.domain import AlphaCurve, Op
from esper.telemetry import events as ev
from esper.telemetry.series import StepTrace

SCORE_DROP = 0.1
"""Drop of the score below the best of the episode that counts as a symptom."""
WINDOW_STEPS = 5
"""Number of steps, up to the symptom, in which a move of an alpha can have caused it."""
_MIN_TRAINING_FALL = 0.2
"""Minimum fall of the training score in one step, as a fraction of the drop, that counts as evidence."""
_CONTRIBUTION_STEPS = 3
"""Number of steps before a move whose contributions count. The maximum counts: contributions vary from step to step."""
_UNKNOWN_CONTRIBUTION = 0.2
"""Weight of a seed whose contribution is not known, because its alpha rises or nothing was measured; a fraction."""
_MIN_CONTRIBUTION = 0.02
"""Minimum weight of a seed; a fraction."""
_MIN_EVIDENCE = 0.01
"""Minimum evidence of a candidate."""
_MOVING_OPS = frozenset({Op.ADVANCE.label, Op.SET_ALPHA.label, Op.CULL.label})
"""Ops that can move an alpha."""


class PossibleCause(NamedTuple):
    """A decision that can have caused a symptom."""

    round: int
    step: int
    """Step in which it changed the network most."""
    env: int
    text: str
    evidence: float
    """Strength of the evidence; comparable among the candidates of one symptom."""
    decision_step: int
    """Step of the decision, from 1."""
    seq: int
    """Sequence number of the event of the decision."""


class ScoreDrop(NamedTuple):
    """A drop of the score below the best of the episode."""

    round: int
    step: int
    """First step with the lower score."""
    env: int
    best: float
    score: float
    candidates: list[PossibleCause]
    """Strongest evidence first; empty if the training itself may be the cause."""


class _Move(NamedTuple):
    """Change of what a seed adds to the output, from one epoch to the next."""

    step_index: int
    """Index, in the trace, of the step that trained with the change."""
    decision_index: int
    """Index of the step of the decision that caused it."""
    slot: str
    blueprint: str
    before: float
    """Alpha before; that without the decision in the step of the decision."""
    after: float
    blend: str | None
    """New formula of the blend; None if it is the same."""
    contribution: float | None
    """Maximum of the last contributions before the move; None if none was measured."""

    @property
    def size(self) -> float:
        """Relative change of alpha, 0 to 1."""
        return 1.0 if self.blend else abs(self.after - self.before) / max(self.after, self.before)

    @property
    def weight(self) -> float:
        """Part of the score that the seed can take with it; a fraction."""
        if self.contribution is None or (self.after > self.before and not self.blend):
            return _UNKNOWN_CONTRIBUTION
        return max(self.contribution, _MIN_CONTRIBUTION)


def list_score_drops(steps: Sequence[ev.EnvStepped], slots: Sequence[str]) -> list[ScoreDrop]:
    """Return all drops of the score in an episode, with their candidates.

    Args:
        steps: Steps of one episode of one env, in order.
        slots: Names of the slots.
    """
    trace = [StepTrace.from_event(step) for step in steps]
    drops: list[ScoreDrop] = []
    for index, best in drop_starts(trace):
        step = steps[index]
        candidates = find_drop_candidates(trace[: index + 1], best, slots, step.round, step.env)
        drops.append(ScoreDrop(step.round, step.step, step.env, best, step.score, candidates))
    return drops


def drop_starts(trace: Sequence[StepTrace]) -> list[tuple[int, float]]:
    """Return each step of an episode in which the score begins to be `SCORE_DROP` below its best: index and best."""
    found: list[tuple[int, float]] = []
    best, was_low = -math.inf, False
    for index, step in enumerate(trace):
        is_low = step.score < best - SCORE_DROP
        if is_low and not was_low:
            found.append((index, best))
        best, was_low = max(best, step.score), is_low
    return found


def find_drop_candidates(
    trace: Sequence[StepTrace], best: float, slots: Sequence[str], round_: int, env: int
) -> list[PossibleCause]:
    """Return the decisions that can have caused the drop of the score in the last step of a trace.

    Args:
        trace: Steps of the episode, from its first kept step to the symptom.
        best: Best score before the drop.
        slots: Names of the slots.
        round_: Round of the episode, from 1.
    """
    drop = best - trace[-1].score
    falls = [(before.train_score - step.train_score) / drop for before, step in itertools.pairwise(trace)]
    witness = [0.0, *(min(fall, 1.0) if fall >= _MIN_TRAINING_FALL else 0.0 for fall in falls)]
    return _candidates(trace, slots, witness, round_, env)


def find_candidates(trace: Sequence[StepTrace], slots: Sequence[str], round_: int, env: int) -> list[PossibleCause]:
    """Return the decisions that can have caused another symptom in the last step of a trace.

    Args:
        trace: Steps of the episode, from its first kept step to the symptom.
        slots: Names of the slots.
        round_: Round of the episode, from 1.
    """
    return _candidates(trace, slots, [1.0] * len(trace), round_, env)


def has_moves(trace: Sequence[StepTrace], slots: Sequence[str]) -> bool:
    """Return True if an alpha moved in the last `WINDOW_STEPS` steps of a trace."""
    return any(_recent_moves(trace, slots))


def _candidates(
    trace: Sequence[StepTrace], slots: Sequence[str], witness: Sequence[float], round_: int, env: int
) -> list[PossibleCause]:
    """Return the decisions behind the last moves, strongest evidence first.

    Args:
        witness: Weight of each step of the trace, 0 to 1.
    """
    by_decision: dict[int, list[tuple[float, _Move]]] = {}
    for move in _recent_moves(trace, slots):
        part = witness[move.step_index] * move.size * move.weight
        by_decision.setdefault(move.decision_index, []).append((part, move))
    found: list[PossibleCause] = []
    for moves in by_decision.values():
        evidence = sum(part for part, _ in moves)
        if evidence >= _MIN_EVIDENCE:
            _, main = max(moves, key=lambda weighed: weighed[0])
            made, text = trace[main.decision_index], _describe(trace, main)
            found.append(PossibleCause(round_, trace[main.step_index].step, env, text, evidence, made.step, made.seq))
    return sorted(found, key=lambda candidate: (-candidate.evidence, -candidate.decision_step))


def _recent_moves(trace: Sequence[StepTrace], slots: Sequence[str]) -> Iterator[_Move]:
    first = len(trace) - WINDOW_STEPS
    for index, slot in enumerate(slots):
        yield from (move for move in _moves(trace, index, slot) if move.step_index >= first)


def _moves(trace: Sequence[StepTrace], slot_index: int, slot: str) -> Iterator[_Move]:
    """Yield the changes of what the seeds of a slot add to the output, in order.

    A trace contains the alpha of the next epoch. In the step of a decision, alpha is one epoch further.
    """
    decision: int | None = None
    planted, blend, blueprint = None, None, "the seed"
    trained = planned = None
    for index, step in enumerate(trace):
        if slot_index >= len(step.alphas):  # an env of a family can have fewer slots
            return
        reported = step.alphas[slot_index] or 0.0
        if trained is None or planned is None:
            trained = planned = reported
        is_target, style, new_blend = step.target == slot, step.decision.get("style"), None
        before, after = trained, planned
        if is_target and step.op == Op.GERMINATE.label:
            planted, chosen = step, step.decision.get("blueprint")
            blueprint = chosen.choice if chosen else "the seed"
        elif is_target and step.op in _MOVING_OPS:
            decision, before, after = index, planned, _first_alpha(step, planted, planned, reported)
        if is_target and style is not None:
            formula = style.choice.rpartition("_")[2]
            new_blend = formula if step.op == Op.SET_ALPHA.label and blend not in (None, formula) else None
            blend = formula
        if decision is not None and (before != after or new_blend):
            measured = [past.contributions[slot_index] for past in trace[max(0, index - _CONTRIBUTION_STEPS) : index]]
            contribution = max((value for value in measured if value is not None), default=None)
            yield _Move(index, decision, slot, blueprint, before, after, new_blend, contribution)
        trained, planned = after, reported


def _first_alpha(step: StepTrace, planted: StepTrace | None, start: float, reported: float) -> float:
    """Return the alpha in the epoch of a decision: its ramp has taken one step.

    Args:
        planted: Step in which the seed was planted; it chose the ramp of `advance`. None if it is not known.
        start: Alpha without the decision.
        reported: Alpha of the next epoch, the result if the ramp is not known.
    """
    chosen = step if step.op != Op.ADVANCE.label else planted
    if chosen is None or (start == 0.0 and step.op == Op.CULL.label):
        return reported
    choices = {head: choice.choice for head, choice in chosen.decision.items()}
    try:
        if step.op == Op.ADVANCE.label:
            steps, curve = int(choices["tempo"]), AlphaCurve(choices["style"].rpartition("_")[0])
        else:
            steps, curve = int(choices["alpha_speed"]), AlphaCurve(choices["alpha_curve"])
        target = 0.0 if step.op == Op.CULL.label else float(choices["alpha_target"])
    except (KeyError, ValueError):  # a damaged recording
        return reported
    return start + (target - start) * curve.value_at(1.0 / max(steps, 1))


def _describe(trace: Sequence[StepTrace], move: _Move) -> str:
    """Return a decision and its move in words: `cull norm in early: alpha 0.46 → 0.04 in step 15; …`."""
    op = trace[move.decision_index].op
    verb = "set alpha of" if op == Op.SET_ALPHA.label else op
    if move.before == 0.0:
        change = f"blending begins at alpha {move.after:.2g}"
    elif move.after == 0.0:
        change = f"seed removed at alpha {move.before:.2g}"
    else:
        change = f"alpha {move.before:.2g} → {move.after:.2g}"
    if move.blend:
        change = f"blend becomes {move.blend}, {change}"
    text = f"{verb} {move.blueprint} in {move.slot}: {change} in step {trace[move.step_index].step}"
    if move.contribution is not None:
        text += f"; its contribution was {100 * move.contribution:+.1f} pp"
    return text
