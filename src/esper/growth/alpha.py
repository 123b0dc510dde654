"""Alpha, the share of a seed's output that is blended in, and the ramps on which it moves."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

TEMPOS = (3, 5, 8)
"""Lengths of a seed's first ramp, epochs."""
SPEEDS = (0, 3, 5, 8)
"""Lengths of a later ramp, epochs; 0 is at once."""
TARGETS = (0.5, 0.7, 1.0)


class Curve(enum.Enum):
    """The shape of a ramp: a monotone map of [0, 1] onto [0, 1]."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID_GENTLE = "sigmoid_gentle"
    SIGMOID = "sigmoid"
    SIGMOID_SHARP = "sigmoid_sharp"

    def at(self, t: float) -> float:
        """Height of the curve at `t`, both in [0, 1]."""
        if self is Curve.LINEAR:
            return t
        if self is Curve.COSINE:
            return 0.5 * (1.0 - math.cos(math.pi * t))
        # The logistic, scaled so that it starts at 0 and ends at 1: tanh is the same curve, centred.
        half = _STEEPNESS[self] / 4.0
        return 0.5 * (1.0 + math.tanh(half * (2.0 * t - 1.0)) / math.tanh(half))


_STEEPNESS = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID: 12.0, Curve.SIGMOID_SHARP: 24.0}
"""Slope factor k of 1 / (1 + exp(−k (t − ½)))."""


@dataclass(kw_only=True)
class AlphaSchedule:
    """A ramp from `start` to `target` in `steps` epochs, of which `done` have begun."""

    start: float
    target: float
    steps: int
    curve: Curve
    done: int = 0

    def __post_init__(self) -> None:
        if not (0.0 <= self.start <= 1.0 and 0.0 <= self.target <= 1.0):
            raise ValueError(f"alpha must stay between 0 and 1; the ramp goes from {self.start} to {self.target}")
        if self.steps < 0:
            raise ValueError(f"a ramp cannot take {self.steps} epochs; use 0 for at once")

    @property
    def finished(self) -> bool:
        """Whether alpha is at its target."""
        return self.done >= self.steps

    @property
    def value(self) -> float:
        """Alpha now; exactly the target once finished."""
        if self.finished:
            return self.target
        return self.start + (self.target - self.start) * self.curve.at(self.done / self.steps)

    def tick(self) -> None:
        """Move on by one epoch; a finished ramp stays where it is."""
        self.done = min(self.done + 1, self.steps)
