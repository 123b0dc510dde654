"""Results of one epoch of one env, and of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from esper.networks.seeds.outputs import Nested


@dataclass(kw_only=True)
class EpochResult:
    """Results of one epoch of one env. Gradient norms are means over its batches, before clipping.

    Attributes:
        weights_finite: True if all weights of the host and of the trained seeds are finite after the last batch.
        slot_grad_norms: Keyed by index of the slot; only slots that trained.
        loss_scale: Loss scale at the end of the epoch; None without loss scaling.
        growth_tracker: Clean batches since the loss scale last changed; None without loss scaling.
        skipped_batches: Batches without an optimizer step, because a gradient overflowed; 0 without loss scaling.
        overflows_by_owner: Skipped batches keyed by the owner of the gradient that overflowed ("host" or a slot name).
        grad_norm: Gradient norm of the host; None if the host is frozen.
        metrics: Value of each further metric of the task.
        dependences: Dependence of the score on a seed, and its standard error (None for a score of a whole split),
            keyed by index of the slot; only slots with a blended seed.
        shapley: Shapley values, keyed by index of the slot; empty if not measured (only at the end of an episode).
    """

    train_loss: float
    train_score: float
    weights_finite: bool
    loss: float
    score: float
    grad_norm: float | None
    metrics: dict[str, float]
    slot_grad_norms: dict[int, float]
    loss_scale: float | None
    growth_tracker: int | None
    skipped_batches: int
    overflows_by_owner: dict[str, int]
    dependences: dict[int, tuple[float, float | None]]
    shapley: dict[int, float]


class TrainedValues(NamedTuple):
    """The first values of `Env.train_epoch`: means over the batches, and the state of the loss scaler."""

    loss: float
    score: float
    weights_finite: float
    """1 if all weights are finite, else 0."""
    loss_scale: float
    growth_tracker: float
    skipped_batches: float


class Validation(NamedTuple):
    """The first values of `Env.validate`: loss and score of a network on the validation split."""

    loss: float
    score: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Validation:
        """Name the first values of a result of `Env.validate`."""
        return cls(*values[: len(cls._fields)])


class TrainedBatch(NamedTuple):
    """Results of one batch, on the device."""

    record: Tensor
    """Result of `Loss.record`."""
    score_record: Nested
    """Result of `Score.record`."""
    norms: list[Tensor]
    """Gradient norm of each owner's parameters before clipping, scalars."""


def max_result_width(slots: int, metrics: int) -> int:
    """Return the maximum number of values that `train_epoch` and `validate` together return for one env."""
    return (len(TrainedValues._fields) + 2 * (1 + slots)) + (len(Validation._fields) + metrics + 3 * slots)


class SmallResults:
    """Copies the results of many batches into a few large blocks of the CPU.

    Between the activations of the batches, thousands of small tensors would fragment the memory: the C library could
    not reuse what lies between them.
    """

    _BLOCK = 1 << 16
    """Values of a block; a tensor with more is kept as it is."""

    def __init__(self) -> None:
        self._free: dict[torch.dtype, Tensor] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a copy of a small tensor in a block."""
        size = tensor.numel()
        if size > self._BLOCK:
            return tensor
        free = self._free.get(tensor.dtype)
        if free is None or len(free) < size:
            free = tensor.new_empty(self._BLOCK)
        self._free[tensor.dtype] = free[size:]
        return free[:size].view(tensor.shape).copy_(tensor.detach())
