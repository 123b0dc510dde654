"""Running normalisers of observations and returns.

Shapes: F features, N rows, S slots, B blueprints.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.training.policy.observation import BASE_FEATURES, BLUEPRINT_FEATURES, SLOT_FEATURES, ObservationShape


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
        return torch.where(self.var > 1e-8, self.var, 1.0).sqrt()

    @property
    def divisor(self) -> Tensor:
        """Divisor [F] of `normalise`: the standard deviation; infinite for a feature that has never varied."""
        return torch.where(self.var > 1e-8, self.var, torch.inf).sqrt()

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

    def denormalise(self, values_F: Tensor) -> Tensor:
        """Return x · std + mean, the inverse of `normalise` without the clamp, in the shape of the input."""
        return values_F * self.std + self.mean


def normalise(values_F: Tensor, mean_F: Tensor, divisor_F: Tensor, limit: float = 10.0) -> Tensor:
    """Return (x − mean) / divisor, clamped to ±limit, in the shape of the input.

    A feature that has never varied becomes 0, whatever its value: nothing was learned about it.

    Args:
        divisor_F: `RunningMeanStd.divisor`.
    """
    return ((values_F - mean_F) / divisor_F).clamp_(-limit, limit)


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
        self.register_buffer("mean_F", torch.zeros(shape.size), persistent=False)
        self.register_buffer("divisor_F", torch.ones(shape.size), persistent=False)
        self.mean_F: Tensor
        self.divisor_F: Tensor
        # PyTorch does not annotate this hook.
        cast("Any", self).register_load_state_dict_post_hook(ObservationNormaliser._spread)
        self._spread()

    def update(self, obs_NF: Tensor) -> None:
        """Update the statistics with observations that are not normalised."""
        base_NF, slot_NSG, blueprint_NSBK = self._shape.split(obs_NF)
        self.base.update(base_NF)
        self.slots.update(slot_NSG[slot_NSG[..., 0] > 0][:, 1:])
        self.blueprints.update(blueprint_NSBK[blueprint_NSBK[..., 0] > 0][:, 1:])
        self._spread()

    def _spread(self, *_: object) -> None:
        """Write the statistics of every feature; a mean of 0 and a divisor of 1 leave the first feature as it is."""
        for flat_F, neutral, name in ((self.mean_F, 0.0, "mean"), (self.divisor_F, 1.0, "divisor")):
            base_F, slot_SG, blueprint_SBK = self._shape.split(flat_F)
            base_F.copy_(getattr(self.base, name))
            for part, statistics in ((slot_SG, self.slots), (blueprint_SBK, self.blueprints)):
                part[..., 0] = neutral
                part[..., 1:] = getattr(statistics, name)

    def normalise(self, obs_F: Tensor) -> Tensor:
        """Return normalised observations [..., F]."""
        normal_F = normalise(obs_F, self.mean_F, self.divisor_F)
        for part in self._shape.split(normal_F)[1:]:
            part[..., 1:] *= part[..., :1]
        return normal_F
