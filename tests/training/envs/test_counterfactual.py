"""Dependences and Shapley values, compared with their definitions and measured in an env."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.training.envs.counterfactual import ablation_dependences
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.shapley import shapley_values
from tests.training.engine.populations import play, population

STEPS = 8
worths = st.integers(0, 4).flatmap(
    lambda seeds: st.lists(st.floats(0, 1), min_size=2**seeds, max_size=2**seeds).map(
        lambda values: torch.tensor(values, dtype=torch.float64)
    )
)


def by_orders(worth: Sequence[float]) -> list[float]:
    """Return the mean gain of each seed over all orders of switching the seeds on (the definition)."""
    seeds = (len(worth) - 1).bit_length()
    totals = [0.0] * seeds
    orders = list(itertools.permutations(range(seeds)))
    for order in orders:
        off = len(worth) - 1
        for seed in order:
            on = off & ~(1 << seed)
            totals[seed] += worth[on] - worth[off]
            off = on
    return [total / len(orders) for total in totals]


@given(worths)
def test_shapley_values_are_mean_gains_over_all_orders(worth: torch.Tensor) -> None:
    assert shapley_values(worth).tolist() == pytest.approx(by_orders(worth.tolist()), abs=1e-12)


def test_dependence_and_its_se_have_their_closed_form() -> None:
    all_on = torch.tensor([1.0, 1.0, 1.0, 0.0])
    one_off = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    found = ablation_dependences(all_on, one_off)
    # Gains 0, 1, 1, −1: mean ¼, variance 3/4 − 1/16.
    assert found[0].tolist() == pytest.approx([0.25, math.sqrt((3 / 4 - 1 / 16) / 4)])
    assert found[1].tolist() == [0.0, 0.0]


def episode(mode: str) -> list[EpochResult]:
    """Run an episode that ends with a blended seed in every slot."""
    with population(envs=1, counterfactual=mode, steps=STEPS) as pool:
        (measured,) = play(pool, 0, STEPS)
        return measured


def test_shapley_is_measured_at_episode_end_without_effects() -> None:
    ablated, valued = episode("ablation"), episode("shapley")
    assert not any(measured.shapley for measured in ablated)
    assert not any(measured.shapley for measured in valued[:-1])
    last = valued[-1]
    assert len(last.shapley) >= 2
    assert set(last.shapley) == set(last.dependences)
    for one, other in zip(ablated, valued, strict=True):
        assert one.score == other.score
        assert one.dependences.keys() == other.dependences.keys()
        for slot, pair in one.dependences.items():
            assert other.dependences[slot] == pytest.approx(pair, abs=1e-6)


def test_shapley_values_of_an_env_sum_to_its_gain() -> None:
    with population(envs=1, counterfactual="shapley", steps=STEPS) as pool:
        play(pool, 0, STEPS - 1)
        env = pool.envs[0]
        values = env.validate(last=True).tolist()
        count = len(env.measured_slots())
        assert count >= 2
        network = env.network.eval()
        with torch.no_grad():
            logits = network(env.splits.validation[0], [0.0] * len(network.slots))
        bare = (logits.argmax(dim=-1) == env.splits.validation[1]).float().mean().item()
        assert sum(values[2 + 2 * count :]) == pytest.approx(values[1] - bare, abs=1e-6)


def test_counterfactual_off_trains_the_same() -> None:
    measured = episode("off")
    assert not any(epoch.dependences or epoch.shapley for epoch in measured)
    with population(envs=1, counterfactual="off", steps=STEPS) as pool:
        play(pool, 0, STEPS)
        assert all(slot.dependence is None for slot in pool.envs[0].network.slots)
        assert any(slot.stage.is_blended for slot in pool.envs[0].network.slots)
