"""Structs inside events: slot readings, head choices, gate checks."""

from __future__ import annotations

import msgspec


class SlotReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One slot of one env at the end of a step."""

    stage: str
    """dormant, germinated, training, blending, probationary, fossilized, culled or embargoed."""
    blueprint: str | None = None
    """Architecture of its seed; absent in an empty slot."""
    alpha: float | None = None
    """Absent while nothing is blended: before BLENDING and in an empty slot."""
    age: int = 0
    """Steps since germination."""
    parameters: int = 0
    """Of its seed; 0 in an empty slot."""
    grad_norm: float | None = None
    """Mean L2 norm of the seed's gradient over the epoch, before clipping."""
    contribution: float | None = None
    """Validation accuracy with every seed, less that without this one."""
    contribution_se: float | None = None
    """Standard error of the contribution over the samples of the validation split (paired)."""
    shapley: float | None = None
    """Shapley value of the seed among the blended ones; present at the end of an episode, where it was asked for."""


class HeadChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one head of the policy chose."""

    choice: str
    """In words: the name of a slot, blueprint, style or curve, a number of steps, or an alpha."""
    probability: float | None = None
    """That the head gave to it, given the choices before; absent for policies that are not stochastic."""


class GateCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One condition of a gate."""

    name: str
    """What was checked."""
    passed: bool
    """Whether it holds."""
    value: float | None = None
    """What was measured, in the unit of the check; absent when nothing was."""
    threshold: float | None = None
    """What it is held against, in the same unit."""


class HeadReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One head of the policy over one update."""

    grad_norm: float | None = None
    """L2 norm of the head's gradient, mean over the minibatches, before clipping; absent when none reached it."""
    entropy: float | None = None
    """Entropy over log(number of legal actions), mean over the decisions with a choice; absent when there were none."""
