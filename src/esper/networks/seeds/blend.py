"""Blending a seed into its host: alpha schedules, and the formulas that combine both outputs.

Shapes: B samples, C channels, L or T positions, H × W pixels.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple, TypeAlias

import msgspec
import torch
from torch import Tensor, nn

from esper.common.domain import AlphaCurve
from esper.networks.seeds.layers import global_avg_pool, starts_at_zero
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.masks import call_seed, hide_padding, mean_over_positions

INITIAL_RAMP_EPOCHS = (3, 5, 8)
"""Selectable lengths of a seed's first ramp, in epochs."""
RAMP_EPOCHS = (0, 3, 5, 8)
"""Selectable lengths of later ramps, in epochs; 0 changes alpha at once."""
ALPHA_TARGETS = (0.5, 0.7, 1.0)
"""Selectable values of alpha at the end of a ramp."""


Alpha: TypeAlias = float | Tensor
"""A blending weight, 0 to 1: a number, or a scalar tensor on the device of the features.

The numbers 0 and 1 may select other operators. A tensor never does, so that a CUDA graph, which contains numbers as
constants, reads its current value.
"""


class AlphaSchedule(msgspec.Struct, kw_only=True):
    """A ramp of alpha from `start` to `target`, both 0 to 1, in `steps` epochs. Checkpoints contain its fields."""

    start: float
    target: float
    steps: int
    epochs_started: int = 0
    """Number of epochs of the ramp that have started."""
    curve: AlphaCurve

    @property
    def finished(self) -> bool:
        """True if alpha is at its target."""
        return self.epochs_started >= self.steps

    @property
    def value(self) -> float:
        """Current alpha; exactly `target` once finished."""
        if self.finished:
            return self.target
        return self.start + (self.target - self.start) * self.curve.value_at(self.epochs_started / self.steps)

    def tick(self) -> None:
        """Advance by one epoch; a finished ramp does not change."""
        self.epochs_started = min(self.epochs_started + 1, self.steps)


class Blend(enum.Enum):
    """Formula that combines host output h and seed output s, with alpha α and blend gate g."""

    ADD = "add"
    """h + α (s − h)"""
    MULTIPLY = "multiply"
    """h (1 + α tanh(s − h))"""
    GATE = "gate"
    """h + α g(h) (s − h)"""


class BlendStyle(NamedTuple):
    """One choice of the policy's style head: the curve of the first ramp, and the blend."""

    curve: AlphaCurve
    blend: Blend

    @property
    def name(self) -> str:
        """Name in events, such as `linear_add`."""
        return f"{self.curve.value}_{self.blend.value}"


BLEND_STYLES = (
    BlendStyle(AlphaCurve.LINEAR, Blend.ADD),
    BlendStyle(AlphaCurve.LINEAR, Blend.MULTIPLY),
    BlendStyle(AlphaCurve.SIGMOID, Blend.ADD),
    BlendStyle(AlphaCurve.LINEAR, Blend.GATE),
)
"""Choices of the style head, in its order."""


def is_causal_blend(blend: Blend, layout: Layout) -> bool:
    """Return True if a blend on a canonical layout does not mix positions: GATE pools over them, except over tokens."""
    return blend is not Blend.GATE or layout in (Layout.BC, Layout.BTC)


class BlendGate(nn.Module):
    """Learned gate of the GATE blend: one value in (0, 1), 0.5 at initialisation.

    One value for each sample, from the mean over its positions; tokens [B, T, C] have one value each.

    Args:
        layout: Canonical layout of the features.
    """

    def __init__(self, channels: int, layout: Layout = Layout.BCHW) -> None:
        super().__init__()
        self._layout = layout
        hidden = max(8, channels // 4)
        self.hidden = nn.Linear(channels, hidden)
        self.out = starts_at_zero(nn.Linear(hidden, 1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the gate values, which broadcast over the features: [B, 1, 1, 1] for [B, C, H, W].

        Args:
            mask: Real positions of a sequence, bool [B, L]; the features have zeros at the others. None: all.
        """
        match self._layout:
            case Layout.BCHW:
                return self._gate(global_avg_pool(x))[:, :, None, None]
            case Layout.BCL:
                return self._gate(mean_over_positions(x, mask))[:, :, None]
            case _:
                return self._gate(x)

    def _gate(self, features_C: Tensor) -> Tensor:
        return torch.sigmoid(self.out(torch.relu(self.hidden(features_C))))


def blend(kind: Blend, host: Tensor, seed: Tensor, alpha: Alpha, gate: Tensor | None = None) -> Tensor:
    """Combine the outputs of host and seed; exactly the host's at alpha 0, with ADD the seed's at alpha 1.

    Args:
        seed: Output of the seed, of the same shape.
        gate: Values of the blend gate, required by GATE.
    """
    if kind is Blend.ADD and not isinstance(alpha, Tensor) and alpha == 1.0:
        return seed  # the usual case: saves two operators
    difference = seed - host
    if kind is Blend.ADD:
        return _add_scaled(host, alpha, difference)
    if kind is Blend.MULTIPLY:
        return _add_scaled(host, alpha, host * torch.tanh(difference))
    assert gate is not None
    return _add_scaled(host, alpha, gate * difference)


def _add_scaled(host: Tensor, alpha: Alpha, change: Tensor) -> Tensor:
    """Return `host + alpha · change`, with the same bits for a number and a tensor on a CPU."""
    if isinstance(alpha, Tensor):
        # Autocast on a GPU would promote 16-bit features to alpha's float32.
        return torch.addcmul(host, alpha.to(change.dtype) if alpha.is_cuda else alpha, change)
    return torch.add(host, change, alpha=alpha)


def blend_seed(
    kind: Blend,
    layout: Layout,
    host: Tensor,
    seed: nn.Module,
    alpha: Alpha,
    gate: BlendGate | None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the host's features, in a layout, with a seed blended in.

    Args:
        layout: Layout of the features. Seed and blend gate receive them in its canonical layout.
        gate: The blend gate, required by GATE.
        mask: Real positions of a sequence, bool [B, T]; None: all. Seed and blend gate see zeros at the others, where
            the features do not change: layers of the host may rely on them, such as on zeros before a convolution.
    """
    features, channel_axis = layout.to_canonical(host), layout.canonical.channel_axis
    shown = hide_padding(features, mask, channel_axis)
    gate_values = gate(shown, mask) if gate is not None else None
    blended = blend(kind, shown, call_seed(seed, shown, mask), alpha, gate_values)
    if mask is not None:
        blended = torch.where(mask.unsqueeze(channel_axis), blended, features)
    return layout.from_canonical(blended)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, host: Tensor, candidate: Tensor) -> Tensor:  # noqa: ARG004 (the signature is autograd's)
        return host.clone()  # not a view: the host may change the result in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return grads[0], grads[0]


def straight_through(host: Tensor, candidate: Tensor) -> Tensor:
    """Return the host's value, bit for bit; the backward pass gives the gradient unchanged to host and candidate.

    `host + (candidate − candidate.detach())` would round, and would turn an infinity into NaN.
    """
    return _StraightThrough.apply(host, candidate)
