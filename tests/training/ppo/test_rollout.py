"""The running mean and variance, compared with exact values."""

import pytest
import torch

from esper.training.policy.observation import BASE_FEATURES, ObservationShape
from esper.training.ppo.normaliser import ObservationNormaliser, RunningMeanStd, normalise


def batches(count: int, features: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scale, shift = torch.tensor([1.0, 10.0, 0.1]), torch.tensor([0.0, -5.0, 100.0])
    return [torch.randn(4, 10, features, generator=generator) * scale + shift + step for step in range(count)]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_normaliser_averages_first_batches_evenly(count: int) -> None:
    """Up to 1 / (1 − momentum) batches, the result is the mean and variance of all rows so far."""
    running = RunningMeanStd(3, momentum=0.9)
    seen = batches(count)
    for batch in seen:
        running.update(batch)
    rows = torch.cat(seen).reshape(-1, 3)
    torch.testing.assert_close(running.mean, rows.mean(0))
    torch.testing.assert_close(running.var, rows.var(0, unbiased=False), rtol=1e-4, atol=1e-4)


def test_normaliser_decays_later_batches_exponentially() -> None:
    running, momentum = RunningMeanStd(1, momentum=0.5), 0.5
    for value in (0.0, 4.0):
        running.update(torch.full((5, 1), value))
    mean, var = 2.0, 4.0  # two batches, evenly weighted
    for value in (10.0, -6.0, 1.0):
        running.update(torch.full((5, 1), value))
        var = momentum * var + momentum * (1 - momentum) * (value - mean) ** 2
        mean = momentum * mean + (1 - momentum) * value
    assert running.mean.item() == pytest.approx(mean)
    assert running.var.item() == pytest.approx(var)


def test_normaliser_is_invertible() -> None:
    running = RunningMeanStd(3)
    for batch in batches(3):
        running.update(batch)
    values = batches(4)[-1]
    once = normalise(values, running.mean, running.divisor, limit=100.0)
    torch.testing.assert_close(running.denormalise(once), values)


def test_normalised_data_has_mean_zero_and_deviation_one() -> None:
    running = RunningMeanStd(3)
    (batch,) = batches(1)
    running.update(batch)
    normal = normalise(batch, running.mean, running.divisor).reshape(-1, 3)
    torch.testing.assert_close(normal.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normal.std(0, unbiased=False), torch.ones(3), atol=1e-4, rtol=0)


def test_constant_feature_is_ignored_and_outliers_are_clamped() -> None:
    running = RunningMeanStd(2)
    running.update(torch.tensor([[3.0, 0.0], [3.0, 2.0]]))
    normal = normalise(torch.tensor([[3.5, 500.0]]), running.mean, running.divisor)
    assert normal.tolist() == [[0.0, 10.0]]


def test_observations_are_normalised_by_part_and_absent_slots_stay_zero() -> None:
    shape = ObservationShape(slots=3, blueprints=2)
    obs = torch.randn(40, shape.size, generator=torch.Generator().manual_seed(0)) * 3 + 5
    for part in shape.split(obs)[1:]:
        part[..., 0] = 1.0
        part[:, 2] = 0.0
    original, loaded = ObservationNormaliser(shape), ObservationNormaliser(shape)
    original.update(obs)
    loaded.load_state_dict(original.state_dict())
    normal = loaded.normalise(obs)
    assert torch.equal(normal, original.normalise(obs))
    base, slots, blueprints = shape.split(normal)
    torch.testing.assert_close(base.mean(0), torch.zeros(BASE_FEATURES), atol=1e-4, rtol=0)
    for part in (slots, blueprints):
        assert torch.equal(part[:, :2, ..., 0], torch.ones_like(part[:, :2, ..., 0]))
        rows = part[:, :2, ..., 1:].flatten(0, -2)
        torch.testing.assert_close(rows.std(0, unbiased=False), torch.ones(rows.shape[-1]), atol=1e-3, rtol=0)
        assert not part[:, 2].any()
