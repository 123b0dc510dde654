"""The factored action: an op, the slot it is applied to, and how.

A decision is one choice of each head. An op uses some heads only; the others are fixed at 0, with log-probability 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from esper.domain import Op
from esper.growth.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS, Curve

HEADS_BY_OP: dict[Op, tuple[str, ...]] = {
    Op.WAIT: ("op",),
    Op.GERMINATE: ("op", "slot", "blueprint", "style", "tempo", "alpha_target"),
    Op.ADVANCE: ("op", "slot"),
    Op.SET_ALPHA: ("op", "slot", "style", "alpha_target", "alpha_speed", "alpha_curve"),
    Op.CULL: ("op", "slot", "alpha_speed", "alpha_curve"),
    Op.FOSSILIZE: ("op", "slot"),
}
"""Heads that have an effect under each op."""

ALPHA_CURVES = tuple(Curve)


class Action(NamedTuple):
    """One index for each head, in the order of `HEADS`."""

    op: int
    slot: int = 0
    blueprint: int = 0
    style: int = 0
    tempo: int = 0
    alpha_target: int = 0
    alpha_speed: int = 0
    alpha_curve: int = 0


class Decision(NamedTuple):
    """An action, and what the policy thought of it. Absent where the policy has no such thing."""

    action: Action
    op_probabilities: Mapping[Op, float] | None = None
    """Of every legal op."""
    head_probabilities: Sequence[float] | None = None
    """Of each head's choice given the choices before it, in the order of `HEADS`; 1 where the op does not use it."""
    value: float | None = None


WAIT_DECISION = Decision(Action(Op.WAIT))


def describe_action(action: Action, slots: Sequence[str], blueprints: Sequence[str]) -> dict[str, str]:
    """What each head that the op uses has chosen.

    Args:
        action: the choice.
        slots: names of the slots.
        blueprints: names of those on offer.
    """
    op = Op(action.op)
    words = {
        "op": op.label,
        "slot": slots[action.slot],
        "blueprint": blueprints[action.blueprint],
        "style": BLEND_STYLES[action.style].name,
        "tempo": str(INITIAL_RAMP_EPOCHS[action.tempo]),
        "alpha_target": str(ALPHA_TARGETS[action.alpha_target]),
        "alpha_speed": str(RAMP_EPOCHS[action.alpha_speed]),
        "alpha_curve": ALPHA_CURVES[action.alpha_curve].value,
    }
    return {head: words[head] for head in HEADS_BY_OP[op]}


def head_sizes(slots: int, blueprints: int) -> tuple[int, ...]:
    """Number of actions of each head, in the order of `HEADS`."""
    return (
        len(Op),
        slots,
        blueprints,
        len(BLEND_STYLES),
        len(INITIAL_RAMP_EPOCHS),
        len(ALPHA_TARGETS),
        len(RAMP_EPOCHS),
        len(ALPHA_CURVES),
    )
