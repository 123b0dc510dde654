"""Blueprints for pictures [B, C, H, W], in order of increasing cost. Two are for sequences [B, C, L] too.

Every seed is residual, s = x + Δ(x), and the last layer of Δ is initialised to zero: a new seed is the identity, so the
output of the network does not jump when blending begins. Where Δ ends in an activation, it is SiLU, because its slope
at zero is ½, while ReLU would pass no gradient. Norms are GroupNorm, because it has no running statistics that
straight-through training could distort.

Shapes: B samples, C channels, H × W pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.seeds.blueprints.registry import blueprint
from esper.networks.seeds.layers import (
    PointwiseConv,
    global_avg_pool,
    initialise_,
    make_conv,
    make_group_norm,
    starts_at_zero,
)
from esper.networks.seeds.masks import group_norm, mean_over_positions


@blueprint("norm", "BCHW", "BCL", initialise=initialise_)
class NormSeed(nn.Module):
    """Adds the features, normalised over groups of channels and all positions, scaled per channel: 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = starts_at_zero(make_group_norm(channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, H, W] or [B, C, L] to the same shape."""
        return x + group_norm(self.norm, x, mask)


@blueprint("attention", "BCHW", "BCL", initialise=initialise_)
class SqueezeExciteSeed(nn.Module):
    """Squeeze-and-excitation (Hu et al., 2018): scales each channel by a factor in (0, 2), computed from channel means.

    With r = max(1, C/4) hidden units: 2Cr + r + C parameters.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(1, channels // 4)
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = starts_at_zero(nn.Linear(hidden, channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, H, W] or [B, C, L] to the same shape."""
        pooled_BC = global_avg_pool(x) if x.dim() == 4 else mean_over_positions(x, mask)
        scale_BC = torch.tanh(self.excite(F.relu(self.squeeze(pooled_BC))))
        return x + x * scale_BC[(..., *[None] * (x.dim() - 2))]


@blueprint("depthwise", "BCHW", initialise=initialise_)
class DepthwiseSeed(nn.Module):
    """A depthwise 3×3 convolution, then a 1×1 convolution: 9C + C² + 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spatial = make_conv(channels, channels, 3, groups=channels)
        self.mix = PointwiseConv(channels, channels)
        self.norm = starts_at_zero(make_group_norm(channels))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map [B, C, H, W] to the same shape."""
        return x_BCHW + F.silu(self.norm(self.mix(self.spatial(x_BCHW))))


@blueprint("bottleneck", "BCHW", initialise=initialise_)
class BottleneckSeed(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions that reduce and restore the channels (He et al., 2016).

    With r = max(4, C/4) inner channels: 2Cr + 9r² + 4r + C parameters. The input is non-negative; without the first
    norm, one optimizer step can make all inner channels negative, and ReLU would then block the gradient for good.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(4, channels // 4)
        self.down = PointwiseConv(channels, inner)
        self.down_norm = make_group_norm(inner)
        self.spatial = make_conv(inner, inner, 3)
        self.spatial_norm = make_group_norm(inner)
        self.up = starts_at_zero(PointwiseConv(inner, channels, bias=True))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map [B, C, H, W] to the same shape."""
        narrow_BCHW = F.relu(self.down_norm(self.down(x_BCHW)))
        return x_BCHW + self.up(F.relu(self.spatial_norm(self.spatial(narrow_BCHW))))


class _ConvSeed(nn.Module):
    """Base of the seeds with Δ = SiLU(norm(convolution))."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.norm = starts_at_zero(make_group_norm(conv.out_channels))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return x_BCHW + F.silu(self.norm(self.conv(x_BCHW)))


@blueprint("conv_small", "BCHW", initialise=initialise_)
class ConvSmallSeed(_ConvSeed):
    """A 1×1 convolution: C² + 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__(PointwiseConv(channels, channels))


@blueprint("conv_light", "BCHW", initialise=initialise_)
class ConvLightSeed(_ConvSeed):
    """A 3×3 convolution: 9C² + 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__(make_conv(channels, channels, 3))


@blueprint("conv_heavy", "BCHW", initialise=initialise_)
class ConvHeavySeed(nn.Module):
    """Two 3×3 convolutions: 18C² + 4C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = make_conv(channels, channels, 3)
        self.first_norm = make_group_norm(channels)
        self.second = make_conv(channels, channels, 3)
        self.norm = starts_at_zero(make_group_norm(channels))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map [B, C, H, W] to the same shape."""
        inner_BCHW = F.relu(self.first_norm(self.first(x_BCHW)))
        return x_BCHW + F.silu(self.norm(self.second(inner_BCHW)))
