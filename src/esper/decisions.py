"""The decision of an env in one step: the value that all parts share, and its wording for people."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from esper.domain import HEADS, Op

WAIT, GERMINATE, ADVANCE, SET_ALPHA, CULL, FOSSILIZE = (op.label for op in Op)
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    GERMINATE: {"style": "linear_add", "tempo": "3", "alpha_target": "1.0"},
    SET_ALPHA: {"style": "linear_add", "alpha_speed": "0", "alpha_curve": "linear"},
    CULL: {"alpha_speed": "0", "alpha_curve": "linear"},
}
"""Choices that a decision has if they are not given, keyed by op and head."""


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Op of an env in one step, and its choices as text. A choice is None if the op does not use it, or if it is left
    to the default."""

    op: str
    """wait, germinate, advance, set_alpha, cull, or fossilize."""
    slot: str | None = None
    blueprint: str | None = None
    style: str | None = None
    tempo: str | None = None
    alpha_target: str | None = None
    alpha_speed: str | None = None
    alpha_curve: str | None = None

    @classmethod
    def from_choices(cls, choices: Mapping[str, str]) -> Decision:
        """Return the decision of the choices of heads, the op included, keyed by head. Unknown heads are ignored."""
        return cls(**{head: choice for head, choice in choices.items() if head in HEADS})

    @property
    def choices(self) -> dict[str, str]:
        """The choices that are given, keyed by head, in the order of `HEADS`."""
        found = {head: getattr(self, head) for head in HEADS}
        return {head: choice for head, choice in found.items() if choice is not None}

    def with_defaults(self) -> Decision:
        """Return the decision with the default for each choice that is not given."""
        return Decision(**{**_DEFAULTS.get(self.op, {}), **self.choices})


def describe_decision(decision: Decision) -> str:
    """Return a decision in words, such as `germinate depthwise in early` or `set alpha in early to 0.7`."""
    words = [decision.op.replace("_", " "), decision.blueprint, f"in {decision.slot}" if decision.slot else None]
    if decision.op == SET_ALPHA and decision.alpha_target:
        words.append(f"to {decision.alpha_target}")
    return " ".join(filter(None, words))


def label_decision(decision: Decision) -> str:
    """Return a short form of `describe_decision`, in which a seed stands for its planting: `depthwise in early`."""
    return describe_decision(decision).removeprefix(f"{GERMINATE} ")
