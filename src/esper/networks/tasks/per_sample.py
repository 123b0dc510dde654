"""PerSample: an augmentation that draws for each sample. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from esper.common.user_code.references import describe_type


@dataclass(frozen=True)
class PerSample:
    """An augmentation that is applied to each training sample alone: `Task(augment=esper.PerSample(transform))`.

    A transform of torchvision draws once per call, so a batch would get one flip and one crop.

    The transform is pickled and called in reader processes, ahead of the training. Before each call, the generators of
    torch, NumPy and `random` are seeded there by random seed, host, round, step and sample. So lanes, batch size and
    number of processes do not change its random numbers, and these do not change those of the model.

    Attributes:
        transform: Function of the input of one sample, without the axis of the batch, that returns another input.

    Raises:
        ValueError: The transform is not a function.
    """

    transform: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.transform):
            raise ValueError(f"transform must be a function of one input, not {describe_type(self.transform)}")
