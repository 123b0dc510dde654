"""The convolutional host of the built-in tasks.

Shapes: B samples, C channels, H × W pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.seeds.layers import FastBatchNorm2d, global_avg_pool, initialise_, make_conv, max_pool_2x2

_BATCH_NORM_MOMENTUM = 0.5
"""An epoch can be as short as 8 batches. With PyTorch's default of 0.1 the running statistics lag behind the weights,
and the validation accuracy of an intact network jumps by tens of percentage points."""


PoolBefore = Literal["conv", "norm"]
"""Layer of a block before which the picture is pooled: the convolution or the norm."""


class ConvHost(nn.Module):
    """Convolution blocks, `segments`, then a linear head.

    Args:
        widths: Output channels of each block.
        kernel_size: Kernel size of every convolution, odd.
        pools: Number of 2×2 max pools.
        pool_before: Position of the pools. "conv": before the convolutions of the second and later blocks, so that the
            seed of the previous block receives every pixel; for small pictures. "norm": between convolution and norm of
            the first and later blocks, so that norm, ReLU and seed compute a quarter of the pixels (as in Page, 2019,
            "How to train your ResNet", and Jordan, 2024, "94% on CIFAR-10 in 3.29 seconds").
    """

    def __init__(
        self,
        *,
        in_channels: int,
        widths: Sequence[int],
        kernel_size: int,
        pools: int,
        pool_before: PoolBefore,
        classes: int,
    ) -> None:
        super().__init__()
        inputs = (in_channels, *widths[:-1])
        first = 1 if pool_before == "conv" else 0
        self.segments = nn.ModuleList(
            ConvBlock(channels_in, channels_out, kernel_size, pool_before if first <= i < first + pools else None)
            for i, (channels_in, channels_out) in enumerate(zip(inputs, widths, strict=True))
        )
        self.head = PooledLinear(widths[-1], classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map pictures [B, C, H, W] to logits [B, K]."""
        for segment in self.segments:
            x_BCHW = segment(x_BCHW)
        return self.head(x_BCHW)


def build_conv_host(**arguments: Any) -> ConvHost:
    """Return a `ConvHost`, whose initial values follow from the current seed of PyTorch's global generator."""
    host = ConvHost(**arguments)
    initialise_(host, torch.Generator().manual_seed(torch.initial_seed()))
    return host


class ConvBlock(nn.Module):
    """Convolution, batch norm and ReLU, with an optional 2×2 max pool before the convolution or the norm."""

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, pool_before: PoolBefore | None) -> None:
        super().__init__()
        self.pool_before = pool_before
        self.conv = make_conv(channels_in, channels_out, kernel_size)
        self.norm = FastBatchNorm2d(channels_out, momentum=_BATCH_NORM_MOMENTUM)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map [B, C_in, H, W] to [B, C_out, H, W], or to half the height and width if pooled."""
        if self.pool_before == "conv":
            x_BCHW = max_pool_2x2(x_BCHW)
        h_BCHW = self.conv(x_BCHW)
        if self.pool_before == "norm":
            h_BCHW = max_pool_2x2(h_BCHW)
        return F.relu(self.norm(h_BCHW), inplace=True)


class PooledLinear(nn.Module):
    """Global average pool, then a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map [B, C, H, W] to logits [B, K]."""
        return self.linear(global_avg_pool(x_BCHW))
