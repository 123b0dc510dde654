"""Blueprints for features [B, C] and tokens [B, T, C] that treat each position by itself, and so are causal.

Like all built-in seeds, each is residual, s = x + Δ(x), and the last layer of Δ is initialised to zero.

Shapes: B samples, T positions, C channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.seeds.blueprints.registry import blueprint
from esper.networks.seeds.layers import initialise_, starts_at_zero


@blueprint("norm", "BC", "BTC", causal="always", initialise=initialise_)
class LayerNormSeed(nn.Module):
    """Adds the features, normalised over the channels of each position (Ba et al., 2016), scaled: 2C parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = starts_at_zero(nn.LayerNorm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to the same shape."""
        return x + self.norm(x)


@blueprint("linear_lowrank", "BC", "BTC", causal="always", initialise=initialise_)
class LowRankSeed(nn.Module):
    """A linear map of rank r without a bias, up(down(x)) (LoRA; Hu et al., 2022).

    With r = max(1, C/8): 2Cr parameters.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        rank = max(1, channels // 8)
        self.down = nn.Linear(channels, rank, bias=False)
        self.up = starts_at_zero(nn.Linear(rank, channels, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to the same shape."""
        return x + self.up(self.down(x))


@blueprint("mlp", "BC", "BTC", causal="always", initialise=initialise_)
class MlpSeed(nn.Module):
    """Layer norm, then two linear layers with GELU between them, as in a transformer block.

    With 2C hidden units: 2C + 2C² + 2C + 2C² + C parameters.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.hidden = nn.Linear(channels, 2 * channels)
        self.out = starts_at_zero(nn.Linear(2 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to the same shape."""
        return x + self.out(F.gelu(self.hidden(self.norm(x))))
