import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.networks.seeds.blueprints import build_seed, offered_blueprints
from esper.networks.seeds.blueprints.cnn import BottleneckSeed
from esper.networks.seeds.layouts import Layout
from tests.networks.seeds.hosts import generator

NAMES = offered_blueprints(Layout.BCHW, is_causal=False)


def seed_of(name: str) -> nn.Module:
    return build_seed(name, Layout.BCHW, 8, False, generator(8))


@pytest.mark.parametrize("name", NAMES)
def test_every_seed_parameter_is_trained_from_identity(name: str) -> None:
    """The first gradient reaches only the zero-initialised layer; after the first step it reaches all layers."""
    seed = seed_of(name)
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
    seed = seed_of("bottleneck")
    assert isinstance(seed, BottleneckSeed)
    with torch.no_grad():
        seed.down.weight.abs_().neg_()
        seed.up.weight.fill_(1.0)
    seed(torch.rand(16, 8, 6, 6, generator=generator())).square().sum().backward()
    assert seed.down.weight.grad is not None
    assert seed.down.weight.grad.count_nonzero() == seed.down.weight.numel()


def test_registry_rejects_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean conv_light"):
        build_seed("conv_lite", Layout.BCHW, 4, False, generator())
