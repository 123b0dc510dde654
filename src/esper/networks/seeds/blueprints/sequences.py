"""Blueprints that mix the positions of a sequence: [B, T, C] or [B, C, L].

Like all built-in seeds, each is residual, s = x + Δ(x), and the last layer of Δ is initialised to zero. In a causal
host, convolutions are padded on the left only, and attention is masked. With a mask, bool [B, T], padded positions are
left out; a seed receives zeros there.

Shapes: B samples, C channels, T or L positions, H attention heads.
"""

# PyTorch does not declare all types of the constructor of nn.Conv1d.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.seeds.blueprints.registry import blueprint
from esper.networks.seeds.layers import initialise_, make_group_norm, starts_at_zero
from esper.networks.seeds.masks import attention_mask, group_norm, hide_padding

KERNEL_SIZE = 3
"""Number of positions of every convolution."""
HEAD_CHANNELS = 16
"""Approximate number of channels of an attention head."""


@blueprint("self_attention", "BTC", causal="argument", initialise=initialise_)
class SelfAttentionSeed(nn.Module):
    """Layer norm, then multi-head self-attention (Vaswani et al., 2017).

    With gcd(C, max(1, C/16)) heads: 2C + 3C² + C² + C parameters.
    """

    def __init__(self, channels: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = math.gcd(channels, max(1, channels // HEAD_CHANNELS))
        self.causal = causal
        self.norm = nn.LayerNorm(channels)
        self.project_in = nn.Linear(channels, 3 * channels, bias=False)
        self.project_out = starts_at_zero(nn.Linear(channels, channels))

    def forward(self, x_BTC: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, T, C] to the same shape."""
        batch, length, channels = x_BTC.shape
        projected = self.project_in(self.norm(x_BTC)).view(batch, length, 3, self.heads, -1)
        query_BHTD, key_BHTD, value_BHTD = projected.permute(2, 0, 3, 1, 4)
        keys = attention_mask(mask, length, causal=self.causal)
        is_causal = self.causal and keys is None
        mixed_BHTD = F.scaled_dot_product_attention(query_BHTD, key_BHTD, value_BHTD, keys, is_causal=is_causal)
        return x_BTC + self.project_out(mixed_BHTD.transpose(1, 2).reshape(batch, length, channels))


@blueprint("depthwise", "BTC", causal="argument", initialise=initialise_)
class TokenDepthwiseSeed(nn.Module):
    """Layer norm, a depthwise convolution over three positions, then a linear map: 2C + 3C + C² + C parameters."""

    def __init__(self, channels: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm = nn.LayerNorm(channels)
        self.spatial = nn.Conv1d(channels, channels, KERNEL_SIZE, groups=channels, bias=False)
        self.mix = starts_at_zero(nn.Linear(channels, channels))

    def forward(self, x_BTC: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, T, C] to the same shape."""
        h_BCT = self.spatial(_pad(self.norm(x_BTC).transpose(1, 2), mask, causal=self.causal))
        return x_BTC + self.mix(F.silu(h_BCT.transpose(1, 2)))


@blueprint("conv_light", "BTC", causal="argument", initialise=initialise_)
class TokenConvSeed(nn.Module):
    """Layer norm, then a convolution over three positions, SiLU and a scale per channel: 2C + 3C² + C parameters."""

    def __init__(self, channels: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm = nn.LayerNorm(channels)
        self.conv = starts_at_zero(nn.Conv1d(channels, channels, KERNEL_SIZE))

    def forward(self, x_BTC: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, T, C] to the same shape."""
        h_BCT = self.conv(_pad(self.norm(x_BTC).transpose(1, 2), mask, causal=self.causal))
        return x_BTC + F.silu(h_BCT.transpose(1, 2))


@blueprint("depthwise", "BCL", initialise=initialise_)
class SequenceDepthwiseSeed(nn.Module):
    """A depthwise convolution over three positions, then one over a single position: 3C + C² + 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spatial = nn.Conv1d(channels, channels, KERNEL_SIZE, padding="same", groups=channels, bias=False)
        self.mix = nn.Conv1d(channels, channels, 1, bias=False)
        self.norm = starts_at_zero(make_group_norm(channels))

    def forward(self, x_BCL: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, L] to the same shape."""
        return x_BCL + F.silu(group_norm(self.norm, self.mix(self.spatial(x_BCL)), mask))


@blueprint("conv_light", "BCL", initialise=initialise_)
class SequenceConvLightSeed(nn.Module):
    """A convolution over three positions: 3C² + 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, KERNEL_SIZE, padding="same", bias=False)
        self.norm = starts_at_zero(make_group_norm(channels))

    def forward(self, x_BCL: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, L] to the same shape."""
        return x_BCL + F.silu(group_norm(self.norm, self.conv(x_BCL), mask))


@blueprint("conv_heavy", "BCL", initialise=initialise_)
class SequenceConvHeavySeed(nn.Module):
    """Two convolutions over three positions: 6C² + 4C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, channels, KERNEL_SIZE, padding="same", bias=False)
        self.first_norm = make_group_norm(channels)
        self.second = nn.Conv1d(channels, channels, KERNEL_SIZE, padding="same", bias=False)
        self.norm = starts_at_zero(make_group_norm(channels))

    def forward(self, x_BCL: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, L] to the same shape."""
        inner_BCL = F.relu(group_norm(self.first_norm, self.first(x_BCL), mask))
        return x_BCL + F.silu(group_norm(self.norm, self.second(inner_BCL), mask))


def _pad(x_BCT: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Pad the positions for a convolution of `KERNEL_SIZE`: on the left only, or on both sides.

    Padded positions become zeros too.
    """
    total = KERNEL_SIZE - 1
    return F.pad(hide_padding(x_BCT, mask, 1), (total, 0) if causal else (total // 2, total // 2))
