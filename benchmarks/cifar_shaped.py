"""The task `cifar_impaired` on generated pictures, for machines without the data set: class patterns with noise.

esper-sanctum --task benchmarks/cifar_shaped.py --envs 4 --steps 10 --rounds 1
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

import esper
from esper.networks.tasks.builtin.cifar import CIFAR_IMPAIRED_TASK

CLASSES, SHAPE = 10, (3, 32, 32)
TRAIN, VALIDATION, TEST = 12_800, 5_000, 1_000
"""Number of pictures of each split: those of an epoch for training, and those of CIFAR-10 for validation."""


def data(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return the pictures, of about unit variance. As in photographs, the colours of a pixel have much in common."""
    generator = torch.Generator().manual_seed(0)
    coarse_KCHW = torch.randn(CLASSES, 1, 4, 4, generator=generator).expand(-1, SHAPE[0], -1, -1)
    patterns_KCHW = F.interpolate(coarse_KCHW, size=SHAPE[1:], mode="bicubic")

    def split(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels_N = torch.randint(CLASSES, (samples,), generator=generator)
        noise_NCHW = torch.randn(samples, 1, *SHAPE[1:], generator=generator)
        return (patterns_KCHW[labels_N] + noise_NCHW) / 2**0.5, labels_N

    return esper.Splits(train=split(TRAIN), validation=split(VALIDATION), test=split(TEST))


task = replace(CIFAR_IMPAIRED_TASK, name="cifar_shaped", data=data)
