"""The layers that hosts and seeds share."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from esper.growth.row_convolution import SmallConv3x3


class Pointwise(nn.Conv2d):
    """A 1×1 convolution, computed as a matrix product over the channels.

    In channels_last that needs no copy, and on a CPU it is about three times as fast for pictures this small.
    """

    def __init__(self, channels_in: int, channels_out: int, bias: bool = False) -> None:
        super().__init__(channels_in, channels_out, 1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """From [B, C_in, H, W] to [B, C_out, H, W]."""
        return F.linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that does not count its batches: only a cumulative average would need that."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape-preserving."""
        statistics = (self.running_mean, self.running_var)
        assert self.momentum is not None
        return F.batch_norm(input, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)


def convolution(channels_in: int, channels_out: int, kernel_size: int, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the picture's size; `kernel_size` is odd."""
    if kernel_size == 1 and groups == 1:
        return Pointwise(channels_in, channels_out)
    if kernel_size == 3 and groups == 1:
        return SmallConv3x3(channels_in, channels_out)
    return nn.Conv2d(channels_in, channels_out, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)


def pixel_mean(x_BCHW: Tensor) -> Tensor:
    """Mean over the pixels [B, C].

    As `x_BCHW.mean((2, 3))`, to the bit, but its gradient is in channels_last as the activations are: in another layout
    the backward pass of the layer before took 15 times as long on a CPU.
    """
    return x_BCHW.permute(0, 2, 3, 1).mean((1, 2))


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with about 16 channels to a group; one group where there are fewer."""
    return nn.GroupNorm(math.gcd(channels, max(1, channels // 16)), channels)
