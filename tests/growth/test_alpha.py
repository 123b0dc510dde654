import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.growth.alpha import AlphaSchedule, Curve

SIGMOIDS = [(Curve.SIGMOID_GENTLE, 6.0), (Curve.SIGMOID, 12.0), (Curve.SIGMOID_SHARP, 24.0)]


@pytest.mark.parametrize("curve", Curve)
def test_curves_rise_from_exactly_zero_to_exactly_one(curve: Curve) -> None:
    heights = [curve.at(i / 100) for i in range(101)]
    assert heights[0] == 0.0
    assert heights[-1] == 1.0
    assert heights == sorted(heights)
    assert curve.at(0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(("curve", "steepness"), SIGMOIDS)
@given(t=st.floats(0, 1))
def test_sigmoid_is_the_scaled_logistic(curve: Curve, steepness: float, t: float) -> None:
    def logistic(u: float) -> float:
        return 1.0 / (1.0 + math.exp(-steepness * (u - 0.5)))

    expected = (logistic(t) - logistic(0.0)) / (logistic(1.0) - logistic(0.0))
    assert curve.at(t) == pytest.approx(expected, abs=1e-12)


def test_cosine_against_its_formula() -> None:
    assert Curve.COSINE.at(0.25) == pytest.approx((1 - math.cos(math.pi / 4)) / 2)


@given(start=st.floats(0, 1), target=st.floats(0, 1), steps=st.integers(0, 10), curve=st.sampled_from(Curve))
def test_ramp_starts_at_its_start_and_snaps_to_its_target(
    start: float, target: float, steps: int, curve: Curve
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


@pytest.mark.parametrize("bad", [{"target": 1.5}, {"start": -0.1}, {"steps": -1}])
def test_impossible_ramps_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"alpha must stay|cannot take -1 epochs"):
        AlphaSchedule(**({"start": 0.0, "target": 1.0, "steps": 3, "curve": Curve.LINEAR} | bad))  # type: ignore[arg-type]
