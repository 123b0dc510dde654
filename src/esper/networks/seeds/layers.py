"""Layers that hosts and seeds share, and their initialisation."""

# PyTorch does not declare all types of the constructor of nn.Conv2d.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.seeds.cpu_convolution import Convolution

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class PointwiseConv(nn.Conv2d):
    """A 1×1 convolution, computed as a matrix product over the channels.

    In channels_last the product needs no copy. On CPUs it takes a third of the time of `nn.Conv2d` for small pictures.
    """

    def __init__(self, channels_in: int, channels_out: int, bias: bool = False) -> None:
        super().__init__(channels_in, channels_out, 1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Map [B, C_in, H, W] to [B, C_out, H, W]."""
        return F.linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


MAX_SLOW_CHANNELS = 4
"""Maximum number of channels for which PyTorch's batch norm in channels_last is not vectorised on CPUs."""


class FastBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that does not count batches (only a cumulative average needs the count).

    With at most `MAX_SLOW_CHANNELS` channels in float32 on CPUs, it trains in the contiguous layout, which takes two
    thirds of the time, both copies included (docs/log/2026-11.md, "Batch norm of four channels").
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; preserves shape and layout."""
        elsewhere = self.training and self.num_features <= MAX_SLOW_CHANNELS and input.device.type == "cpu"
        if not (elsewhere and input.dtype is torch.float32):
            return self._normalised(input)
        return torch.empty_like(input).copy_(self._normalised(input.contiguous()))

    def _normalised(self, input: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var)
        assert self.momentum is not None
        return F.batch_norm(input, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)


def make_conv(channels_in: int, channels_out: int, kernel_size: int, groups: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size of the picture; `kernel_size` must be odd."""
    if kernel_size == 1 and groups == 1:
        return PointwiseConv(channels_in, channels_out)
    return Convolution(channels_in, channels_out, kernel_size, groups)


def global_avg_pool(x_BCHW: Tensor) -> Tensor:
    """Return the mean over the pixels, [B, C].

    Equal to `x_BCHW.mean((2, 3))` bit for bit, but its gradient is in channels_last like the activations. With a
    gradient in another layout, the backward pass of the previous layer took 15 times as long on a CPU.
    """
    return x_BCHW.permute(0, 2, 3, 1).mean((1, 2))


def max_pool_2x2(x_BCHW: Tensor) -> Tensor:
    """Return the 2×2 max pool, [B, C, H/2, W/2], sizes rounded down.

    Without gradients on CPUs, maxima of rows and columns replace PyTorch's pool, which takes two to six times as long
    in channels_last. With gradients, the backward pass of the maxima takes longer than that of PyTorch's pool.
    """
    if torch.is_grad_enabled() or x_BCHW.device.type != "cpu":
        return F.max_pool2d(x_BCHW, 2)
    height, width = (size // 2 * 2 for size in x_BCHW.shape[2:])
    rows = torch.maximum(x_BCHW[:, :, 0:height:2], x_BCHW[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


class Float32GroupNorm(nn.GroupNorm):
    """GroupNorm that computes 16-bit inputs in float32.

    With few channels, PyTorch's 16-bit CPU kernel is not vectorised and takes four times as long as this layer with
    both casts. On GPUs, autocast computes GroupNorm in float32 anyway.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; preserves shape and dtype."""
        exact = input.float() if input.dtype.itemsize == 2 else input
        return super().forward(exact).to(input.dtype)


_FP32_VECTOR_LANES = 16
"""Number of float32 values in a vector register (AVX-512)."""


def make_group_norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm with about 16 channels in each group, or one group if there are fewer channels."""
    kind = Float32GroupNorm if channels < _FP32_VECTOR_LANES else nn.GroupNorm
    return kind(math.gcd(channels, max(1, channels // 16)), channels)


_ZERO_START = "starts_at_zero"


def starts_at_zero(module: ModuleT) -> ModuleT:
    """Set the weight and bias of a layer to zero, and return it: the last layer of a seed that begins as the identity.

    The layer is marked too, so that `initialise_` keeps the zeros where it draws the other layers of a built-in seed.

    Args:
        module: A layer, such as `nn.Linear` or `nn.Conv2d`. Its own parameters are changed, not those of submodules.
    """
    setattr(module, _ZERO_START, True)
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            parameter.zero_()
    return module


@torch.no_grad()
def initialise_(module: nn.Module, generator: torch.Generator) -> None:
    """Initialise every parameter and buffer of `module` in place, from `generator` only.

    PyTorch's layers draw their initial values from the global random stream, so that the values depend on the order in
    which modules are built, and on the thread. `initialise_` draws in the order of `module.modules()`, on the CPU, so
    that a module has the same initial values on every device.

    Convolutions and linear layers: Kaiming-uniform for ReLU, biases zero. Norms: ones and zeros, fresh statistics.
    Layers marked by `starts_at_zero`: zeros.

    Raises:
        TypeError: A layer of another type has parameters or buffers.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            _kaiming_uniform(layer.weight, generator)
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
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
