"""CIFAR-10 (Krizhevsky, 2009), read with torchvision from the user's cache directory.

`downloads.py` downloads the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esper.common.configuration.config import TaskError
from esper.networks.tasks.builtin.conv_task import conv_task
from esper.networks.tasks.builtin.downloads import default_dir, download_command
from esper.networks.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor
    from torchvision.datasets import CIFAR10  # pyright: ignore[reportMissingTypeStubs]

    from esper.networks.tasks.splits import Splits

VALIDATION_FRACTION = 0.1
"""Fraction of the training pictures, taken from the end of the files, whose order is random."""


def load(data_dir: Path | None = None) -> Splits:
    """Read CIFAR-10: 45,000 pictures for training, 5,000 for validation, 10,000 for test.

    Raises:
        TaskError: Files are missing or damaged; the message contains the command that downloads them.
    """
    from esper.networks.tasks.splits import standardise_splits

    directory = data_dir or default_dir("cifar10")
    train, test = _open(directory, train=True), _open(directory, train=False)
    pictures, labels = _tensors(train)
    split = len(labels) - round(VALIDATION_FRACTION * len(labels))
    return standardise_splits((pictures[:split], labels[:split]), (pictures[split:], labels[split:]), _tensors(test))


def _open(directory: Path, *, train: bool) -> CIFAR10:
    # Slow to import, and needed by this task only.
    from torchvision.datasets import CIFAR10  # pyright: ignore[reportMissingTypeStubs]

    try:
        return CIFAR10(directory, train=train)
    except (OSError, RuntimeError) as error:
        raise TaskError(
            f"CIFAR-10 in {directory} is missing or damaged; run {download_command('cifar10', directory)}"
        ) from error


def _tensors(data: CIFAR10) -> tuple[Tensor, Tensor]:
    import torch

    labels: list[int] = vars(data)["targets"]  # without a type in torchvision
    return torch.as_tensor(data.data).permute(0, 3, 1, 2), torch.tensor(labels)


def _task(name: str, widths: tuple[int, int, int], kernel_size: int) -> Task:
    return conv_task(
        name=name,
        data=load,
        host={"in_channels": 3, "widths": widths, "kernel_size": kernel_size, "pools": 2, "pool_before": "norm"},
        host_learning_rate=0.1,
        seed_learning_rate=0.1,
        samples_per_epoch=12_800,
        float32_defaults=False,
    )


CIFAR10_TASK = _task("cifar10", widths=(8, 16, 32), kernel_size=3)
CIFAR_IMPAIRED_TASK = _task("cifar_impaired", widths=(1, 2, 4), kernel_size=1)
