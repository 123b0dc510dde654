"""Running normalisers of observations and returns.

Shapes: F features, N rows, S slots, B blueprints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.policy.observation import BASE_FEATURES, BLUEPRINT_FEATURES, SLOT_FEATURES, ObservationShape


class RunningMeanStd(nn.Module):
    """Exponential moving average of mean and variance, with a correction for the first batches.

    The n-th batch has the weight max(1 − momentum, 1/n), so that the first batches are averaged evenly and the initial
    values have no weight.

    Args:
        features: Size F of the last dimension; 1 for scalars.
        momentum: Weight of the previous average.
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
        """Standard deviation [F]; 1 for a feature that has never varied."""
        return torch.where(self._varies, self.var, torch.ones_like(self.var)).sqrt()

    @property
    def _varies(self) -> Tensor:
        return self.var > 1e-8

    def update(self, batch_F: Tensor) -> None:
        """Update mean and variance with a batch [..., F]."""
        rows = batch_F.reshape(-1, batch_F.shape[-1])
        self.batches += 1
        weight = max(1.0 - self.momentum, 1.0 / int(self.batches))
        mean, var = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
        # Variance of the mixture of previous data and batch, not the mean of their variances.
        self.var.copy_(
            (1 - weight) * (self.var if self.batches > 1 else var)
            + weight * var
            + weight * (1 - weight) * (mean - self.mean).square()
        )
        self.mean.lerp_(mean, weight)

    def forget(self) -> None:
        """Replace the statistics by those of the next batch."""
        self.batches.zero_()

    def normalise(self, values_F: Tensor, limit: float = 10.0) -> Tensor:
        """Return (x − mean) / std, clamped to ±limit, in the shape of the input.

        A feature that has never varied becomes 0, whatever its value: nothing was learned about it.
        """
        return ((values_F - self.mean) / self.std * self._varies).clamp(-limit, limit)

    def denormalise(self, values_F: Tensor) -> Tensor:
        """Return x · std + mean, the inverse of `normalise` without the clamp, in the shape of the input."""
        return values_F * self.std + self.mean


class ObservationNormaliser(nn.Module):
    """Normalises the parts of observations. All slots share their statistics, and so do all blueprints.

    The first feature of a slot and of a blueprint tells whether it is there. It stays as it is, and the rest of one
    that is not there stays 0.

    Args:
        shape: Numbers of slots and blueprints. No statistic depends on them.
    """

    def __init__(self, shape: ObservationShape) -> None:
        super().__init__()
        self._shape = shape
        self.base = RunningMeanStd(BASE_FEATURES)
        self.slots = RunningMeanStd(SLOT_FEATURES - 1)
        self.blueprints = RunningMeanStd(BLUEPRINT_FEATURES - 1)

    def update(self, obs_NF: Tensor) -> None:
        """Update the statistics with observations that are not normalised."""
        base_NF, slot_NSG, blueprint_NSBK = self._shape.split(obs_NF)
        self.base.update(base_NF)
        self.slots.update(slot_NSG[slot_NSG[..., 0] > 0][:, 1:])
        self.blueprints.update(blueprint_NSBK[blueprint_NSBK[..., 0] > 0][:, 1:])

    def normalise(self, obs_F: Tensor) -> Tensor:
        """Return normalised observations [..., F]."""
        base_F, slot_SG, blueprint_SBK = self._shape.split(obs_F)
        parts = (
            self.base.normalise(base_F),
            _normalise_present(self.slots, slot_SG).flatten(-2),
            _normalise_present(self.blueprints, blueprint_SBK).flatten(-3),
        )
        return torch.cat(parts, dim=-1)


def _normalise_present(statistics: RunningMeanStd, values_F: Tensor) -> Tensor:
    present = values_F[..., :1]
    return torch.cat((present, statistics.normalise(values_F[..., 1:]) * present), dim=-1)
