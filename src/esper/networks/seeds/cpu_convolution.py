"""A convolution that is faster than PyTorch's on CPUs, for few channels.

With few channels, PyTorch's convolutions leave most of a vector register empty. For 3×3 kernels there are two
alternatives:

- `_RowConvolution`, for small pictures: one matrix product over whole rows. In channels_last a row of W · C values is
  about as long as a vector. A row of the output is the product of three rows of the input and the kernel, arranged as a
  band matrix: up to three times the multiplications in two thirds of the time (docs/log/2026-11.md, "Convolution by
  rows").
- `_conv_two_pixels`, for wide pictures in colour: in channels_last, two neighbouring pixels of the output are one pixel
  with twice the channels, computed by one kernel of four columns (docs/log/2026-11.md, "Two pixels at a time").

The gradient of a kernel takes a hundred times as long in float16 as in float32 on CPUs. For float16, inputs and outputs
are therefore rounded to float16, and the computation runs in float32, in which GPUs accumulate as well.

Shapes: B samples, C channels in, O channels out, H × W pixels.
"""

# PyTorch does not declare all types of the constructor of nn.Conv2d.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_ROW_ELEMENTS = 32
"""Maximum length of a row, W · C and W · O, for which the matrix product is faster."""
MAX_IN_CHANNELS = 3
"""Maximum C for which two pixels at a time are faster.

Such an input is a picture, whose gradient is not needed; it would take longer.
"""
MAX_OUT_CHANNELS = 8
"""Maximum O for which two pixels at a time are faster."""
MIN_WIDTH = 32
"""Minimum W for which two pixels at a time are faster."""


class Convolution(nn.Conv2d):
    """A convolution without bias that keeps the picture's size.

    Args:
        kernel_size: Height and width of the kernel, odd.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, groups: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)
        self._is_dense_3x3 = kernel_size == 3 and groups == 1
        """True if the alternatives to PyTorch's convolution apply."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, O, H, W]."""
        if input.device.type != "cpu":
            return super().forward(input)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        if dtype is not torch.float16:
            return self._forward_cpu(input, self.weight, dtype)
        with torch.autocast("cpu", enabled=False):
            return self._forward_cpu(input.half().float(), self.weight.half().float(), torch.float32).half()

    def _forward_cpu(self, x_BCHW: Tensor, kernel: Tensor, dtype: torch.dtype) -> Tensor:
        """Convolve on a CPU; `dtype` is the type of the computation."""
        width, channels, out = x_BCHW.shape[-1], self.in_channels, self.out_channels
        short = width * max(channels, out) <= MAX_ROW_ELEMENTS
        if dtype is torch.float32 and short and self._is_dense_3x3:
            return _RowConvolution.apply(x_BCHW, kernel)
        few = channels <= MAX_IN_CHANNELS and out <= MAX_OUT_CHANNELS
        if few and self._is_dense_3x3 and width >= MIN_WIDTH and width % 2 == 0:
            return _conv_two_pixels(x_BCHW, kernel)
        return F.conv2d(x_BCHW, kernel, padding=self.padding, groups=self.groups)


def _conv_two_pixels(x_BCHW: Tensor, kernel_OC33: Tensor) -> Tensor:
    """Return the convolution [B, O, H, W] in channels_last; W must be even."""
    batch, _, height, width = x_BCHW.shape
    kernel_PC34 = torch.cat((F.pad(kernel_OC33, (0, 1)), F.pad(kernel_OC33, (1, 0))))  # P = 2 O
    h_BPHW = F.conv2d(x_BCHW, kernel_PC34, stride=(1, 2), padding=1)  # [B, 2 O, H, W / 2]
    return h_BPHW.permute(0, 2, 3, 1).reshape(batch, height, width, -1).permute(0, 3, 1, 2)


class _RowConvolution(torch.autograd.Function):
    """Convolution of [B, C, H, W] with a kernel [O, C, 3, 3] to [B, O, H, W] in channels_last."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, kernel_OC33: Tensor) -> Tensor:
        (batch, channels, height, width), out = x_BCHW.shape, len(kernel_OC33)
        # The last element is the value outside the band: [9 · C · O + 1].
        flat = F.pad(kernel_OC33.permute(0, 2, 3, 1).reshape(-1), (0, 1))
        triples = _stack_row_triples(x_BCHW)
        ctx.save_for_backward(triples, flat)
        ctx.shape = x_BCHW.shape
        band = flat.index_select(0, _band_indices(width, channels, out)[0]).view(triples.shape[1], -1)
        return (triples @ band).view(batch, height, width, out).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        (gradient_BOHW,) = gradients
        triples, flat = ctx.saved_tensors
        (batch, channels, height, width), out = ctx.shape, gradient_BOHW.shape[1]
        forward_index, transpose_index = _band_indices(width, channels, out)
        gradient_x = None
        if ctx.needs_input_grad[0]:
            gradient_triples = _stack_row_triples(gradient_BOHW)
            band = flat.index_select(0, transpose_index).view(gradient_triples.shape[1], -1)
            gradient_x = (gradient_triples @ band).view(batch, height, width, channels).permute(0, 3, 1, 2)
        band_gradient = triples.T @ gradient_BOHW.permute(0, 2, 3, 1).reshape(batch * height, width * out)
        kernel_gradient = torch.zeros_like(flat).index_add_(0, forward_index, band_gradient.view(-1))[:-1]
        return gradient_x, kernel_gradient.view(out, 3, 3, channels).permute(0, 3, 1, 2)


def _stack_row_triples(x_BCHW: Tensor) -> Tensor:
    """Concatenate each row with the rows above and below, zero-padded: [B · H, 3 · W · C]."""
    batch, channels, height, width = x_BCHW.shape
    row = width * channels
    padded = F.pad(x_BCHW.permute(0, 2, 3, 1).reshape(batch, height, row), (0, 0, 1, 1))
    overlapping = padded.as_strided((batch, height, 3 * row), ((height + 2) * row, row, 1))
    return overlapping.reshape(batch * height, 3 * row)


@lru_cache
def _band_indices(width: int, channels: int, out: int) -> tuple[Tensor, Tensor]:
    """Return the indices into the flat kernel that build the band matrix of a row; 9 · C · O outside the band.

    Returns:
        Indices for the convolution, [3 · W · C · W · O], and for its transpose, which maps gradients of the output to
        gradients of the input, [3 · W · O · W · C].
    """
    entry_O33C = torch.arange(9 * channels * out).view(out, 3, 3, channels)
    return _band_index(entry_O33C, width), _band_index(entry_O33C.flip(1, 2).transpose(0, 3), width)


def _band_index(entry_O33C: Tensor, width: int) -> Tensor:
    """Return the indices that map three rows of the input to one row of the output: [3 · W · C · W · O]."""
    out, channels = len(entry_O33C), entry_O33C.shape[-1]
    index = torch.full((3, width, channels, width, out), entry_O33C.numel())
    for pixel in range(width):
        for column in range(max(pixel - 1, 0), min(pixel + 2, width)):
            index[:, column, :, pixel] = entry_O33C[:, :, column - pixel + 1].permute(1, 2, 0)
    return index.flatten()
