"""The layers that hosts and seeds share, and their initial values."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.growth.cpu_convolution import Convolution

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class PointwiseConv(nn.Conv2d):
    """A 1×1 convolution, computed as a matrix product over the channels.

    In channels_last that needs no copy, and on a CPU it is about three times as fast for pictures this small.
    """

    def __init__(self, channels_in: int, channels_out: int, bias: bool = False) -> None:
        super().__init__(channels_in, channels_out, 1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """From [B, C_in, H, W] to [B, C_out, H, W]."""
        return F.linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


MAX_SLOW_CHANNELS = 4
"""Most channels of which a batch norm in channels_last goes number by number on a CPU."""


class FastBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that does not count its batches: only a cumulative average would need that.

    Of few channels in float32 it is trained in the contiguous layout, which takes two thirds of the time with both
    copies.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Preserves shape and layout."""
        elsewhere = self.training and self.num_features <= MAX_SLOW_CHANNELS and input.device.type == "cpu"
        if not (elsewhere and input.dtype is torch.float32):
            return self._normalised(input)
        return torch.empty_like(input).copy_(self._normalised(input.contiguous()))

    def _normalised(self, input: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var)
        assert self.momentum is not None
        return F.batch_norm(input, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)


def make_conv(channels_in: int, channels_out: int, kernel_size: int, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the picture's size; `kernel_size` is odd."""
    if kernel_size == 1 and groups == 1:
        return PointwiseConv(channels_in, channels_out)
    return Convolution(channels_in, channels_out, kernel_size, groups)


def global_avg_pool(x_BCHW: Tensor) -> Tensor:
    """Mean over the pixels [B, C].

    As `x_BCHW.mean((2, 3))`, to the bit, but its gradient is in channels_last as the activations are: in another layout
    the backward pass of the layer before took 15 times as long on a CPU.
    """
    return x_BCHW.permute(0, 2, 3, 1).mean((1, 2))


def max_pool_2x2(x_BCHW: Tensor) -> Tensor:
    """A 2×2 max pool: [B, C, H/2, W/2], rounded down.

    In channels_last PyTorch's takes two to six times as long on a CPU as maxima of rows and columns, whose gradient,
    however, takes much longer than its own.
    """
    if torch.is_grad_enabled() or x_BCHW.device.type != "cpu":
        return F.max_pool2d(x_BCHW, 2)
    height, width = (size // 2 * 2 for size in x_BCHW.shape[2:])
    rows = torch.maximum(x_BCHW[:, :, 0:height:2], x_BCHW[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


class Float32GroupNorm(nn.GroupNorm):
    """GroupNorm that computes in float32 where 16 bits come in.

    With few channels PyTorch's CPU kernel for 16 bits goes number by number, and takes four times as long as this with
    both casts. On a GPU autocast does the same.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Preserves shape and dtype."""
        exact = input.float() if input.dtype.itemsize == 2 else input
        return super().forward(exact).to(input.dtype)


_FP32_VECTOR_LANES = 16
"""How many float32 numbers a vector register holds."""


def make_group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with about 16 channels to a group; one group where there are fewer."""
    kind = Float32GroupNorm if channels < _FP32_VECTOR_LANES else nn.GroupNorm
    return kind(math.gcd(channels, max(1, channels // 16)), channels)


_ZERO_START = "starts_at_zero"


def mark_zero_init(module: ModuleT) -> ModuleT:
    """Mark a layer whose weight and bias `initialise_` sets to zero, so that what follows it starts as nothing."""
    setattr(module, _ZERO_START, True)
    return module


@torch.no_grad()
def initialise_(module: nn.Module, generator: torch.Generator) -> None:
    """Set every parameter and buffer of `module` anew, in place.

    PyTorch's layers draw their initial values from the global random stream, so that the values depend on the order in
    which modules are built, and on the thread. `initialise_` draws from `generator` only, in the order of
    `module.modules()`, on the CPU, so that a module starts from the same values on every device.

    Convolutions and linear layers: Kaiming-uniform for ReLU, biases zero. Norms: ones and zeros, fresh statistics.
    Layers marked by `mark_zero_init`: zeros.

    Raises:
        TypeError: a layer owns parameters or buffers and is of none of these kinds.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            _kaiming_uniform(layer.weight, generator)
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
            if isinstance(layer, nn.BatchNorm2d):
                layer.reset_running_stats()
        elif [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            raise TypeError(f"no initialisation is defined for layer type {type(layer).__name__}; add one in layers.py")
        if getattr(layer, _ZERO_START, False):
            for parameter in layer.parameters(recurse=False):
                parameter.zero_()


def _kaiming_uniform(weight: Tensor, generator: torch.Generator) -> None:
    fan_in = weight[0].numel()
    bound = math.sqrt(6.0 / fan_in)
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator), non_blocking=True)
