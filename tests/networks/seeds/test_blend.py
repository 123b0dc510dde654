import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.common.domain import AlphaCurve
from esper.networks.seeds.blend import BLEND_STYLES, AlphaSchedule, Blend, BlendGate, blend, straight_through
from tests.networks.seeds.hosts import generator

SIGMOIDS = [(AlphaCurve.SIGMOID_GENTLE, 6.0), (AlphaCurve.SIGMOID, 12.0), (AlphaCurve.SIGMOID_SHARP, 24.0)]


@pytest.mark.parametrize("curve", AlphaCurve)
def test_curve_rises_from_exactly_zero_to_exactly_one(curve: AlphaCurve) -> None:
    heights = [curve.value_at(i / 100) for i in range(101)]
    assert heights[0] == 0.0
    assert heights[-1] == 1.0
    assert heights == sorted(heights)
    assert curve.value_at(0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(("curve", "steepness"), SIGMOIDS)
@given(t=st.floats(0, 1))
def test_sigmoid_curve_equals_scaled_logistic(curve: AlphaCurve, steepness: float, t: float) -> None:
    def logistic(u: float) -> float:
        return 1.0 / (1.0 + math.exp(-steepness * (u - 0.5)))

    expected = (logistic(t) - logistic(0.0)) / (logistic(1.0) - logistic(0.0))
    assert curve.value_at(t) == pytest.approx(expected, abs=1e-12)


def test_cosine_curve_equals_closed_form() -> None:
    assert AlphaCurve.COSINE.value_at(0.25) == pytest.approx((1 - math.cos(math.pi / 4)) / 2)


@given(start=st.floats(0, 1), target=st.floats(0, 1), steps=st.integers(0, 10), curve=st.sampled_from(AlphaCurve))
def test_ramp_starts_at_start_and_ends_exactly_at_target(
    start: float, target: float, steps: int, curve: AlphaCurve
) -> None:
    ramp = AlphaSchedule(start=start, target=target, steps=steps, curve=curve)
    if steps:
        assert ramp.value == start
    values = []
    for _ in range(steps):
        assert not ramp.finished
        values.append(ramp.value)
        ramp.tick()
    assert ramp.finished
    assert ramp.value == target
    ramp.tick()
    assert ramp.value == target
    values.append(target)
    assert values == sorted(values, reverse=target < start) or values == pytest.approx(
        sorted(values, reverse=target < start)
    )


SHAPE = (3, 4, 5, 5)


def two() -> tuple[torch.Tensor, torch.Tensor]:
    g = generator()
    return torch.randn(SHAPE, generator=g, dtype=torch.float64), torch.randn(SHAPE, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.25, 0.7, 1.0])
def test_blend_equals_closed_form(alpha: float) -> None:
    h, s = two()
    g = torch.rand(3, 1, 1, 1, dtype=torch.float64, generator=generator(1))
    torch.testing.assert_close(blend(Blend.ADD, h, s, alpha), (1 - alpha) * h + alpha * s)
    torch.testing.assert_close(blend(Blend.MULTIPLY, h, s, alpha), h * (1 + alpha * torch.tanh(s - h)))
    torch.testing.assert_close(blend(Blend.GATE, h, s, alpha, g), h + alpha * g * (s - h))


@pytest.mark.parametrize("kind", Blend)
def test_blend_at_alpha_zero_is_exactly_the_host(kind: Blend) -> None:
    h, s = two()
    assert torch.equal(blend(kind, h, s, 0.0, torch.ones(3, 1, 1, 1)), h)


@pytest.mark.parametrize("kind", Blend)
def test_alpha_in_a_tensor_has_the_bits_of_a_number(kind: Blend) -> None:
    """A tensor of 1 is not taken for the number, which has other operators."""
    values, gate = torch.randn(2, 3, 4, 5, 6, generator=generator()), torch.rand(3, 1, 1, 1, generator=generator())
    for alpha in (1 / 3, 0.7, 1.0):
        results: list[list[torch.Tensor]] = []
        for given_alpha in (alpha, torch.tensor(alpha)):
            host, seed = (value.clone().requires_grad_() for value in values)
            mixed = blend(kind, host, seed, given_alpha, gate)
            results.append([mixed, *torch.autograd.grad(mixed.square().sum(), [host, seed], materialize_grads=True)])
        number, tensor = results
        if alpha == 1.0 and kind is Blend.ADD:
            torch.testing.assert_close(tensor[0], number[0])
            continue
        assert all(map(torch.equal, tensor, number))


def test_add_blend_at_alpha_one_is_exactly_the_seed() -> None:
    h, s = two()
    h *= 1e6  # so that h + (s − h) is not s
    assert torch.equal(blend(Blend.ADD, h, s, 1.0), s)


def test_blend_gate_is_computed_per_sample() -> None:
    gate = BlendGate(4)
    with torch.no_grad():
        gate.out.weight.copy_(torch.randn(gate.out.weight.shape, generator=generator(5)))
    x = torch.randn(SHAPE, generator=generator(3))
    together = gate(x)
    assert together.shape == (3, 1, 1, 1)
    assert torch.all((together > 0) & (together < 1))
    torch.testing.assert_close(together[1:2], gate(x[1:2]))
    assert together.std() > 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 0.1])
def test_straight_through_keeps_host_value_and_both_gradients(poison: float) -> None:
    h, s = two()
    h.requires_grad_()
    s = torch.full_like(s, poison).requires_grad_()
    weights = torch.randn(SHAPE, dtype=torch.float64, generator=generator(4))
    value = straight_through(h, s)
    assert torch.equal(value, h)
    (value * weights).sum().backward()
    assert h.grad is not None
    assert s.grad is not None
    assert torch.equal(h.grad, weights)
    assert torch.equal(s.grad, weights)


def test_blend_style_names_match_events() -> None:
    assert [style.name for style in BLEND_STYLES] == ["linear_add", "linear_multiply", "sigmoid_add", "linear_gate"]
