"""The 1,797 handwritten digits that ship with the package (source: data/LICENCE.txt)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from esper.common.configuration.config import TaskError
from esper.networks.tasks.builtin.conv_task import SLOT_NAMES, conv_task
from esper.networks.tasks.task import Task

if TYPE_CHECKING:
    from esper.networks.tasks.splits import Splits

SPLIT_TRAIN, SPLIT_VALIDATION, SPLIT_TEST = 0, 1, 2
"""Values of the array `split` in digits.npz."""


def load(data_dir: Path | None = None) -> Splits:  # noqa: ARG001 (the digits are in the package)
    """Read the digits: 1,079 for training, 359 for validation, 359 for test, stratified by class.

    Raises:
        TaskError: The installed file is missing or damaged.
    """
    import numpy as np
    import torch

    from esper.networks.tasks.splits import standardise_splits

    source = files("esper.networks.tasks") / "data" / "digits.npz"
    try:
        with source.open("rb") as file, np.load(file) as arrays:
            images, labels, split = (torch.as_tensor(arrays[key]) for key in ("images", "labels", "split"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise TaskError(f"cannot read the digits in {source} ({error}); install esper-sanctum again") from error
    train, validation, test = (
        (images[split == part][:, None], labels[split == part]) for part in (SPLIT_TRAIN, SPLIT_VALIDATION, SPLIT_TEST)
    )
    return standardise_splits(train, validation, test)


def digits_task(
    name: str, widths: Sequence[int] = (4, 8, 16), *, kernel_size: int, slots: Sequence[str] = SLOT_NAMES
) -> Task:
    """Return a task with the digits and a convolutional host, which has a slot behind each of its layers."""
    return conv_task(
        name=name,
        data=load,
        host={"in_channels": 1, "widths": widths, "kernel_size": kernel_size, "pools": 2, "pool_before": "conv"},
        host_learning_rate=0.05,
        seed_learning_rate=0.2,
        samples_per_epoch=1024,
        float32_defaults=True,
        slots=slots,
    )


DIGITS_TASK = digits_task("digits", kernel_size=3)
"""Digits with a 3×3 host that solves the task alone; growth costs more than it gains."""
DIGITS_IMPAIRED_TASK = digits_task("digits_impaired", kernel_size=1)
"""Digits with a 1×1 host that cannot combine pixels; only grown seeds can."""
