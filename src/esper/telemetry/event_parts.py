"""Base class of the events, and structs inside events: slot readings, head choices, gate checks and head readings."""

from __future__ import annotations

import msgspec

from esper.domain import StageName


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type"):
    """Base class of the telemetry events. The hub sets `seq` and `time` when an event is emitted."""

    seq: int = 0
    """Sequence number in the run, from 1, without gaps."""
    time: float = 0.0
    """Wall-clock time in seconds since the epoch, rounded down to milliseconds."""


class StructureInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A structure of a family of tasks."""

    name: str
    """Name of the structure."""
    slots: int
    """Number of its slots, the first ones of `slot_names`."""
    host_parameters: int
    """Parameters of the bare host."""
    chance_loss: float
    """Loss of a constant output."""


class SlotReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """State of one slot of an env at the end of a step."""

    stage: StageName
    """dormant, germinated, training, blending, probationary, fossilized, culled, or embargoed."""
    blueprint: str | None = None
    """Blueprint of the seed; absent if the slot is empty."""
    blend: str | None = None
    """Formula that blends the seed into the host: add, multiply or gate; absent if the slot is empty."""
    alpha: float | None = None
    """Blending weight of the seed's output, 0 to 1; absent before the blending stage and if the slot is empty."""
    age: int = 0
    """Steps since the seed germinated."""
    parameters: int = 0
    """Parameters of the seed; 0 if the slot is empty."""
    grad_norm: float | None = None
    """L2 norm of the seed's gradient before clipping, mean over the epoch; absent if the seed did not train."""
    contribution: float | None = None
    """Validation score with all seeds minus the score without this one; absent if not measured."""
    contribution_se: float | None = None
    """Standard error of the contribution, paired over the validation samples; absent if not measured."""
    shapley: float | None = None
    """Shapley value among the blended seeds; only at the end of an episode, and with `--counterfactual shapley`."""


class HeadChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Choice of one policy head."""

    choice: str
    """Name of a slot, blueprint, style, or curve; a number of steps; or an alpha."""
    probability: float | None = None
    """Probability of the choice, given the choices of the earlier heads; absent if the policy is deterministic."""


class GateCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One condition of a gate."""

    name: str
    """Name of the condition."""
    passed: bool
    """True if the condition holds."""
    value: float | None = None
    """Measured value, in the unit of the condition; absent if nothing was measured."""
    threshold: float | None = None
    """Limit that the value is compared with, in the same unit."""


class HeadReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Gradient norm and entropy of one policy head in one update."""

    grad_norm: float | None = None
    """L2 norm of the head's gradient before clipping, mean over the minibatches; absent if the head got no gradient."""
    entropy: float | None = None
    """Entropy divided by log(number of legal actions), mean over the decisions with a choice; absent without any."""
