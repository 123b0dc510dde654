"""A convolution in the fastest way for its input, where that is not PyTorch's: on CPUs, and for few channels.

With few channels a convolution library is busy filling its vectors up (3×3 kernels):

- Small pictures are one matrix product over whole rows. In channels_last a row, its pixels with their channels, is
  about as long as a vector. So a row of the output is the three rows of the input around it, times the kernel written
  out as a band of a matrix: up to three times the multiplications in two thirds of the time (`docs/experiments.md`,
  "a convolution of rows").
- Large pictures in colour are convolved two pixels at a time: in channels_last two neighbours of the output are one
  pixel of twice the channels, and their kernels one kernel of four columns (the same, "two pixels at a time").

In float16 a CPU takes a hundred times as long for the gradient of a kernel as in float32: there the numbers are
float16's, and what is computed from them is computed in float32, in which a GPU adds them up as well.

Shapes: B samples, C channels in, O channels out, H × W pixels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_ROW_ELEMENTS = 32
"""Most numbers in a row, W times C or O, for which a matrix product is the faster way."""
MAX_IN_CHANNELS = 3
"""Most channels of the input for which two pixels at a time are faster; the gradient of such an input is not asked for,
and would take longer."""
MAX_OUT_CHANNELS = 8
"""The same of the output."""
MIN_WIDTH = 32
"""Least pixels in a row for that."""


class Convolution(nn.Conv2d):
    """A convolution without bias that keeps the picture's size.

    Args:
        channels_in: C.
        channels_out: O.
        kernel_size: odd.
        groups: as PyTorch's.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, groups: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)
        self._plain = kernel_size == 3 and groups == 1
        """Whether there are other ways for it than PyTorch's."""

    def forward(self, input: Tensor) -> Tensor:
        """From [B, C, H, W] to [B, O, H, W]."""
        if input.device.type != "cpu":
            return super().forward(input)
        dtype = _compute_dtype(input)
        if dtype is not torch.float16:
            return self._forward_cpu(input, self.weight, dtype)
        with torch.autocast("cpu", enabled=False):
            return self._forward_cpu(input.half().float(), self.weight.half().float(), torch.float32).half()

    def _forward_cpu(self, x_BCHW: Tensor, kernel: Tensor, dtype: torch.dtype) -> Tensor:
        """`dtype` is that of the computation."""
        width, channels, out = x_BCHW.shape[-1], self.in_channels, self.out_channels
        short = width * max(channels, out) <= MAX_ROW_ELEMENTS
        if dtype is torch.float32 and short and self._plain:
            return _RowConvolution.apply(x_BCHW, kernel)
        if self._is_wide_rgb(x_BCHW) and width % 2 == 0:
            return _conv_two_pixels(x_BCHW, kernel)
        return F.conv2d(x_BCHW, kernel, padding=self.padding, groups=self.groups)

    def _is_wide_rgb(self, input: Tensor) -> bool:
        few = self.in_channels <= MAX_IN_CHANNELS and self.out_channels <= MAX_OUT_CHANNELS
        return self._plain and few and input.shape[-1] >= MIN_WIDTH


def _compute_dtype(input: Tensor) -> torch.dtype:
    """What a convolution of it is computed in on a CPU."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype


def _conv_two_pixels(x_BCHW: Tensor, kernel_OC33: Tensor) -> Tensor:
    """[B, O, H, W] in channels_last, of an even W."""
    batch, _, height, width = x_BCHW.shape
    kernel_PC34 = torch.cat((F.pad(kernel_OC33, (0, 1)), F.pad(kernel_OC33, (1, 0))))  # P = 2 O
    h_BPHW = F.conv2d(x_BCHW, kernel_PC34, stride=(1, 2), padding=1)  # of half the width
    return h_BPHW.permute(0, 2, 3, 1).reshape(batch, height, width, -1).permute(0, 3, 1, 2)


class _RowConvolution(torch.autograd.Function):
    """Input [B, C, H, W] and kernel [O, C, 3, 3] → [B, O, H, W] in channels_last."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, kernel_OC33: Tensor) -> Tensor:
        (batch, channels, height, width), out = x_BCHW.shape, len(kernel_OC33)
        flat = _flatten_kernel(kernel_OC33)
        threes = _stack_row_triples(x_BCHW)
        ctx.save_for_backward(threes, flat)
        ctx.shape = x_BCHW.shape
        band = flat.index_select(0, _band_indices(width, channels, out)[0]).view(threes.shape[1], -1)
        return (threes @ band).view(batch, height, width, out).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        (gradient_BOHW,) = gradients
        threes, flat = ctx.saved_tensors
        (batch, channels, height, width), out = ctx.shape, gradient_BOHW.shape[1]
        there, back = _band_indices(width, channels, out)
        gradient_x = None
        if ctx.needs_input_grad[0]:
            around = _stack_row_triples(gradient_BOHW)
            band = flat.index_select(0, back).view(around.shape[1], -1)
            gradient_x = (around @ band).view(batch, height, width, channels).permute(0, 3, 1, 2)
        of_band = threes.T @ gradient_BOHW.permute(0, 2, 3, 1).reshape(batch * height, width * out)
        of_kernel = torch.zeros_like(flat).index_add_(0, there, of_band.view(-1))[:-1]
        return gradient_x, of_kernel.view(out, 3, 3, channels).permute(0, 3, 1, 2)


def _stack_row_triples(x_BCHW: Tensor) -> Tensor:
    """Every row between its neighbours, zeros beyond the picture: [B · H, 3 · W · C]."""
    batch, channels, height, width = x_BCHW.shape
    row = width * channels
    padded = F.pad(x_BCHW.permute(0, 2, 3, 1).reshape(batch, height, row), (0, 0, 1, 1))
    overlapping = padded.as_strided((batch, height, 3 * row), ((height + 2) * row, row, 1))
    return overlapping.reshape(batch * height, 3 * row)


def _flatten_kernel(kernel_OC33: Tensor) -> Tensor:
    """[9 · C · O + 1]: behind the kernel a zero, which is what stands beside the band."""
    return F.pad(kernel_OC33.permute(0, 2, 3, 1).reshape(-1), (0, 1))


@lru_cache
def _band_indices(width: int, channels: int, out: int) -> tuple[Tensor, Tensor]:
    """Which entry of the flat kernel stands where in the band of a row, 9 · C · O for none.

    Returns:
        For the convolution, [3 · W · C · W · O]; for its transpose, which takes gradients back, [3 · W · O · W · C].
    """
    entry_O33C = torch.arange(9 * channels * out).view(out, 3, 3, channels)
    return _band_index(entry_O33C, width), _band_index(entry_O33C.flip(1, 2).transpose(0, 3), width)


def _band_index(entry_O33C: Tensor, width: int) -> Tensor:
    """For the pixels of a row of the output, from the three rows of the input around it: [3 · W · C · W · O]."""
    out, channels = len(entry_O33C), entry_O33C.shape[-1]
    there = torch.full((3, width, channels, width, out), entry_O33C.numel())
    for pixel in range(width):
        for column in range(max(pixel - 1, 0), min(pixel + 2, width)):
            there[:, column, :, pixel] = entry_O33C[:, :, column - pixel + 1].permute(1, 2, 0)
    return there.flatten()
