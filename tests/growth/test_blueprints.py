import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.growth.blueprints import blueprint, build_seed, offered_blueprints
from esper.growth.blueprints.cnn import BottleneckSeed
from esper.growth.layouts import Layout
from tests.growth.hosts import generator

WIDTHS = [1, 2, 4, 16, 48, 64]

PARAMETERS = {
    "norm": lambda c: 2 * c,
    "attention": lambda c: 2 * c * max(1, c // 4) + max(1, c // 4) + c,
    "depthwise": lambda c: 9 * c + c * c + 2 * c,
    "bottleneck": lambda c: 2 * c * max(4, c // 4) + 9 * max(4, c // 4) ** 2 + 4 * max(4, c // 4) + c,
    "conv_small": lambda c: c * c + 2 * c,
    "conv_light": lambda c: 9 * c * c + 2 * c,
    "conv_heavy": lambda c: 18 * c * c + 4 * c,
}


def seed_of(name: str, channels: int) -> nn.Module:
    return build_seed(name, Layout.BCHW, channels, False, generator(channels))


def test_registry_holds_all_seven_picture_blueprints() -> None:
    assert offered_blueprints(Layout.BCHW, is_causal=False) == tuple(PARAMETERS)


@pytest.mark.parametrize("channels", WIDTHS)
@pytest.mark.parametrize("name", PARAMETERS)
def test_new_seed_is_exactly_the_identity(name: str, channels: int) -> None:
    x = torch.randn(3, channels, 6, 6, generator=generator())
    assert torch.equal(seed_of(name, channels)(x), x)


@pytest.mark.parametrize("channels", WIDTHS)
@pytest.mark.parametrize("name", PARAMETERS)
def test_seed_parameter_count_equals_closed_form(name: str, channels: int) -> None:
    count = sum(parameter.numel() for parameter in seed_of(name, channels).parameters())
    assert count == PARAMETERS[name](channels)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_seed_parameter_is_trained_from_identity(name: str) -> None:
    """The first gradient reaches only the zero-initialised layer; after the first step it reaches all layers."""
    seed = seed_of(name, 8)
    x = torch.randn(16, 8, 6, 6, generator=generator())
    wanted = torch.randn(16, 8, 6, 6, generator=generator(1))
    before = [parameter.detach().clone() for parameter in seed.parameters()]
    optimizer = torch.optim.SGD(seed.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = F.mse_loss(seed(x), wanted)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[2] < losses[1] < losses[0]
    for old, new in zip(before, seed.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_bottleneck_with_negative_weights_keeps_gradient() -> None:
    """The input is non-negative, so without a norm all-negative weights would block the gradient at the first ReLU."""
    seed = seed_of("bottleneck", 8)
    assert isinstance(seed, BottleneckSeed)
    with torch.no_grad():
        seed.down.weight.abs_().neg_()
        seed.up.weight.fill_(1.0)
    seed(torch.rand(16, 8, 6, 6, generator=generator())).square().sum().backward()
    assert seed.down.weight.grad is not None
    assert seed.down.weight.grad.count_nonzero() == seed.down.weight.numel()


def test_registry_rejects_unknown_and_duplicate_names() -> None:
    with pytest.raises(ValueError, match="did you mean conv_light"):
        build_seed("conv_lite", Layout.BCHW, 4, False, generator())
    with pytest.raises(ValueError, match="already"):
        blueprint("norm", "BCHW")(lambda channels: nn.Identity())
