"""Shared vocabulary: stages, ops, curves, policy heads, pause causes, anomaly rules, run statuses and step numbers."""

from __future__ import annotations

import math
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from typing import Literal, NamedTuple, cast

VERSION = "0.1.0"
"""Version of the package, re-exported as `esper.__version__`."""


Severity = Literal["info", "warning", "error"]
"""Severity of a log message or an anomaly, in rising order."""
StageName = Literal[
    "dormant", "germinated", "training", "blending", "probationary", "fossilized", "culled", "embargoed"
]
"""Name of a `Stage` in events and on screen."""


class Stage(IntEnum):
    """Stage of a slot: those of a successful seed in order, then those of a removed one. Numbers are on disk."""

    DORMANT = 0
    """The slot is empty."""
    GERMINATED = 1
    """The seed exists, but the forward pass does not call it."""
    TRAINING = 2
    """The seed is trained straight-through; the host's output is unchanged."""
    BLENDING = 3
    """Alpha is ramping to its target, or reached it in this epoch."""
    PROBATIONARY = 4
    """The seed is blended at its target and evaluated; it can be fossilized or culled."""
    FOSSILIZED = 5
    """The seed is a permanent part of the host."""
    CULLED = 6
    """The seed was removed in this epoch."""
    EMBARGOED = 7
    """The slot is empty; no seed can be planted until the embargo ends."""

    @cached_property
    def label(self) -> StageName:
        """Lower-case name, used in events and on screen."""
        return cast("StageName", self.name.lower())

    @cached_property
    def is_blended(self) -> bool:
        """True if a seed in this stage contributes to the output of the forward pass."""
        return self in (Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED)


class StepNumber(NamedTuple):
    """Round and step that were last completed, both from 1. The start of a run is (0, 0)."""

    round: int
    step: int

    @classmethod
    def from_completed(cls, rounds: int, steps: int, length: int) -> StepNumber:
        """Return the step number after `rounds` rounds of `length` steps and `steps` steps of the next round."""
        if steps == 0:
            return cls(rounds, length if rounds else 0)
        return cls(rounds + 1, steps)

    def steps_done(self, length: int) -> int:
        """Return the number of steps since the start of the run, given the steps of a round."""
        return max(self.round - 1, 0) * length + self.step


class Op(IntEnum):
    """Operation that a policy can apply to an env in one step."""

    WAIT = 0
    """Change nothing."""
    GERMINATE = 1
    """Plant a seed in an empty slot."""
    ADVANCE = 2
    """Begin to blend in a seed in training."""
    SET_ALPHA = 3
    """Change the alpha of a blended seed to another target."""
    CULL = 4
    """Remove a seed, at once or by a ramp of alpha to 0."""
    FOSSILIZE = 5
    """Make a seed a permanent part of the host."""

    @cached_property
    def label(self) -> str:
        """Lower-case name, used in events and on screen."""
        return self.name.lower()


class AlphaCurve(Enum):
    """Shape of a ramp of alpha: a monotone map of [0, 1] onto [0, 1]."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID_GENTLE = "sigmoid_gentle"
    SIGMOID = "sigmoid"
    SIGMOID_SHARP = "sigmoid_sharp"

    def value_at(self, t: float) -> float:
        """Return the value of the curve, 0 to 1, at the fraction `t` of the ramp, 0 to 1."""
        if self is AlphaCurve.LINEAR:
            return t
        if self is AlphaCurve.COSINE:
            return 0.5 * (1.0 - math.cos(math.pi * t))
        # The logistic function, scaled to start at 0 and end at 1; tanh is the logistic function centred at 0.
        half = _STEEPNESS[self] / 4.0
        return 0.5 * (1.0 + math.tanh(half * (2.0 * t - 1.0)) / math.tanh(half))


_STEEPNESS = {AlphaCurve.SIGMOID_GENTLE: 6.0, AlphaCurve.SIGMOID: 12.0, AlphaCurve.SIGMOID_SHARP: 24.0}
"""Slope factor k of 1 / (1 + exp(−k (t − ½)))."""


HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
"""Policy heads, in the order in which they choose the factors of an action."""

HEADS_BY_OP: dict[Op, tuple[str, ...]] = {
    Op.WAIT: ("op",),
    Op.GERMINATE: ("op", "slot", "blueprint", "style", "tempo", "alpha_target"),
    Op.ADVANCE: ("op", "slot"),
    Op.SET_ALPHA: ("op", "slot", "style", "alpha_target", "alpha_speed", "alpha_curve"),
    Op.CULL: ("op", "slot", "alpha_speed", "alpha_curve"),
    Op.FOSSILIZE: ("op", "slot"),
}
"""Heads that have an effect under each op."""


class PauseCause(StrEnum):
    """Reason for which the engine holds a run without a request of a user. Values are on disk, in `Paused.cause`."""

    FAULT = "fault"
    """A step failed partway; the start of its round is saved."""
    UNSAVED = "unsaved"
    """A step failed partway, and the start of its round could not be saved."""
    RECORDING = "recording"
    """Events cannot be written. The run resumes by itself as soon as they can."""
    LOST = "lost"
    """The run directory was deleted. Nothing can be saved, and the run can only end."""
    CHECKPOINT = "checkpoint"
    """The final checkpoint of the run could not be written."""


class Rule(StrEnum):
    """Anomaly rule, in the order of the help screen. Values are on disk, in `AnomalyFound.rule`."""

    NON_FINITE_LOSS = "non-finite loss"
    NON_FINITE_SCORE = "non-finite score"
    NON_FINITE_GRADIENT = "non-finite gradient"
    EXPLODING_GRADIENT = "exploding gradient"
    LOSS_ABOVE_CHANCE = "loss above chance"
    DEAD_SEED = "dead seed"
    REPEATED_SKIPS = "repeated skips"
    STALLED_ENV = "stalled env"
    GOVERNOR_ROLLBACK = "governor rollback"
    NON_FINITE_HEAD = "non-finite head"
    NON_FINITE_UPDATE = "non-finite update"
    KL_SPIKE = "KL spike"
    DEAD_HEAD = "dead head"
    ENTROPY_COLLAPSE = "entropy collapse"
    MEMORY_NEARLY_FULL = "memory nearly full"
    MEMORY_GROWS = "memory grows"
    LOSS_SCALES_DIVERGE = "loss scales diverge"
    LOSS_SCALE_BELOW_1 = "loss scale below 1"
    STRAGGLING_LANE = "straggling lane"
    STALE_TELEMETRY = "stale telemetry"
    CRASHED_RUN = "crashed run"


TERMINAL_STATUSES = ("done", "stopped", "failed")
"""Values of `RunState.status` after which a run records no further events."""
