"""One round of experience, in buffers that are allocated once.

Shapes: E envs, T steps, F features, S slots, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper.domain import HEADS
from esper.policy.masks import ActionMasks
from esper.ranks import SINGLE_RANK, RankGroup


class SequenceBatch(NamedTuple):
    """Whole episodes of some envs: what a minibatch of recurrent PPO is made of."""

    obs_ETF: Tensor
    """Normalised."""
    blueprint_ETS: Tensor
    masks: ActionMasks
    actions_ETH: Tensor
    log_prob_ETH: Tensor
    """By the policy that acted."""
    advantage_ET: Tensor
    """Normalised over the round."""
    return_ET: Tensor
    """Normalised by the value scale."""
    valid_ET: Tensor
    """Bool: the step is part of the experience; false while an env sits out."""


class RolloutBuffer:
    """Preallocated [E, T] buffers of a round, on the policy's device but for what comes back from the envs."""

    def __init__(self, envs: int, steps: int, features: int, slots: int, device: torch.device | None = None) -> None:
        self.obs_ETF = torch.zeros(envs, steps, features, device=device)
        self.blueprint_ETS = torch.zeros(envs, steps, slots, dtype=torch.int64, device=device)
        self.masks = ActionMasks(*(mask.to(device) for mask in ActionMasks.empty(envs, steps, slots=slots)))
        self.actions_ETH = torch.zeros(envs, steps, len(HEADS), dtype=torch.int64, device=device)
        self.log_prob_ETH = torch.zeros(envs, steps, len(HEADS), device=device)
        self.value_ET = torch.zeros(envs, steps, device=device)
        """In units of return."""
        # What an env came to is noted on the host, and moved once in a round, when the policy learns from it.
        self.reward_ET = torch.zeros(envs, steps)
        self.terminal_ET = torch.zeros(envs, steps, dtype=torch.bool)
        self.counts_ET = torch.zeros(envs, steps, dtype=torch.bool)

    def clear(self) -> None:
        """Start a round: nothing counts yet."""
        self.counts_ET.zero_()
        self.terminal_ET.zero_()
        self.reward_ET.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Every buffer by name: what a checkpoint keeps."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return named | {f"masks.{name}": value for name, value in self.masks._asdict().items()}

    def minibatches(
        self,
        obs_ETF: Tensor,
        advantage_ET: Tensor,
        return_ET: Tensor,
        count: int,
        generator: torch.Generator,
        ranks: RankGroup = SINGLE_RANK,
    ) -> Iterator[SequenceBatch]:
        """Whole env sequences in a random order, dealt to `count` minibatches whose sizes differ by one at most.

        There are fewer where there are fewer envs.

        They are drawn from the envs of all ranks, the same on each; a rank has its own envs of them, or none.
        """
        envs = int(ranks.all_reduce_(torch.tensor(len(self.obs_ETF))))
        counts_ET = self.counts_ET.to(obs_ETF.device)
        for drawn in torch.randperm(envs, generator=generator).tensor_split(min(count, envs)):
            chosen = ranks.local_indices(drawn, envs).to(obs_ETF.device)
            yield SequenceBatch(
                obs_ETF[chosen],
                self.blueprint_ETS[chosen],
                ActionMasks(*(mask[chosen] for mask in self.masks)),
                self.actions_ETH[chosen],
                self.log_prob_ETH[chosen],
                advantage_ET[chosen],
                return_ET[chosen],
                counts_ET[chosen],
            )


class PolicyInputs:
    """Observations and masks of one step: views of a single buffer of bytes, so that one copy moves them all.

    Args:
        envs: number of envs.
        features: of an observation.
        slots: of an env.
        device: where the buffer is.
        pinned: whether a GPU may copy from it while the host goes on.
    """

    def __init__(self, envs: int, features: int, slots: int, device: torch.device, *, pinned: bool = False) -> None:
        shapes = [
            (envs, slots),
            (envs, features),
            *(tuple(mask.shape) for mask in ActionMasks.empty(envs, slots=slots)),
        ]
        dtypes = [torch.int64, torch.float32, *[torch.bool] * (len(shapes) - 2)]  # the widest first: views are aligned
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        self._bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=device, pin_memory=pinned)
        parts = zip(self._bytes.split(sizes), dtypes, shapes, strict=True)
        self.blueprint_ES, self.obs_EF, *masks = (part.view(dtype).view(shape) for part, dtype, shape in parts)
        self.masks = ActionMasks(*masks)

    def copy_(self, other: PolicyInputs) -> None:
        """Become another one of the same shape, on the current stream."""
        self._bytes.copy_(other._bytes, non_blocking=True)


class InputStaging:
    """A situation on the host, to be filled in, and its twin on the policy's device; on a CPU they are one.

    Args:
        envs: number of envs.
        features: of an observation.
        slots: of an env.
        device: of the policy.
    """

    def __init__(self, envs: int, features: int, slots: int, device: torch.device) -> None:
        self.host = PolicyInputs(envs, features, slots, torch.device("cpu"), pinned=device.type == "cuda")
        self._device = self.host if device.type == "cpu" else PolicyInputs(envs, features, slots, device)

    def to_device(self) -> PolicyInputs:
        """What was filled in, on the policy's device. It is valid until the next time."""
        if self._device is not self.host:
            self._device.copy_(self.host)
        return self._device


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

    def denormalise(self, values_F: Tensor) -> Tensor:
        """The inverse of `normalise`, without the clamp; same shape."""
        return values_F * self.std + self.mean
