"""Properties of blueprints in a slot, measured on a seed: size, cost, reach and mixing of channels.

A policy sees blueprints by these properties, so that it can choose among ones that it was not trained with.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.growth.blueprints.registry import build_seed
from esper.growth.layouts import Layout
from esper.seeding import forked_generators, make_generator

_POSITIONS = 9
"""Length of a sequence, and of a side of a picture, on which a seed is measured."""
_SAMPLES, _DRAWS = 4, 16
"""Number of random inputs, and of random weights."""


class BlueprintProperties(NamedTuple):
    """Properties of a seed."""

    parameters: int
    """Number of parameters."""
    operations: float
    """Multiplications and additions per position."""
    reach: float
    """Mean distance over which an input changes outputs, relative to half of the measured length: 0 if it changes those
    of its own position only."""
    mixing: float
    """Fraction of the changes that are in other channels than that of the input."""
    layers: int
    """Number of weights with two axes or more: matrices and kernels."""


@lru_cache(1024)
def measure_properties(name: str, layout: Layout, channels: int, is_causal: bool) -> BlueprintProperties:
    """Return the properties of a seed with random weights, measured on the CPU.

    Args:
        name: Name of the blueprint.
        layout: Layout of the slot.
        channels: Number of channels.
        is_causal: True if the host is causal.

    Raises:
        ValueError: No blueprint has this name and layout.
    """
    generator = make_generator(0, f"properties of {name}", channels)
    seed = build_seed(name, layout, channels, is_causal, generator).eval()
    sizes = {"B": _SAMPLES, "C": channels}
    x = torch.randn([sizes.get(axis, _POSITIONS) for axis in layout.canonical], generator=generator)
    with torch.no_grad(), forked_generators(0):
        with FlopCounterMode(display=False) as counted:
            seed(x)
        change = torch.stack([_change(seed, x, layout.canonical, generator) for _ in range(_DRAWS)]).mean(dim=0)
    total = change.sum()
    return BlueprintProperties(
        parameters=sum(parameter.numel() for parameter in seed.parameters()),
        operations=counted.get_total_flops() / (_SAMPLES * change[..., 0].numel()),
        reach=float((_distances(change.shape[:-1]) * change.sum(dim=-1)).sum() / total) / (_POSITIONS // 2),
        mixing=float(change[..., 1:].sum() / total),
        layers=sum(parameter.dim() >= 2 for parameter in seed.parameters()),
    )


def _change(seed: nn.Module, x: Tensor, layout: Layout, generator: torch.Generator) -> Tensor:
    """Give a seed random weights, and return how a change of one input changes each output: positions, then channels.

    A new seed is the identity, which would show nothing. The largest change is 1.
    """
    for parameter in seed.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    change = (seed(x + _unit(x, layout)) - seed(x)).abs().mean(dim=layout.batch_axis)
    scaled = change / change.max().clamp(min=torch.finfo(change.dtype).tiny)
    return scaled.movedim(layout.channel_axis - 1, -1)  # the axis of the samples was the first


def _unit(x: Tensor, layout: Layout) -> Tensor:
    """Return zeros with a one in the first channel of the middle position."""
    unit = torch.zeros_like(x)
    middle = {"B": slice(None), "C": 0}
    unit[tuple(middle.get(axis, _POSITIONS // 2) for axis in layout)] = 1.0
    return unit


def _distances(shape: torch.Size) -> Tensor:
    """Return the distance of each position from the middle one: the larger of the distances along the axes."""
    distances = torch.zeros(shape)
    for axis, size in enumerate(shape):
        along = (torch.arange(size) - _POSITIONS // 2).abs().float()
        distances = torch.maximum(distances, along.view([-1 if other == axis else 1 for other in range(len(shape))]))
    return distances
