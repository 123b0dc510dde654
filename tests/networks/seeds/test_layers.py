import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.networks.seeds.layers import (
    MAX_SLOW_CHANNELS,
    FastBatchNorm2d,
    PointwiseConv,
    global_avg_pool,
    initialise_,
    make_group_norm,
    max_pool_2x2,
    starts_at_zero,
)
from tests.networks.seeds.hosts import generator, network


def test_pointwise_conv_matches_conv2d() -> None:
    layer = PointwiseConv(3, 5, bias=True)
    x = torch.randn(2, 3, 4, 4, generator=generator())
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias))
    x = x.contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 2, MAX_SLOW_CHANNELS, MAX_SLOW_CHANNELS + 1])
def test_fast_batch_norm_matches_pytorch_and_keeps_layout(
    channels: int, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    x = torch.randn(16, channels, 4, 6, generator=generator()).to(dtype).contiguous(memory_format=layout)
    gradient = torch.randn(x.shape, generator=generator()).to(dtype).contiguous(memory_format=layout)
    x.requires_grad_()
    ours, theirs = FastBatchNorm2d(channels, momentum=0.3), torch.nn.BatchNorm2d(channels, momentum=0.3)
    results = []
    for norm in (ours, theirs):
        torch.nn.init.uniform_(norm.weight, generator=generator())
        h = norm(x)
        assert h.is_contiguous(memory_format=layout)
        gradients = torch.autograd.grad(h, (x, norm.weight, norm.bias), gradient)
        results.append((h, *gradients, norm.running_mean, norm.running_var, norm.eval()(x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_global_avg_pool_gradient_is_channels_last(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 4, 6, generator=generator()).to(dtype).contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(3, 5, generator=generator()).to(dtype)
    x.requires_grad_()
    ours, theirs = global_avg_pool(x), x.mean((2, 3))
    (our_gradient,), (their_gradient,) = (torch.autograd.grad(mean, x, gradient) for mean in (ours, theirs))
    assert torch.equal(ours, theirs)
    assert torch.equal(our_gradient, their_gradient)
    assert our_gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(8, 6), (7, 5)])
def test_max_pool_2x2_matches_pytorch_with_and_without_grad(size: tuple[int, int]) -> None:
    x = torch.randn(3, 4, *size, generator=generator()).contiguous(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = torch.nan
    wanted = F.max_pool2d(x, 2)
    with torch.inference_mode():
        without = max_pool_2x2(x)
    torch.testing.assert_close(without, wanted, rtol=0, atol=0, equal_nan=True)
    assert without.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(max_pool_2x2(x.requires_grad_()), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("channels", [4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_group_norm_computes_in_float32_and_keeps_dtype(channels: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, channels, 4, 4, generator=generator()).to(dtype).requires_grad_()
    gradient = torch.randn(x.shape, generator=generator()).to(dtype)
    norm = make_group_norm(channels)
    exact = x.detach().float().requires_grad_()
    ours, wanted = norm(x), F.group_norm(exact, norm.num_groups, norm.weight, norm.bias)
    assert ours.dtype is dtype
    torch.testing.assert_close(ours, wanted.to(dtype))
    (our_gradient,) = torch.autograd.grad(ours, x, gradient)
    (wanted_gradient,) = torch.autograd.grad(wanted, exact, gradient.float())
    torch.testing.assert_close(our_gradient, wanted_gradient.to(dtype))


def test_initialise_depends_on_the_generator_only() -> None:
    """The values do not depend on the global random stream, the thread or the module's previous values."""
    torch.manual_seed(1)
    first = network(seed=7).state_dict()
    torch.manual_seed(2)
    torch.randn(100)
    others = []
    thread = threading.Thread(target=lambda: others.append(network(seed=7)))
    thread.start()
    thread.join()
    second = others[0]
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.fill_(9.0)
    second.host.segments[0].norm.running_mean.fill_(5.0)
    initialise_(second.host, generator(7))
    for key, value in second.state_dict().items():
        assert torch.equal(value, first[key]), key


def test_initialise_respects_kaiming_bound_and_zero_mark() -> None:
    plain, zero = nn.Conv2d(16, 64, 3), starts_at_zero(nn.Conv2d(16, 64, 3))
    initialise_(plain, generator())
    initialise_(zero, generator())
    bound = (6 / (16 * 9)) ** 0.5
    assert 0.99 * bound < plain.weight.abs().max() <= bound
    assert plain.bias is not None
    assert not plain.bias.any()
    assert not zero.weight.any()


def test_initialise_unknown_layer_raises() -> None:
    with pytest.raises(TypeError, match="Embedding"):
        initialise_(nn.Sequential(nn.ReLU(), nn.Embedding(3, 3)), generator())
