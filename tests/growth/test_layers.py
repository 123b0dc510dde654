import pytest
import torch
import torch.nn.functional as F

from esper.growth.layers import Pointwise, pixel_mean
from tests.growth.hosts import generator


def test_pointwise_is_a_1x1_convolution() -> None:
    layer = Pointwise(3, 5, bias=True)
    x = torch.randn(2, 3, 4, 4, generator=generator())
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias))
    x = x.contiguous(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_over_the_pixels_keeps_the_layout_of_its_gradient(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 4, 6, generator=generator()).to(dtype).contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(3, 5, generator=generator()).to(dtype)
    x.requires_grad_()
    ours, theirs = pixel_mean(x), x.mean((2, 3))
    (our_gradient,), (their_gradient,) = (torch.autograd.grad(mean, x, gradient) for mean in (ours, theirs))
    assert torch.equal(ours, theirs)
    assert torch.equal(our_gradient, their_gradient)
    assert our_gradient.is_contiguous(memory_format=torch.channels_last)
