"""What a task is.

Shapes: N samples, C channels, H × W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from esper.growth.network import Host
from esper.tasks.settings import TaskSettings


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The data of a task on the CPU, standardised by the training split. Pictures are float32, labels int64."""

    train_x: Tensor
    """[N, C, H, W]"""
    train_y: Tensor
    """[N]"""
    validation_x: Tensor
    """Drives the reward."""
    validation_y: Tensor
    test_x: Tensor
    """Touched only by `evaluate`."""
    test_y: Tensor

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Splits:
        """The same data on a device, pictures in channels-last layout.

        Args:
            device: where to.
            dtype: of the training pictures, where a host's first layer would cast them to it in every epoch.
        """
        moved = {name: tensor.to(device) for name, tensor in vars(self).items()}
        pictures = {
            name: tensor.to(memory_format=torch.channels_last) for name, tensor in moved.items() if name.endswith("_x")
        }
        return Splits(**{**moved, **pictures, "train_x": pictures["train_x"].to(dtype or self.train_x.dtype)})


def standardise_splits(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> Splits:
    """Splits whose training pictures have mean 0 and deviation 1 in every channel, and the others by the same map.

    Args:
        train: pictures [N, C, H, W] of any real type, and labels [N].
        validation: the same.
        test: the same.
    """
    pictures = train[0].float()
    mean = pictures.mean((0, 2, 3), keepdim=True)
    deviation = pictures.std((0, 2, 3), keepdim=True)
    (train_x, train_y), (validation_x, validation_y), (test_x, test_y) = (
        ((x.float() - mean) / deviation, y.long()) for x, y in (train, validation, test)
    )
    return Splits(
        train_x=train_x,
        train_y=train_y,
        validation_x=validation_x,
        validation_y=validation_y,
        test_x=test_x,
        test_y=test_y,
    )


@dataclass(frozen=True, kw_only=True)
class Task(TaskSettings):
    """A data set, the host that learns it, and the settings of its training."""

    name: str
    classes: int
    input_shape: tuple[int, int, int]
    """C, H, W."""
    build_host: Callable[[], Host]
    """A host with PyTorch's own initial values; see `initialise_`."""
    load: Callable[[Path | None], Splits]
    """Reads the data, from this directory or from the default; raises `TaskError` where they are missing or damaged."""
    blueprints: tuple[str, ...] = (
        "norm",
        "attention",
        "depthwise",
        "bottleneck",
        "conv_small",
        "conv_light",
        "conv_heavy",
    )
    """Offered to the policy."""
