"""The convolutional host of the built-in tasks.

Shapes: B samples, C channels, H × W pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from esper.growth.layers import FastBatchNorm2d, global_avg_pool, make_conv, max_pool_2x2
from esper.growth.network import Host, InjectionPoint

_BATCH_NORM_MOMENTUM = 0.5
"""An epoch may be no more than 8 batches: with PyTorch's 0.1 the running statistics lag behind the weights, and the
validation accuracy of a sound network jumps by tens of points."""


PoolBefore = Literal["conv", "norm"]
"""Which layer of a block sees the picture halved first."""


class ConvHost(Host):
    """Convolution blocks with a slot after each.

    Args:
        in_channels: of the pictures.
        widths: channels of each block.
        kernel_size: of every convolution, odd.
        pools: how often the picture is halved.
        pool_before: where. "conv": by the blocks from the second, before their convolution, so that the seed of the
            block before sees every pixel; for small pictures. "norm": by the blocks from the first, between convolution
            and norm, so that norm, ReLU and seed have a quarter of the pixels to compute (as Page, 2019, "How to train
            your ResNet", and Jordan, 2024, "94% on CIFAR-10 in 3.29 seconds").
        classes: outputs.
        slots: names, one to a block.
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
        slots: Sequence[str] = ("early", "mid", "late"),
    ) -> None:
        if len(slots) != len(widths):
            raise ValueError(f"a host of {len(widths)} blocks needs as many slot names, not {len(slots)}")
        inputs = (in_channels, *widths[:-1])
        first = 1 if pool_before == "conv" else 0
        blocks = [
            ConvBlock(channels_in, channels_out, kernel_size, pool_before if first <= i < first + pools else None)
            for i, (channels_in, channels_out) in enumerate(zip(inputs, widths, strict=True))
        ]
        injection_points = [
            InjectionPoint(name, width, i) for i, (name, width) in enumerate(zip(slots, widths, strict=True))
        ]
        super().__init__(blocks, PooledLinear(widths[-1], classes), injection_points)


class ConvBlock(nn.Module):
    """Convolution, batch norm, ReLU; in front of one of the first two, if asked, a 2×2 max pool."""

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, pool_before: PoolBefore | None) -> None:
        super().__init__()
        self.pool_before = pool_before
        self.conv = make_conv(channels_in, channels_out, kernel_size)
        self.norm = FastBatchNorm2d(channels_out, momentum=_BATCH_NORM_MOMENTUM)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """From [B, C_in, H, W] to [B, C_out, H, W], halved if pooled."""
        if self.pool_before == "conv":
            x_BCHW = max_pool_2x2(x_BCHW)
        h_BCHW = self.conv(x_BCHW)
        if self.pool_before == "norm":
            h_BCHW = max_pool_2x2(h_BCHW)
        return F.relu(self.norm(h_BCHW), inplace=True)


class PooledLinear(nn.Module):
    """Mean over the pixels, then a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits [B, K]."""
        return self.linear(global_avg_pool(x_BCHW))
