"""Task and Splits: the definition of a task and its data.

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
    """The data of a task, standardised by the training split. Pictures are float32, labels int64."""

    train_x: Tensor
    """[N, C, H, W]"""
    train_y: Tensor
    """[N]"""
    validation_x: Tensor
    """[N, C, H, W]; the reward is computed from these."""
    validation_y: Tensor
    test_x: Tensor
    """[N, C, H, W]; used only by `evaluate`."""
    test_y: Tensor

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Splits:
        """Return the data on a device, pictures in channels-last layout.

        Args:
            device: Target device.
            dtype: Type of the training pictures, to avoid a cast in the host's first layer in every epoch; None keeps
                the current type.
        """
        moved = {name: tensor.to(device) for name, tensor in vars(self).items()}
        pictures = {
            name: tensor.to(memory_format=torch.channels_last) for name, tensor in moved.items() if name.endswith("_x")
        }
        return Splits(**{**moved, **pictures, "train_x": pictures["train_x"].to(dtype or self.train_x.dtype)})


def standardise_splits(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> Splits:
    """Return splits whose training pictures have mean 0 and standard deviation 1 in every channel.

    Validation and test pictures are scaled with the mean and standard deviation of the training pictures.

    Args:
        train: Pictures [N, C, H, W] of any real type, and labels [N].
        validation: Pictures and labels of the same form.
        test: Pictures and labels of the same form.
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
    """A data set, its host, and the settings of its training."""

    name: str
    classes: int
    input_shape: tuple[int, int, int]
    """Channels, height and width of a picture."""
    build_host: Callable[[], Host]
    """Builds a host with PyTorch's default initial values; see `initialise_`."""
    load: Callable[[Path | None], Splits]
    """Reads the data from a directory (None: the default); raises `TaskError` if they are missing or damaged."""
    blueprints: tuple[str, ...] = (
        "norm",
        "attention",
        "depthwise",
        "bottleneck",
        "conv_small",
        "conv_light",
        "conv_heavy",
    )
    """Blueprints that the policy can choose."""
