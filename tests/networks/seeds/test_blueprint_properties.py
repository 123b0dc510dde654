"""Properties of blueprints: size, cost and reach, as known from their architecture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.networks.seeds.blueprints import BLUEPRINTS, blueprint
from esper.networks.seeds.blueprints.properties import _measure, measure_properties
from esper.networks.seeds.layouts import Layout
from tests.networks.seeds.hosts import Halving


def test_convolution_has_the_known_size_and_cost() -> None:
    """Eight channels: 8 × 8 kernels of 3 × 3 and the group norm; a multiplication and an addition per weight."""
    found = measure_properties("conv_light", Layout.BCHW, 8, False)
    assert found.parameters == 8 * 8 * 9 + 16
    assert found.operations == 2 * 8 * 8 * 9
    assert found.layers == 1


@pytest.mark.parametrize("channels", [4, 16])
def test_module_that_treats_each_position_alone_has_no_reach(channels: int) -> None:
    assert measure_properties("mlp", Layout.BTC, channels, False).reach == 0.0
    assert measure_properties("self_attention", Layout.BTC, channels, False).reach > 0.4


@pytest.mark.parametrize("channels", [4, 8, 16])
def test_reach_grows_with_the_receptive_field(channels: int) -> None:
    names = ("conv_small", "depthwise", "conv_heavy", "attention")  # 1 × 1, 3 × 3, two of 3 × 3, everywhere
    reaches = [measure_properties(name, Layout.BCHW, channels, False).reach for name in names]
    assert reaches == sorted(reaches)


def test_mixing_is_the_fraction_of_changes_in_other_channels() -> None:
    """A norm changes the other channels only by its statistics; a dense layer changes all of them alike."""
    for channels in (4, 16):
        dense = measure_properties("mlp", Layout.BTC, channels, False).mixing
        assert dense == pytest.approx(1 - 1 / channels, abs=0.05)
        assert measure_properties("norm", Layout.BC, channels, False).mixing < dense


def test_properties_are_the_same_each_time() -> None:
    first = measure_properties("conv_light", Layout.BTC, 8, True)
    _measure.cache_clear()
    assert measure_properties("conv_light", Layout.BTC, 8, True) == first


def test_blueprints_of_a_layout_differ_in_their_properties() -> None:
    for layout in (Layout.BCHW, Layout.BTC, Layout.BC):
        names = [name for name, of_layouts in BLUEPRINTS.items() if layout in of_layouts]
        assert len({measure_properties(name, layout, 8, False) for name in names}) == len(names)


class PositionBias(nn.Module):
    """A parameter for each of 16 tokens."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(16, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def test_seed_that_needs_the_size_of_its_slot_is_measured_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, layout, seed in (("halving", "BCHW", Halving), ("position_bias", "BTC", PositionBias)):
        monkeypatch.setitem(BLUEPRINTS, name, {})
        blueprint(name, layout)(seed)
    halving = measure_properties("halving", Layout.BCHW, 4, False, (8, 12))
    assert halving.parameters == 4 * 4 + 4
    assert halving.operations == 2 * 4 * 4 / 4
    assert 0.0 < halving.reach < 0.25
    assert measure_properties("position_bias", Layout.BTC, 4, False, (16,)).reach == 0.0


def test_properties_do_not_depend_on_the_size_of_the_slot() -> None:
    """A policy observes equal seeds in different slots alike."""
    measured = [measure_properties("conv_light", Layout.BCHW, 8, False, sizes) for sizes in ((32, 32), (4, 7), ())]
    assert len(set(measured)) == 1
