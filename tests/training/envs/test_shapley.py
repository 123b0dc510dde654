"""Estimated Shapley values compared with exact ones and with closed forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.training.envs.shapley import estimate_shapley_values, shapley_values


def random_scores(seeds: int) -> Tensor:
    """Return a random score of every subset, [2^n]: effects of all orders."""
    return torch.rand(2**seeds, generator=torch.Generator().manual_seed(seeds), dtype=torch.float64)


def estimate(score_of: Callable[[int], Tensor], seeds: int, pairs: int) -> Tensor:
    return estimate_shapley_values(score_of, seeds, pairs, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seeds", range(1, 7))
def test_estimates_agree_with_exact_values_within_four_standard_errors(seeds: int) -> None:
    scores, generator = random_scores(seeds), torch.Generator().manual_seed(1)
    runs = torch.stack(
        [estimate_shapley_values(lambda subset: scores[subset], seeds, 20, generator) for _ in range(20)]
    )
    errors = runs.std(dim=0) / len(runs) ** 0.5
    assert ((runs.mean(dim=0) - shapley_values(scores)).abs() <= 4 * errors + 1e-12).all()
    assert errors.max() < 0.02  # or the comparison above would show nothing


@given(seeds=st.integers(1, 10), pairs=st.integers(2, 5))
def test_estimates_sum_to_all_minus_none(seeds: int, pairs: int) -> None:
    scores = random_scores(seeds)
    values = estimate(lambda subset: scores[subset], seeds, pairs)
    torch.testing.assert_close(values.sum(), scores[0] - scores[-1], rtol=0, atol=1e-12)


def test_effects_of_pairs_have_no_sampling_error() -> None:
    """A seed has its own effect and half of its effect with each other seed, in every antithetic pair of orders."""
    seeds, generator = 12, torch.Generator().manual_seed(2)
    effects = torch.randn(seeds, seeds, generator=generator, dtype=torch.float64).triu()

    def score_of(subset: int) -> Tensor:
        on = torch.tensor([1.0 - (subset >> seed & 1) for seed in range(seeds)], dtype=torch.float64)
        return on @ effects @ on

    between = effects.triu(diagonal=1)
    expected = effects.diagonal() + (between.sum(dim=0) + between.sum(dim=1)) / 2
    torch.testing.assert_close(estimate(score_of, seeds, pairs=1), expected, rtol=0, atol=1e-12)


def test_each_subset_is_measured_once_and_the_generator_decides() -> None:
    measured: list[int] = []

    def score_of(subset: int) -> Tensor:
        measured.append(subset)
        return torch.tensor(float(subset % 7))

    seeds, pairs = 8, 6
    first = estimate_shapley_values(score_of, seeds, pairs, torch.Generator().manual_seed(3))
    assert first.dtype is torch.float32
    assert len(measured) == len(set(measured)) <= 2 * pairs * (seeds - 1) + 2
    again = estimate_shapley_values(score_of, seeds, pairs, torch.Generator().manual_seed(3))
    other = estimate_shapley_values(score_of, seeds, pairs, torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
