"""Properties of blueprints: size, cost and reach, as known from their architecture."""

from __future__ import annotations

import pytest

from esper.growth.blueprints import BLUEPRINTS
from esper.growth.blueprints.properties import measure_properties
from esper.growth.layouts import Layout


def test_convolution_has_the_known_size_cost_and_reach() -> None:
    """Eight channels: 8 × 8 kernels of 3 × 3 and the group norm; a multiplication and an addition per weight."""
    found = measure_properties("conv_light", Layout.BCHW, 8, False)
    assert found.parameters == 8 * 8 * 9 + 16
    assert found.operations == 2 * 8 * 8 * 9
    assert found.reach == 0.25  # one of four positions
    assert found.mixes_channels
    assert found.layers == 1


@pytest.mark.parametrize(
    ("name", "layout", "reach"),
    [
        ("norm", Layout.BC, 0.0),
        ("mlp", Layout.BTC, 0.0),
        ("conv_small", Layout.BCHW, 0.0),
        ("depthwise", Layout.BCHW, 0.25),
        ("self_attention", Layout.BTC, 1.0),
    ],
)
@pytest.mark.parametrize("channels", [4, 16])
def test_reach_is_that_of_the_architecture(name: str, layout: Layout, reach: float, channels: int) -> None:
    assert measure_properties(name, layout, channels, False).reach == reach


def test_properties_are_the_same_each_time() -> None:
    first = measure_properties("conv_light", Layout.BTC, 8, True)
    measure_properties.cache_clear()
    assert measure_properties("conv_light", Layout.BTC, 8, True) == first


def test_blueprints_of_a_layout_differ_in_their_properties() -> None:
    for layout in (Layout.BCHW, Layout.BTC, Layout.BC):
        names = [name for name, of_layouts in BLUEPRINTS.items() if layout in of_layouts]
        assert len({measure_properties(name, layout, 8, False) for name in names}) == len(names)
