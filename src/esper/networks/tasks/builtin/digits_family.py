"""A family of hosts and data made from the handwritten digits, in which the right plan depends on the context.

Importing this module does not import torch. Shapes: N samples, C channels, H × W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from esper.networks.tasks.builtin.digits import digits_task
from esper.networks.tasks.family import LEARNING_RATE, Family, Setting
from esper.networks.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from esper.networks.tasks.splits import Splits

SLOT_NAMES = ("first", "second", "third", "fourth")
DIGITS, LEVEL = "digits", "level"
"""Sources of the pictures: the digits, or noise whose standard deviation is the class."""


def draw_source(splits: Splits, source: str, generator: torch.Generator) -> Splits:
    """Return the digits, or in place of them noise whose standard deviation is the class, scaled to 1 overall."""
    import torch

    if source == DIGITS:
        return splits
    labels = cast("Tensor", splits.train[1]).float()
    scale = labels.square().mean().sqrt()

    def noise(x_NCHW: Tensor, y_N: Tensor) -> Tensor:
        drawn = torch.randn(x_NCHW.shape, generator=generator).to(x_NCHW.device)
        return drawn * (y_N / scale)[:, None, None, None]

    return _with_pictures(splits, noise)


def shift_pictures(splits: Splits, pixels: float, generator: torch.Generator) -> Splits:
    """Shift every picture of every split by up to so many pixels in each direction; the edge is background."""
    import torch
    import torch.nn.functional as F

    most = int(pixels)
    if most == 0:
        return splits
    background = float(cast("Tensor", splits.train[0]).min())

    def shift(x_NCHW: Tensor, y_N: Tensor) -> Tensor:  # noqa: ARG001 (the labels do not matter)
        count, _, height, width = x_NCHW.shape
        padded = F.pad(x_NCHW.float(), (most, most, most, most), value=background)
        down_N, right_N = torch.randint(2 * most + 1, (2, count), generator=generator).to(x_NCHW.device)
        rows = down_N[:, None] + torch.arange(height, device=x_NCHW.device)
        columns = right_N[:, None] + torch.arange(width, device=x_NCHW.device)
        samples = torch.arange(count, device=x_NCHW.device)
        return padded[samples[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    return _with_pictures(splits, shift)


def take_samples(splits: Splits, samples: float, generator: torch.Generator) -> Splits:
    """Return the data with so many training samples, drawn at random.

    Args:
        samples: Number of training samples; all, if there are not more.
    """
    import torch

    from esper.networks.seeds.network import count_samples
    from esper.networks.tasks.splits import Splits, take

    total = count_samples(splits.train[0])
    if samples >= total:
        return splits
    order_N = torch.randperm(total, generator=generator)[: int(samples)].to(cast("Tensor", splits.train[1]).device)
    x, y = splits.train
    return Splits(train=(take(x, order_N), take(y, order_N)), validation=splits.validation, test=splits.test)


def add_label_noise(splits: Splits, fraction: float, generator: torch.Generator) -> Splits:
    """Replace a fraction of the training labels by labels drawn uniformly from all classes.

    Args:
        fraction: Probability that a label is replaced.
    """
    import torch

    from esper.networks.tasks.splits import Splits

    if fraction == 0:
        return splits
    x, labels = splits.train
    y_N = cast("Tensor", labels)
    replaced = torch.rand(y_N.shape, generator=generator) < fraction
    drawn = torch.randint(int(y_N.max()) + 1, y_N.shape, generator=generator)
    noisy = torch.where(replaced.to(y_N.device), drawn.to(y_N.device), y_N)
    return Splits(train=(x, noisy), validation=splits.validation, test=splits.test)


def _with_pictures(splits: Splits, change: Callable[[Tensor, Tensor], Tensor]) -> Splits:
    """Return the data with other pictures, in the same type and memory format."""
    import torch

    from esper.networks.tasks.splits import Splits

    changed: dict[str, tuple[Tensor, Tensor]] = {}
    for name, (x, y) in vars(splits).items():
        is_last = x.is_contiguous(memory_format=torch.channels_last)
        found = change(x, y).to(x.dtype)
        changed[name] = (found.to(memory_format=torch.channels_last) if is_last else found.contiguous(), y)
    return Splits(**changed)


def digits_host(name: str, widths: tuple[int, ...], kernel_size: int) -> Task:
    """Return a structure of this family, or of one like it. It has a slot behind each of its layers, at most four."""
    return digits_task(name, widths, kernel_size=kernel_size, slots=SLOT_NAMES[: len(widths)])


DIGITS_FAMILY = Family(
    "digits_family",
    structures=[
        digits_host("narrow_1x1", (4, 8, 16), kernel_size=1),
        digits_host("narrow_3x3", (4, 8, 16), kernel_size=3),
        digits_host("tapering_1x1", (16, 8, 4), kernel_size=1),
        digits_host("deep_1x1", (8, 8, 8, 8), kernel_size=1),
    ],
    settings={
        "source": Setting([DIGITS, LEVEL], weights=[5, 1], data=draw_source),
        "shift": Setting([0, 2], data=shift_pictures),
        "samples": Setting([1079, 128], weights=[3, 1], data=take_samples),
        "noise": Setting([0.0, 0.4], weights=[9, 1], data=add_label_noise),
        LEARNING_RATE: Setting([0.05, 0.002]),
    },
)
"""Four hosts, with digits or level pictures, shifts, few samples, label noise and a low learning rate."""
