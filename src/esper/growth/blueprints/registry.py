"""The `@blueprint` decorator and the table of blueprints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from torch import nn

from esper.formatting import suggest

SeedFactory: TypeAlias = Callable[[int], nn.Module]
"""Function from a number of channels C to a seed, which maps [B, C, H, W] to the same shape."""
SeedFactoryT = TypeVar("SeedFactoryT", bound=SeedFactory)

BLUEPRINTS: dict[str, SeedFactory] = {}
"""Blueprints by name, in order of registration."""


def blueprint(name: str) -> Callable[[SeedFactoryT], SeedFactoryT]:
    """Register the decorated class or function as the blueprint `name`.

    Raises:
        ValueError: The name is already registered.
    """

    def register(factory: SeedFactoryT) -> SeedFactoryT:
        if name in BLUEPRINTS:
            raise ValueError(f"blueprint {name!r} is already registered")
        BLUEPRINTS[name] = factory
        return factory

    return register


def build_seed(name: str, channels: int) -> nn.Module:
    """Build a seed with PyTorch's default initial values; see `initialise_`.

    Raises:
        ValueError: No blueprint has this name.
    """
    if name not in BLUEPRINTS:
        raise ValueError(f"unknown blueprint {name!r}: {suggest(name, BLUEPRINTS)}")
    return BLUEPRINTS[name](channels)
