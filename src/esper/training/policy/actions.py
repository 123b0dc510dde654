"""The factored action: an op, its slot, and its parameters, each chosen by one head of the policy.

An op uses only some heads; the choices of the others are 0, with log-probability 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from esper.common.configuration.config import ConfigError
from esper.common.decisions import Decision, option_name
from esper.common.domain import HEADS_BY_OP, AlphaCurve, Op
from esper.common.formatting import suggest
from esper.networks.seeds.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS

ALPHA_CURVES = tuple(AlphaCurve)
"""Choices of the alpha_curve head, in its order."""


class Action(NamedTuple):
    """What a policy does to an env in one step: one index for each head, from 0, which is also that of unused heads."""

    op: int
    """An `Op`."""
    slot: int = 0
    """Index in `EnvStatus.slots`, for all ops but WAIT."""
    blueprint: int = 0
    """Of GERMINATE: index in the `blueprints` that the policy was built with; the slot must offer it."""
    style: int = 0
    """Of GERMINATE and SET_ALPHA: linear and added, linear and multiplied, sigmoid and added, linear and gated."""
    tempo: int = 0
    """Of GERMINATE: length of the first ramp, of 3, 5 or 8 epochs."""
    alpha_target: int = 0
    """Of GERMINATE and SET_ALPHA: alpha at the end of the ramp, of 0.5, 0.7 or 1."""
    alpha_speed: int = 0
    """Of SET_ALPHA and CULL: length of the ramp, of 0 (at once), 3, 5 or 8 epochs."""
    alpha_curve: int = 0
    """Of SET_ALPHA and CULL: linear, cosine, or a gentle, medium or sharp sigmoid."""


class ChosenAction(NamedTuple):
    """An action, and the policy's probabilities and value for telemetry; None if the policy has none."""

    action: Action
    """The action. One that is not legal in the state of its slot is a fault of the run."""
    op_probabilities: Mapping[Op, float] | None = None
    """Probability of every legal op, 0 to 1."""
    head_probabilities: Sequence[float] | None = None
    """Probability of each head's choice given the choices before it, in the order of `HEADS`; 1 for unused heads."""
    value: float | None = None
    """Estimated value of the state, in units of return."""


WAITING = ChosenAction(Action(Op.WAIT))
"""The choice to change nothing, a `ChosenAction`."""


_FIXED_CHOICES: Mapping[str, Sequence[str]] = {
    "op": [op.label for op in Op],
    "style": [style.name for style in BLEND_STYLES],
    "tempo": list(map(str, INITIAL_RAMP_EPOCHS)),
    "alpha_target": list(map(str, ALPHA_TARGETS)),
    "alpha_speed": list(map(str, RAMP_EPOCHS)),
    "alpha_curve": [curve.value for curve in ALPHA_CURVES],
}
"""Choices of the heads whose choices do not depend on the task, as text."""


def decision_of_action(action: Action, slots: Sequence[str], blueprints: Sequence[str]) -> Decision:
    """Return an action as a decision, with the choice of each head that its op uses."""
    known = {**_FIXED_CHOICES, "slot": slots, "blueprint": blueprints}
    chosen: dict[str, int] = action._asdict()
    return Decision(**{head: known[head][chosen[head]] for head in HEADS_BY_OP[Op(action.op)]})


def action_of(decision: Decision, slots: Sequence[str], blueprints: Sequence[str]) -> Action:
    """Return a decision as an action, with the default for each choice that is not given.

    Raises:
        ConfigError: A choice does not exist.
    """
    known = {**_FIXED_CHOICES, "slot": slots, "blueprint": blueprints}
    choices = decision.with_defaults().choices
    for head, choice in choices.items():
        if choice not in known[head]:
            raise ConfigError(f"{choice!r} is not a choice of {option_name(head)}; {suggest(choice, known[head])}")
    return Action(**{head: known[head].index(choice) for head, choice in choices.items()})


def head_sizes(slots: int, blueprints: int) -> tuple[int, ...]:
    """Return the number of choices of each head, in the order of `HEADS`."""
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
