"""Seeds of padded sequences: real positions do not depend on padded ones, which do not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.common.domain import Stage
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.blueprints import offered_blueprints
from esper.networks.seeds.layers import make_group_norm
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.masks import group_norm, read_mask
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.slot import Slot
from tests.networks.seeds.hosts import generator, grow, site

LAYOUTS = (Layout.BCL, Layout.BTC, Layout.TBC)
SEEDS = [
    (name, layout, is_causal)
    for layout in LAYOUTS
    for is_causal in (False, True)
    for name in offered_blueprints(layout, is_causal)
]


def grown_slot(name: str, layout: Layout, blend: Blend = Blend.GATE, *, is_causal: bool = False) -> Slot:
    slot = Slot(site("mid", 16, layout=layout, is_causal=is_causal), GateConfig())
    grow(slot, Stage.PROBATIONARY, name, blend)
    return slot.double()


def sequences(layout: Layout, length: int = 7) -> Tensor:
    """Return features [3, 7, 16] in a layout, cut to a length."""
    x_BTC = torch.randn(3, 7, 16, generator=generator(), dtype=torch.double)[:, :length]
    return layout.from_canonical(x_BTC.transpose(1, 2) if layout is Layout.BCL else x_BTC)


def by_position(x: Tensor, layout: Layout) -> Tensor:
    """Return features of a layout as [B, T, C]."""
    return x.permute([layout.index("B"), layout.index("L" if layout is Layout.BCL else "T"), layout.index("C")])


@pytest.mark.parametrize(("name", "layout", "is_causal"), SEEDS)
@pytest.mark.parametrize("is_left", [False, True])
def test_seed_with_a_mask_equals_the_seed_on_real_positions(
    name: str, layout: Layout, is_causal: bool, is_left: bool
) -> None:
    slot, x = grown_slot(name, layout, is_causal=is_causal), sequences(layout)
    mask = torch.arange(7).expand(3, 7) >= 3 if is_left else torch.arange(7).expand(3, 7) < 4
    real, padded = (slice(3, None), slice(None, 3)) if is_left else (slice(None, 4), slice(4, None))
    shorter = x.narrow(layout.index("L" if layout is Layout.BCL else "T"), real.start or 0, 4)
    found, expected = (
        by_position(output, layout) for output in (slot(x, 0.7, mask), slot(shorter, 0.7, torch.ones(3, 4).bool()))
    )
    torch.testing.assert_close(found[:, real], expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(found[:, padded], by_position(x, layout)[:, padded])
    torch.testing.assert_close(slot(shorter, 0.7), slot(shorter, 0.7, torch.ones(3, 4).bool()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "layout", "is_causal"), SEEDS)
def test_gradients_do_not_depend_on_padded_features(name: str, layout: Layout, is_causal: bool) -> None:
    """Some hosts have infinite values there, before a maximum. One sample is padding only, and one begins with it."""
    mask = torch.tensor([[True] * 5 + [False] * 2, [False] * 7, [False] * 3 + [True] * 4])
    gradients: list[list[Tensor]] = []
    for filler in (0.0, -torch.inf):
        slot, x = grown_slot(name, layout, is_causal=is_causal), sequences(layout)
        by_position(x, layout).masked_fill_(~mask[:, :, None], filler)
        output = by_position(slot(x, 0.7, mask), layout)
        output.masked_select(mask[:, :, None]).square().sum().backward()
        gradients.append([parameter.grad for parameter in slot.parameters() if parameter.grad is not None])
    assert gradients[0]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_with_a_mask_equals_the_layer_on_real_positions(dtype: torch.dtype) -> None:
    norm, x_BCL = make_group_norm(32), torch.randn(2, 32, 9, generator=generator()).to(dtype)
    nn.init.normal_(norm.weight, generator=generator(1))
    nn.init.normal_(norm.bias, generator=generator(2))
    found = group_norm(norm, x_BCL, torch.arange(9).expand(2, 9) < 5)
    exact = norm(x_BCL[..., :5].float())
    assert found.dtype is dtype
    torch.testing.assert_close(found[..., :5].float(), exact, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-2)
    assert not found[..., 5:].any()


def test_mask_is_read_from_bool_and_integer_inputs_and_inverted() -> None:
    is_real = torch.tensor([[True, True, False]])
    inputs: dict[str, Any] = {"mask": is_real, "number": is_real.long(), "padding": ~is_real, "absent": None}
    for name in ("mask", "number", "~padding"):
        found = read_mask(inputs, name)
        assert found is not None
        assert torch.equal(found, is_real)
    assert read_mask(inputs, None) is read_mask(inputs, "absent") is None


class Summing(nn.Module):
    """Applies a mask before its slots only, so that rows can be added to the batch after a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 16, 1), nn.Conv1d(16, 16, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.second(self.first(x * mask[:, None]).tanh()).sum(2)


def test_counterfactuals_of_masked_slots_equal_separate_forward_passes() -> None:
    sites = [
        SlotSite(name=name, module=name, layout=Layout.BCL, channels=16, blueprints=("norm",), mask="mask")
        for name in ("first", "second")
    ]
    network = GrowingNetwork(Summing(), sites, GateConfig()).eval()
    for slot, blueprint in zip(network.slots, ("norm", "conv_light"), strict=True):
        grow(slot, Stage.PROBATIONARY, blueprint, Blend.GATE, target=0.7)
    network = network.double()
    x = torch.randn(5, 4, 7, generator=generator(), dtype=torch.double)
    inputs = {"x": x, "mask": torch.arange(7) < torch.tensor([[1], [3], [4], [6], [7]])}
    alphas = network.alphas()
    without = {off: network(inputs, [0.0 if slot in off else alphas[slot] for slot in (0, 1)]) for off in OFF}
    ablations = network.forward_ablations(inputs, alphas, [0, 1])
    torch.testing.assert_close(ablations, [without[off] for off in OFF[:3]])
    torch.testing.assert_close(network.forward_subsets(inputs, alphas, [0, 1]), [without[off] for off in OFF])
    assert not torch.allclose(ablations[0], ablations[1])


OFF = ((), (0,), (1,), (0, 1))
"""Slots that are off: in each ablation, and then in each subset."""
