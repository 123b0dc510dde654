"""MNIST-1D: sequences of 40 numbers in ten classes, generated from the published recipe.

Greydanus and Kobak, 2024, "Scaling Down Deep Learning with MNIST-1D" (first published in 2020). Each class has a
template of 12 numbers, which is padded, stretched, scaled, shifted, sheared and covered with noise. The published test
accuracies are 32 % for logistic regression, 68 % for an MLP, 94 % for a CNN and 91 % for a GRU. The random numbers are
not those of the published data set.

Shapes: N samples, L positions, C channels, K classes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from esper.networks.tasks.optimizers import SGD
from esper.networks.tasks.task import Chance, Slot, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from esper.networks.tasks.splits import Splits

CLASSES = 10
SAMPLES = {"train": 4000, "validation": 1000, "test": 1000}
"""Number of samples of each split, the same number of each class."""
LENGTH = 40
"""Positions of a sample."""
PADDING = (36, 60)
"""Minimum and maximum number of zeros after the template."""
SCALE_RANGE, SHEAR_RANGE = 0.4, 0.75
"""Width of the range of the scale around 1, and of the shear around 0."""
MAX_SHIFT = 48
"""Exclusive upper bound of the cyclic shift."""
SMOOTH_NOISE, WHITE_NOISE = 0.25, 0.02
"""Standard deviation of the noise before it is smoothed, where the signal is zero, and of the noise everywhere."""
SMOOTHING = 2.0
"""Standard deviation, in positions, of the Gaussian that smooths the noise."""
SEED = 42

_TEMPLATES = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)
"""One template for each digit, drawn like the digit from top to bottom."""


def load(data_dir: Path | None = None) -> Splits:  # noqa: ARG001 (nothing is read)
    """Generate the data, with mean 0 and standard deviation 1 of the training inputs."""
    import torch

    from esper.networks.tasks.splits import Splits

    generator = torch.Generator().manual_seed(SEED)
    splits = {name: _draw_split(size, generator) for name, size in SAMPLES.items()}
    train_NCL = splits["train"][0]
    mean, deviation = train_NCL.mean(), train_NCL.std()
    return Splits(**{name: ((x_NCL - mean) / deviation, y_N) for name, (x_NCL, y_N) in splits.items()})


def make_templates() -> Tensor:
    """Return the templates [K, 12] in float64: standard deviation 1/6, first value 0."""
    import torch

    templates_KL = torch.tensor(_TEMPLATES, dtype=torch.float64)
    templates_KL = templates_KL / templates_KL.std(dim=1, correction=0, keepdim=True)
    return (templates_KL - templates_KL[:, :1]) / 6


def _draw_split(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return samples [N, 1, 40] and labels [N]."""
    import torch
    import torch.nn.functional as F

    def uniform() -> Tensor:
        return torch.rand(size, 1, generator=generator, dtype=torch.float64)

    labels_N = torch.arange(CLASSES).repeat_interleave(size // CLASSES)
    labels_N = labels_N[torch.randperm(size, generator=generator)]
    templates_NL = make_templates()[labels_N]
    least, most = PADDING
    length = templates_NL.shape[1] + most
    zeros_N1 = least + (uniform() * (most - least + 1)).floor()
    # The tiny offset marks the signal, whose own zeros are not covered by the smooth noise.
    padded_NL = F.pad(templates_NL + 1e-8, (0, most))
    signal_NL = _stretch(padded_NL, templates_NL.shape[1] + zeros_N1, length)
    signal_NL = signal_NL * (1 + SCALE_RANGE * (uniform() - 0.5))
    shift_N1 = (uniform() * MAX_SHIFT).long()
    signal_NL = signal_NL.gather(1, (torch.arange(length) - shift_N1) % length)
    noise_2NL = torch.randn(2, size, length, generator=generator, dtype=torch.float64)
    signal_NL = torch.where(signal_NL != 0, signal_NL, _smooth(SMOOTH_NOISE * noise_2NL[0]))
    slope_N1 = SHEAR_RANGE * (uniform() - 0.5)
    ramp_L = torch.linspace(-0.5, 0.5, length, dtype=torch.float64)
    signal_NL = signal_NL + WHITE_NOISE * noise_2NL[1] - slope_N1 * ramp_L
    samples_N1L = F.interpolate(signal_NL[:, None], size=LENGTH, mode="linear", align_corners=True)
    return samples_N1L.float(), labels_N


def _stretch(values_NL: Tensor, used_N1: Tensor, length: int) -> Tensor:
    """Interpolate linearly at `length` points between the first and the last of the used values of each row."""
    import torch

    places_NL = torch.arange(length) / (length - 1) * (used_N1 - 1)
    left_NL = places_NL.long().clamp(max=values_NL.shape[1] - 2)
    return torch.lerp(values_NL.gather(1, left_NL), values_NL.gather(1, left_NL + 1), places_NL - left_NL)


def _smooth(values_NL: Tensor) -> Tensor:
    """Convolve each row with a Gaussian of four standard deviations to each side; rows continue as in a mirror."""
    import torch
    import torch.nn.functional as F

    radius = int(4 * SMOOTHING)
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=values_NL.dtype) / SMOOTHING) ** 2)
    mirrored_NL = torch.cat((values_NL[:, :radius].flip(1), values_NL, values_NL[:, -radius:].flip(1)), dim=1)
    return F.conv1d(mirrored_NL[:, None], (kernel / kernel.sum())[None, None])[:, 0]


WIDTHS = (8, 16, 16)
"""Channels after each block of the host."""


def build_host(width_factor: float = 1.0) -> nn.Module:
    """Return the host: three blocks that treat each position by itself, with pools between them, and a linear head.

    Only the head sees more than one position, so that the host alone is at the level of an MLP at most.
    """
    from torch import nn

    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(inputs, outputs, 1, bias=False), nn.BatchNorm1d(outputs, momentum=0.5), nn.ReLU()
        )

    widths = [round(width_factor * width) for width in WIDTHS]
    early, mid, late = (block(*sizes) for sizes in zip((1, *widths[:-1]), widths, strict=True))
    head = nn.Linear(widths[-1] * (LENGTH // 4), CLASSES)
    return nn.Sequential(early, nn.MaxPool1d(2), mid, nn.MaxPool1d(2), late, nn.Flatten(), head)


MNIST1D_TASK = Task(
    name="mnist1d",
    model=build_host,
    wide_model=build_host,
    slots={name: Slot(path, layout="BCL") for name, path in (("early", "0"), ("mid", "2"), ("late", "4"))},
    data=load,
    chance=Chance(loss=math.log(CLASSES), score=1 / CLASSES),
    optimizer=SGD(0.05),
    seed_optimizer=SGD(0.1),
    samples_per_epoch=1024,
    float32_defaults=True,
)
"""Sequences with a host that cannot combine positions before its head; grown seeds can."""
