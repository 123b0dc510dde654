"""Shared by the tests of growth: networks, seeds in a given stage, generators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.common.domain import AlphaCurve, Stage
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.blueprints import offered_blueprints
from esper.networks.seeds.layers import initialise_
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.slot import Slot
from esper.networks.tasks.builtin.conv_host import ConvHost


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(
    slots: tuple[str, ...] = ("early", "mid", "late"), widths: tuple[int, ...] | None = None, seed: int = 0
) -> GrowingNetwork:
    """Return a network for 1×8×8 pictures and 10 classes, with one block for each slot."""
    widths = widths or tuple(4 * 2**i for i in range(len(slots)))
    host = ConvHost(in_channels=1, widths=widths, kernel_size=1, pools=2, pool_before="conv", classes=10)
    initialise_(host, generator(seed))
    return GrowingNetwork(host, sites(slots, widths), GateConfig())


def sites(slots: Sequence[str], widths: Sequence[int]) -> list[SlotSite]:
    """Return a site after each block of a `ConvHost`."""
    return [
        site(name, width, module=f"segments.{index}")
        for index, (name, width) in enumerate(zip(slots, widths, strict=True))
    ]


def site(name: str, channels: int, module: str = "", layout: Layout = Layout.BCHW, is_causal: bool = False) -> SlotSite:
    """Return a site that offers every blueprint of its layout."""
    offered = offered_blueprints(layout, is_causal)
    return SlotSite(name=name, module=module, layout=layout, channels=channels, blueprints=offered, is_causal=is_causal)


def pictures(count: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=generator(seed))


def grow(
    slot: Slot,
    stage: Stage,
    blueprint: str = "conv_light",
    blend: Blend = Blend.ADD,
    target: float = 1.0,
    seed: int = 2,
    scramble: bool = True,
) -> None:
    """Bring a dormant slot to a stage by legal operations; `scramble` makes its seed differ from the identity."""
    slot.germinate(blueprint, blend, AlphaCurve.LINEAR, 3, target, generator(seed))
    if scramble:
        noise = generator(seed + 1)
        with torch.no_grad():
            for parameter in slot.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise))
    while slot.stage is not stage:
        if slot.stage is Stage.TRAINING:
            slot.grad_norm = 1.0
            if slot.can_advance:
                slot.advance()
                continue
        if slot.stage is Stage.PROBATIONARY:
            slot.record_dependence(0.1, 0.01)
            slot.fossilize()
            continue
        slot.tick()


class Halving(nn.Module):
    """A seed that convolves the picture at half its size, which must be even."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.interpolate(self.convolution(F.avg_pool2d(x, 2)), scale_factor=2)
