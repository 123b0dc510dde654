"""Synthetic pictures in the shape of CIFAR, generated from a fixed random seed, for benchmarks and smoke tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esper.networks.tasks.builtin.conv_task import CLASSES, conv_task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from esper.networks.tasks.splits import Splits

SHAPE = (3, 32, 32)
"""Channels, height and width of a picture."""
SIZES = (2048, 256, 512)
"""Number of samples for training, validation and test."""
NOISE_STD = 2.0
"""Standard deviation of the pixel noise; that of the pattern is about 1."""
MAX_SHIFT_PIXELS = 8
"""Exclusive upper bound of the cyclic shift of each picture, so that matching a template is not enough."""


def load(data_dir: Path | None = None) -> Splits:  # noqa: ARG001 (nothing is read)
    """Generate the pictures: a smooth random pattern for each class, shifted, with noise added."""
    import torch
    import torch.nn.functional as F

    from esper.networks.tasks.splits import standardise_splits

    generator = torch.Generator().manual_seed(0)
    coarse_KCHW = torch.randn(CLASSES, SHAPE[0], 8, 8, generator=generator)
    patterns_KCHW = F.interpolate(coarse_KCHW, size=SHAPE[1:], mode="bicubic", align_corners=False)
    train, validation, test = (_draw(patterns_KCHW, size, generator) for size in SIZES)
    return standardise_splits(train, validation, test)


def _draw(patterns_KCHW: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    import torch

    labels_N = torch.randint(CLASSES, (size,), generator=generator)
    shifts_N2 = torch.randint(MAX_SHIFT_PIXELS, (size, 2), generator=generator)
    pictures_NCHW = torch.stack(
        [
            patterns_KCHW[int(label)].roll((int(down), int(right)), dims=(1, 2))
            for label, (down, right) in zip(labels_N, shifts_N2, strict=True)
        ]
    )
    return pictures_NCHW + NOISE_STD * torch.randn(pictures_NCHW.shape, generator=generator), labels_N


SYNTHETIC_TASK = conv_task(
    name="synthetic",
    data=load,
    host={"in_channels": 3, "widths": (8, 16, 32), "kernel_size": 3, "pools": 2, "pool_before": "norm"},
    host_learning_rate=0.1,
    seed_learning_rate=0.1,
    samples_per_epoch=512,
    float32_defaults=True,
)
