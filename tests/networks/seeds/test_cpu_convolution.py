"""Comparison of the CPU convolutions with PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.networks.seeds.cpu_convolution import MAX_ROW_ELEMENTS, MIN_WIDTH, Convolution, _RowConvolution


def layer_input_gradient(
    batch: int, channels: int, out: int, height: int, width: int, kernel_size: int = 3, groups: int = 1
) -> tuple[Convolution, Tensor, Tensor]:
    """Return a layer, an input and a gradient of its output."""
    generator = torch.Generator().manual_seed(channels + 10 * out + 100 * height + 1000 * width)
    layer = Convolution(channels, out, kernel_size, groups)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
    x = torch.randn(batch, channels, height, width, generator=generator)
    return layer, x, torch.randn(batch, out, height, width, generator=generator)


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 5),
    out=st.integers(1, 5),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    channels_last=st.booleans(),
)
def test_convolution_matches_pytorch_forward_and_backward(
    batch: int, channels: int, out: int, height: int, width: int, channels_last: bool
) -> None:
    layer, x, gradient = layer_input_gradient(batch, channels, out, height, width)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = x.to(memory_format=layout).requires_grad_()
    layer.to(memory_format=layout)
    ours, theirs = layer(x), F.conv2d(x, layer.weight, padding=1)
    torch.testing.assert_close(ours, theirs)
    wanted = (x, layer.weight)
    torch.testing.assert_close(
        torch.autograd.grad(ours, wanted, gradient), torch.autograd.grad(theirs, wanted, gradient)
    )


ROWS, PAIRS, PYTORCH = "_RowConvolutionBackward", "PermuteBackward0", "ConvolutionBackward0"


@pytest.mark.parametrize(
    ("channels", "out", "width", "way"),
    [
        (4, 4, 8, ROWS),
        (4, 4, 9, PYTORCH),
        (MAX_ROW_ELEMENTS, 4, 1, ROWS),
        (3, 8, MIN_WIDTH, PAIRS),
        (3, 8, MIN_WIDTH + 1, PYTORCH),
        (3, 8, MIN_WIDTH - 2, PYTORCH),
        (3, 9, MIN_WIDTH, PYTORCH),
        (4, 8, MIN_WIDTH, PYTORCH),
    ],
)
def test_convolution_selects_fastest_path_for_input(channels: int, out: int, width: int, way: str) -> None:
    layer, x, gradient = layer_input_gradient(2, channels, out, 3, width)
    ours, theirs = layer(x), F.conv2d(x, layer.weight, padding=1)
    assert type(ours.grad_fn).__name__ == way
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, layer.weight, gradient), torch.autograd.grad(theirs, layer.weight, gradient)
    )


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_two_pixel_path_matches_pytorch_in_any_layout_and_dtype(layout: torch.memory_format) -> None:
    layer, x, _ = layer_input_gradient(2, 3, 8, 4, MIN_WIDTH)
    x = x.to(memory_format=layout)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
        torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, padding=1), rtol=2e-2, atol=2e-2)
    layer.double()
    x = x.double()
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, padding=1), rtol=1e-12, atol=1e-12)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


def test_bfloat16_and_float64_use_pytorch() -> None:
    layer, x, _ = layer_input_gradient(2, 4, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    layer.double()
    torch.testing.assert_close(layer(x.double()), F.conv2d(x.double(), layer.weight, padding=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("channels", "out", "kernel_size", "groups"), [(4, 4, 3, 1), (3, 8, 3, 1), (4, 4, 3, 4), (2, 4, 5, 1)]
)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_float16_is_computed_in_float32_and_rounded(
    channels: int, out: int, kernel_size: int, groups: int, scale: float
) -> None:
    """Gradients beyond the range of float16 must become infinite, because loss scaling detects overflows by them.

    The reference is the exact result: PyTorch's float16 convolution rounds differently on each type of CPU.
    """
    layer, x, gradient = layer_input_gradient(2, channels, out, 8, MIN_WIDTH, kernel_size, groups)
    gradient = gradient.half() * scale
    exact_x, exact_kernel = (each.detach().half().double().requires_grad_() for each in (x, layer.weight))
    with torch.autocast("cpu", dtype=torch.float16):
        ours = layer(x.requires_grad_())
    exact = F.conv2d(exact_x, exact_kernel, padding=kernel_size // 2, groups=groups)
    torch.testing.assert_close(ours, exact.half(), rtol=1e-3, atol=1e-5)
    found = torch.autograd.grad(ours, (x, layer.weight), gradient)
    expected = torch.autograd.grad(exact, (exact_x, exact_kernel), gradient.double())
    assert found[1].isinf().any() == (scale > 1.0)
    for mine, true in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, true.half().float(), rtol=1e-3, atol=1e-5 * scale)


def test_row_convolution_gradients_match_finite_differences() -> None:
    _, x, _ = layer_input_gradient(2, 2, 3, 3, 4)
    kernel = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_RowConvolution.apply, (x.double().requires_grad_(), kernel))
