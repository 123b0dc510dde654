"""SlotSite: the place of a slot in a host, and what can be planted there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from esper.networks.seeds.blend import BLEND_STYLES, is_causal_blend
from esper.networks.seeds.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class SlotSite:
    """The place of a slot in a host.

    Attributes:
        name: Name of the slot.
        module: Path of the submodule whose output the slot receives.
        layout: Layout of this output.
        channels: Number of its channels, C.
        sizes: Number of its positions along each of the other axes: height and width of a picture, length of a
            sequence, none for features.
        blueprints: Blueprints that can be planted here, in the order of the policy's head.
        mask: Name of the input of the host, [B, T], that is True at real positions, or after `~`, at padded ones. None:
            all positions are real.
        is_causal: True if the host is causal. Seeds and blends must then not mix later positions into earlier ones.
    """

    name: str
    module: str
    layout: Layout
    channels: int
    sizes: tuple[int, ...] = ()
    blueprints: tuple[str, ...]
    mask: str | None = None
    is_causal: bool = False

    @property
    def positions(self) -> int:
        """Number of positions: pixels of a picture, steps of a sequence, 1 for features."""
        return math.prod(self.sizes)

    @property
    def styles(self) -> tuple[bool, ...]:
        """For each choice of `Action.style`, True if a new seed can use it."""
        return tuple(not self.is_causal or is_causal_blend(blend, self.layout.canonical) for _, blend in BLEND_STYLES)
