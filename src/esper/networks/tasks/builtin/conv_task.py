"""The tasks with a convolutional host: settings that the built-in tasks share. Importing this does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.networks.tasks.optimizers import SGD
from esper.networks.tasks.task import Chance, Task

if TYPE_CHECKING:
    from esper.networks.tasks.builtin.conv_host import ConvHost
    from esper.networks.tasks.splits import Splits

CLASSES = 10
"""Number of classes of every built-in task."""
SLOT_NAMES = ("early", "mid", "late")
"""Slots of a host of three blocks: one after each block."""
BLUEPRINTS = ("norm", "attention", "depthwise", "bottleneck", "conv_small", "conv_light", "conv_heavy")
"""Blueprints that the policy can select, in the order of its head."""


def conv_task(
    *,
    name: str,
    data: Callable[[Path | None], Splits],
    host: dict[str, Any],
    host_learning_rate: float,
    seed_learning_rate: float,
    samples_per_epoch: int,
    float32_defaults: bool,
    weight_decay: float = SGD.weight_decay,
    slots: Sequence[str] = SLOT_NAMES,
) -> Task:
    """Return a task of ten classes with a `ConvHost`.

    Args:
        host: Arguments of `ConvHost`, without the number of classes.
        float32_defaults: True if the learning rates were tuned in float32.
        weight_decay: Weight decay of host and seeds.
        slots: Names of the slots, one after each block.
    """
    return Task(
        name=name,
        model=partial(_build_host, **host),
        wide_model=partial(_build_wide_host, **host),
        slots={slot: f"segments.{index}" for index, slot in enumerate(slots)},
        data=data,
        chance=Chance(loss=math.log(CLASSES), score=1 / CLASSES),
        optimizer=SGD(host_learning_rate, weight_decay=weight_decay),
        seed_optimizer=SGD(seed_learning_rate, weight_decay=weight_decay),
        samples_per_epoch=samples_per_epoch,
        blueprints=BLUEPRINTS,
        float32_defaults=float32_defaults,
    )


def _build_wide_host(width_factor: float, *, widths: Sequence[int], **arguments: Any) -> ConvHost:
    return _build_host(widths=[round(width_factor * width) for width in widths], **arguments)


def _build_host(**arguments: Any) -> ConvHost:
    from esper.networks.tasks.builtin.conv_host import build_conv_host  # imports torch

    return build_conv_host(classes=CLASSES, **arguments)
