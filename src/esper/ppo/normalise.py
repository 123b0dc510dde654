"""Running mean and variance, for observations and for returns. Frozen within a round; moved after its update.

Shapes: F features, … any leading dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningMeanStd(nn.Module):
    """Exponential moving average of mean and variance, corrected for its start.

    The weight of the newest batch is max(1 − momentum, 1/n), so that the first batches are averaged evenly instead of
    being drowned by the arbitrary start.

    Args:
        features: size of the last dimension; 1 for scalars.
        momentum: weight of the past.
    """

    def __init__(self, features: int, momentum: float = 0.99) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.mean: Tensor
        self.var: Tensor
        self.batches: Tensor

    @property
    def std(self) -> Tensor:
        """Standard deviation, [F]; 1 for a feature that has never varied."""
        return torch.where(self.var > 1e-8, self.var, torch.ones_like(self.var)).sqrt()

    def update(self, batch_F: Tensor) -> None:
        """Take in a batch, [..., F]."""
        rows = batch_F.reshape(-1, batch_F.shape[-1])
        self.batches += 1
        weight = max(1.0 - self.momentum, 1.0 / int(self.batches))
        mean, var = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
        # Variance of the mixture of past and batch, not the mean of the variances.
        self.var.copy_(
            (1 - weight) * (self.var if self.batches > 1 else var)
            + weight * var
            + weight * (1 - weight) * (mean - self.mean).square()
        )
        self.mean.lerp_(mean, weight)

    def normalise(self, values_F: Tensor, limit: float = 10.0) -> Tensor:
        """(x − mean) / std, clamped to ±limit; same shape."""
        return ((values_F - self.mean) / self.std).clamp(-limit, limit)

    def restore_scale(self, values_F: Tensor) -> Tensor:
        """The inverse of `normalise`, without the clamp; same shape."""
        return values_F * self.std + self.mean
