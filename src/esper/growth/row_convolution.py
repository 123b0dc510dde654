"""A 3×3 convolution of small pictures as one matrix product over whole rows, for CPUs.

With few channels a convolution library is busy filling its vectors up. In channels_last a row of a small picture, its
pixels with their channels, is about as long as they are. So a row of the output is the three rows of the input around
it, times the kernel written out as a band of a matrix: up to three times the multiplications in two thirds of the time
(`docs/experiments.md`, "a convolution of rows").

Shapes: B samples, C channels in, O channels out, H × W pixels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LONGEST_ROW = 32
"""Most numbers in a row, W times C or O, for which this is the faster way."""


class SmallConv3x3(nn.Conv2d):
    """A 3×3 convolution without bias that keeps the picture's size: over rows where that is faster, else PyTorch's."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 3, padding=1, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """From [B, C, H, W] to [B, O, H, W]."""
        short = input.shape[-1] * max(self.in_channels, self.out_channels) <= LONGEST_ROW
        exact = input.dtype is torch.float32 and not torch.is_autocast_enabled(input.device.type)
        if short and exact and input.device.type == "cpu":
            return _RowConvolution.apply(input, self.weight)
        return super().forward(input)


class _RowConvolution(torch.autograd.Function):
    """Input [B, C, H, W] and kernel [O, C, 3, 3] → [B, O, H, W] in channels_last."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, kernel_OC33: Tensor) -> Tensor:
        (batch, channels, height, width), out = x_BCHW.shape, len(kernel_OC33)
        # The zero behind the kernel is what stands beside the band.
        flat = F.pad(kernel_OC33.permute(0, 2, 3, 1).reshape(-1), (0, 1))
        threes = _threes(x_BCHW)
        ctx.save_for_backward(threes, flat)
        ctx.shape = x_BCHW.shape
        band = flat.index_select(0, _bands(width, channels, out)[0]).view(threes.shape[1], -1)
        return (threes @ band).view(batch, height, width, out).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        (gradient_BOHW,) = gradients
        threes, flat = ctx.saved_tensors
        (batch, channels, height, width), out = ctx.shape, gradient_BOHW.shape[1]
        there, back = _bands(width, channels, out)
        gradient_x = None
        if ctx.needs_input_grad[0]:
            around = _threes(gradient_BOHW)
            band = flat.index_select(0, back).view(around.shape[1], -1)
            gradient_x = (around @ band).view(batch, height, width, channels).permute(0, 3, 1, 2)
        of_band = threes.T @ gradient_BOHW.permute(0, 2, 3, 1).reshape(batch * height, width * out)
        of_kernel = torch.zeros_like(flat).index_add_(0, there, of_band.view(-1))[:-1]
        return gradient_x, of_kernel.view(out, 3, 3, channels).permute(0, 3, 1, 2)


def _threes(x_BCHW: Tensor) -> Tensor:
    """Every row between its neighbours, zeros beyond the picture: [B · H, 3 · W · C]."""
    batch, channels, height, width = x_BCHW.shape
    row = width * channels
    padded = F.pad(x_BCHW.permute(0, 2, 3, 1).reshape(batch, height, row), (0, 0, 1, 1))
    overlapping = padded.as_strided((batch, height, 3 * row), ((height + 2) * row, row, 1))
    return overlapping.reshape(batch * height, 3 * row)


@lru_cache
def _bands(width: int, channels: int, out: int) -> tuple[Tensor, Tensor]:
    """Which entry of the flat kernel stands where in the band, 9 · C · O for none.

    Returns:
        For the convolution, [3 · W · C · W · O]; for its transpose, which takes gradients back, [3 · W · O · W · C].
    """
    none = 9 * channels * out
    entry_O33C = torch.arange(none).view(out, 3, 3, channels)
    there_3WCWO = torch.full((3, width, channels, width, out), none)
    back_3WOWC = torch.full((3, width, out, width, channels), none)
    for here in range(width):
        for beside in range(max(here - 1, 0), min(here + 2, width)):
            column = beside - here + 1
            there_3WCWO[:, beside, :, here] = entry_O33C[:, :, column].permute(1, 2, 0)
            back_3WOWC[:, beside, :, here] = entry_O33C[:, :, 2 - column].flip(1).transpose(0, 1)
    return there_3WCWO.flatten(), back_3WOWC.flatten()
