"""Properties of blueprints in a slot, measured on a seed: size, cost, reach and mixing of channels.

A policy sees blueprints by these properties, so that it can choose among ones that it was not trained with.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.common.seeding import forked_generators, make_generator
from esper.networks.seeds.blueprints.registry import build_seed
from esper.networks.seeds.layouts import Layout

_POSITIONS = 9
"""Length of a sequence, and of a side of a picture, on which a seed is measured if it runs on this length."""
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


def measure_properties(
    name: str, layout: Layout, channels: int, is_causal: bool, sizes: tuple[int, ...] = ()
) -> BlueprintProperties:
    """Return the properties of a seed with random weights, measured on the CPU.

    Slots of all sizes are measured on the same size, so that a policy observes equal seeds alike. A seed that needs the
    size of its slot, such as one with a parameter for each position, is measured on that size.

    Args:
        sizes: Number of positions along each axis of the slot.
    """
    try:
        return _measure(name, layout, channels, is_causal, (_POSITIONS,) * (len(layout) - 2))
    except Exception:
        if not sizes:
            raise
        return _measure(name, layout, channels, is_causal, sizes)


@lru_cache(1024)
def _measure(name: str, layout: Layout, channels: int, is_causal: bool, sizes: tuple[int, ...]) -> BlueprintProperties:
    generator = make_generator(0, f"properties of {name}", channels)
    seed = build_seed(name, layout, channels, is_causal, generator).eval()
    shape = [*sizes]
    shape.insert(layout.canonical.batch_axis, _SAMPLES)
    shape.insert(layout.canonical.channel_axis, channels)
    x = torch.randn(shape, generator=generator)
    with torch.no_grad(), forked_generators(0):
        with FlopCounterMode(display=False) as counted:
            seed(x)
        change = torch.stack([_change(seed, x, layout.canonical, generator) for _ in range(_DRAWS)]).mean(dim=0)
    total = change.sum()
    return BlueprintProperties(
        parameters=sum(parameter.numel() for parameter in seed.parameters()),
        operations=counted.get_total_flops() / (_SAMPLES * change[..., 0].numel()),
        reach=float((_distances(change.shape[:-1]) * change.sum(dim=-1)).sum() / total),
        mixing=float(change[..., 1:].sum() / total),
        layers=sum(parameter.dim() >= 2 for parameter in seed.parameters()),
    )


def _change(seed: nn.Module, x: Tensor, layout: Layout, generator: torch.Generator) -> Tensor:
    """Give a seed random weights, and return how a change of one input changes each output: positions, then channels.

    A new seed is the identity, which would show nothing. The largest change is 1.
    """
    for parameter in seed.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    difference = (seed(x + _unit(x, layout)) - seed(x)).view_as(x)  # an error if the seed returned another size
    change = difference.abs().mean(dim=layout.batch_axis)
    scaled = change / change.max().clamp(min=torch.finfo(change.dtype).tiny)
    return scaled.movedim(layout.channel_axis - 1, -1)  # the axis of the samples was the first


def _unit(x: Tensor, layout: Layout) -> Tensor:
    """Return zeros with a one in the first channel of the middle position."""
    unit = torch.zeros_like(x)
    place = {"B": slice(None), "C": 0}
    unit[tuple(place.get(axis, size // 2) for axis, size in zip(layout, x.shape, strict=True))] = 1.0
    return unit


def _distances(shape: torch.Size) -> Tensor:
    """Return the distance of each position from the middle one: the larger of the distances along the axes.

    Each is relative to half of the length of its axis.
    """
    distances = torch.zeros(shape)
    for axis, size in enumerate(shape):
        along = (torch.arange(size) - size // 2).abs().float() / max(size // 2, 1)
        distances = torch.maximum(distances, along.view([-1 if other == axis else 1 for other in range(len(shape))]))
    return distances
