"""The blueprints by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from torch import nn

from esper.nearest import nearest

SeedFactory: TypeAlias = Callable[[int], nn.Module]
"""Builds a seed for a number of channels. It maps [B, C, H, W] to the same shape."""
SeedFactoryT = TypeVar("SeedFactoryT", bound=SeedFactory)

BLUEPRINTS: dict[str, SeedFactory] = {}
"""Every blueprint, in the order in which they were declared."""


def blueprint(name: str) -> Callable[[SeedFactoryT], SeedFactoryT]:
    """Register the decorated class or function as the blueprint `name`.

    Raises:
        ValueError: the name is taken.
    """

    def register(factory: SeedFactoryT) -> SeedFactoryT:
        if name in BLUEPRINTS:
            raise ValueError(f"there is a blueprint {name!r} already")
        BLUEPRINTS[name] = factory
        return factory

    return register


def build_seed(name: str, channels: int) -> nn.Module:
    """A seed with PyTorch's own initial values; see `initialise_`.

    Raises:
        ValueError: no blueprint has this name.
    """
    if name not in BLUEPRINTS:
        raise ValueError(f"there is no blueprint {name!r}: {nearest(name, BLUEPRINTS)}")
    return BLUEPRINTS[name](channels)
