"""The `@blueprint` decorator and the table of blueprints, by name and layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import nn

from esper.common.decisions import is_blueprint_name
from esper.common.formatting import suggest
from esper.common.seeding import forked_generators
from esper.networks.seeds.layers import initialise_
from esper.networks.seeds.layouts import CANONICAL_LAYOUTS, Layout
from esper.networks.seeds.tensors import named_tensors

SeedFactory: TypeAlias = Callable[..., nn.Module]
"""Function from a number of channels C to a seed, which maps an activation to one of the same shape."""
SeedFactoryT = TypeVar("SeedFactoryT", bound=SeedFactory)
Causality = Literal["never", "always", "argument"]
"""Causality of a seed, which keeps later positions out of earlier ones: never, always, or with `causal=True`."""
Initialise: TypeAlias = Callable[[nn.Module, torch.Generator], None]


@dataclass(frozen=True)
class Implementation:
    """The seed of a blueprint for one layout."""

    factory: SeedFactory
    causal: Causality
    initialise: Initialise | None
    """Draws the initial values from a generator; None: the factory's own values are kept."""


BLUEPRINTS: dict[str, dict[Layout, Implementation]] = {}
"""Implementations of each blueprint by layout; blueprints in order of registration."""


def blueprint(
    name: str, *layouts: str, causal: Causality = "never", initialise: Initialise | None = None
) -> Callable[[SeedFactoryT], SeedFactoryT]:
    """Register the decorated class or function as the blueprint `name` for some layouts.

    The factory is called with the number of channels, and with `causal: bool` if `causal` is "argument". A new seed
    should be the identity, so that the host's output does not jump when blending begins.

    Args:
        name: Name in plans and events. It is not that of an op, and has none of the characters `@ : , =` and no spaces.
        layouts: Layouts of the slots that offer the seed: `BC`, `BCL`, `BTC` or `BCHW`. Hosts with `TBC` and `BHWC` use
            the seeds of `BTC` and `BCHW`. A seed maps a float tensor of this layout to one of the same shape and type.
            In a slot with a mask, it receives zeros at padded positions. If its `forward` has a second argument `mask`,
            it receives the mask too: bool [B, T], True at real positions.
        causal: "always" if no output depends on later positions, "never" if it may, "argument" if the factory decides.
        initialise: Function that draws the initial values of a seed from a generator. None: the factory draws them from
            the global generators, which are seeded for each seed.

    Returns:
        A decorator that returns the class or function unchanged.

    Raises:
        ValueError: A plan cannot contain the name, a layout is unknown, or the blueprint already has it.
    """

    def register(factory: SeedFactoryT) -> SeedFactoryT:
        if not is_blueprint_name(name):
            raise ValueError(f"blueprint {name!r}: the name must not be that of an op, nor contain @ : , = or spaces")
        if not layouts:
            raise ValueError(f"blueprint {name!r} needs a layout: {', '.join(CANONICAL_LAYOUTS)}")
        implementations = BLUEPRINTS.setdefault(name, {})
        for layout in layouts:
            if layout not in CANONICAL_LAYOUTS:
                raise ValueError(f"blueprint {name!r}: unknown layout {layout!r}; {suggest(layout, CANONICAL_LAYOUTS)}")
            if layout in implementations:
                raise ValueError(f"blueprint {name!r} is already registered for {layout}")
            implementations[Layout(layout)] = Implementation(factory, causal, initialise)
        return factory

    return register


def offered_blueprints(layout: Layout, is_causal: bool) -> tuple[str, ...]:
    """Return the names of the blueprints for a layout, in order of registration.

    Args:
        is_causal: True to leave out blueprints that may mix later positions into earlier ones.
    """
    return tuple(
        name
        for name, implementations in BLUEPRINTS.items()
        if (found := implementations.get(layout.canonical)) and not (is_causal and found.causal == "never")
    )


def build_seed(name: str, layout: Layout, channels: int, is_causal: bool, generator: torch.Generator) -> nn.Module:
    """Build a seed whose initial values are drawn from `generator`, on the CPU.

    Raises:
        ValueError: No blueprint has this name and layout.
    """
    found = _find(name, layout, is_causal)
    options: dict[str, Any] = {"causal": is_causal} if found.causal == "argument" else {}
    if found.initialise:
        seed = found.factory(channels, **options)
        found.initialise(seed, generator)
        return seed
    # On the CPU also within `torch.device("meta")`, where a harvest first builds seeds to learn their shapes.
    with forked_generators(int(torch.randint(2**62, (), generator=generator, device="cpu"))):
        return found.factory(channels, **options)


@torch.no_grad()
def reinitialise_seed_(
    seed: nn.Module, name: str, layout: Layout, channels: int, is_causal: bool, generator: torch.Generator
) -> None:
    """Give a seed, in place, the initial values that `build_seed` draws with the same arguments, on any device."""
    if _find(name, layout, is_causal).initialise is initialise_:
        initialise_(seed, generator)
        return
    # Another function may leave values as the factory drew them, or may need them on the CPU.
    fresh = build_seed(name, layout, channels, is_causal, generator)
    own = named_tensors(seed)
    for tensor_name, value in named_tensors(fresh).items():
        target = own[tensor_name]
        if target.shape != value.shape:  # a buffer that the forward pass has enlarged
            target.data = torch.empty_like(value, device=target.device)
        target.copy_(value, non_blocking=True)


def _find(name: str, layout: Layout, is_causal: bool) -> Implementation:
    found = BLUEPRINTS.get(name, {}).get(layout.canonical)
    if found is None:
        known = offered_blueprints(layout, is_causal)
        raise ValueError(f"unknown blueprint {name!r} for {layout}; {suggest(name, known)}")
    return found
