"""How a seed is blended into its host: alpha schedules, and the formulas that combine both outputs.

Shapes: B samples, C channels, H × W pixels.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from esper.growth.layers import global_avg_pool, mark_zero_init

INITIAL_RAMP_EPOCHS = (3, 5, 8)
"""Lengths of a seed's first ramp, epochs."""
RAMP_EPOCHS = (0, 3, 5, 8)
"""Lengths of a later ramp, epochs; 0 is at once."""
ALPHA_TARGETS = (0.5, 0.7, 1.0)


class Curve(enum.Enum):
    """The shape of a ramp: a monotone map of [0, 1] onto [0, 1]."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID_GENTLE = "sigmoid_gentle"
    SIGMOID = "sigmoid"
    SIGMOID_SHARP = "sigmoid_sharp"

    def value_at(self, t: float) -> float:
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
    """A ramp from `start` to `target` in `steps` epochs, of which `epochs_started` have begun."""

    start: float
    target: float
    steps: int
    curve: Curve
    epochs_started: int = 0

    def __post_init__(self) -> None:
        if not (0.0 <= self.start <= 1.0 and 0.0 <= self.target <= 1.0):
            raise ValueError(f"alpha must stay between 0 and 1; the ramp goes from {self.start} to {self.target}")
        if self.steps < 0:
            raise ValueError(f"a ramp cannot take {self.steps} epochs; use 0 for at once")

    @property
    def finished(self) -> bool:
        """Whether alpha is at its target."""
        return self.epochs_started >= self.steps

    @property
    def value(self) -> float:
        """Alpha now; exactly the target once finished."""
        if self.finished:
            return self.target
        return self.start + (self.target - self.start) * self.curve.value_at(self.epochs_started / self.steps)

    def tick(self) -> None:
        """Move on by one epoch; a finished ramp stays where it is."""
        self.epochs_started = min(self.epochs_started + 1, self.steps)


class Blend(enum.Enum):
    """The formula, for host h, seed s, share α and gate g."""

    ADD = "add"
    """h + α (s − h)"""
    MULTIPLY = "multiply"
    """h (1 + α tanh(s − h))"""
    GATE = "gate"
    """h + α g(h) (s − h)"""


class BlendStyle(NamedTuple):
    """What the policy's style head chooses: the curve of the first ramp, and the blend."""

    curve: Curve
    blend: Blend

    @property
    def name(self) -> str:
        """As in `linear_add`."""
        return f"{self.curve.value}_{self.blend.value}"


BLEND_STYLES = (
    BlendStyle(Curve.LINEAR, Blend.ADD),
    BlendStyle(Curve.LINEAR, Blend.MULTIPLY),
    BlendStyle(Curve.SIGMOID, Blend.ADD),
    BlendStyle(Curve.LINEAR, Blend.GATE),
)


class BlendGate(nn.Module):
    """Decides for each sample how open the seed is: one number in (0, 1), one half at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(8, channels // 4)
        self.hidden = nn.Linear(channels, hidden)
        self.out = mark_zero_init(nn.Linear(hidden, 1))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Openness [B, 1, 1, 1]."""
        pooled_BC = global_avg_pool(x_BCHW)
        return torch.sigmoid(self.out(torch.relu(self.hidden(pooled_BC))))[:, :, None, None]


def blend(kind: Blend, host_BCHW: Tensor, seed_BCHW: Tensor, alpha: float, gate_B111: Tensor | None = None) -> Tensor:
    """Combine both outputs [B, C, H, W]; at alpha 0 the host's value, and where they are added, at alpha 1 the seed's.

    Raises:
        ValueError: the blend is GATE and there is no openness.
    """
    if kind is Blend.ADD and alpha == 1.0:
        return seed_BCHW  # most of a life: worth sparing the operators that would give the same
    difference = seed_BCHW - host_BCHW
    if kind is Blend.ADD:
        return torch.add(host_BCHW, difference, alpha=alpha)
    if kind is Blend.MULTIPLY:
        return torch.add(host_BCHW, host_BCHW * torch.tanh(difference), alpha=alpha)
    if gate_B111 is None:
        raise ValueError("the GATE blend needs the openness of its gate")
    return torch.add(host_BCHW, gate_B111 * difference, alpha=alpha)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, host: Tensor, candidate: Tensor) -> Tensor:  # noqa: ARG004 (the signature is autograd's)
        return host.view_as(host)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return grads[0], grads[0]


def straight_through(host: Tensor, candidate: Tensor) -> Tensor:
    """The host's value, bit for bit, whatever the candidate's; the gradient goes to both unchanged.

    Not written as `host + (candidate − candidate.detach())`, which rounds, and turns an infinity into NaN.
    """
    return _StraightThrough.apply(host, candidate)
