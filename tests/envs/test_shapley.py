"""Estimated Shapley values compared with exact ones and with closed forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.envs.shapley import estimate_shapley_values, shapley_values


def random_scores(seeds: int) -> Tensor:
    """Return a random score of every subset, [2^n]: effects of all orders."""
    return torch.rand(2**seeds, generator=torch.Generator().manual_seed(seeds), dtype=torch.float64)


def estimate(score_of: Callable[[int], Tensor], seeds: int, pairs: int) -> tuple[Tensor, Tensor]:
    values, errors = estimate_shapley_values(score_of, seeds, pairs, torch.Generator().manual_seed(0)).unbind(dim=1)
    return values, errors


@pytest.mark.parametrize("seeds", range(1, 7))
def test_estimates_agree_with_exact_values_within_their_standard_error(seeds: int) -> None:
    scores = random_scores(seeds)
    values, errors = estimate(lambda subset: scores[subset], seeds, pairs=400)
    assert ((values - shapley_values(scores)).abs() <= 4 * errors + 1e-12).all()
    assert errors.max() < 0.02  # or the comparison above would show nothing


def test_standard_error_is_the_spread_of_the_estimates() -> None:
    scores, generator = random_scores(5), torch.Generator().manual_seed(1)
    runs = [estimate_shapley_values(lambda subset: scores[subset], 5, 20, generator) for _ in range(300)]
    values, errors = torch.stack(runs).unbind(dim=2)
    torch.testing.assert_close(errors.square().mean(dim=0).sqrt(), values.std(dim=0), rtol=0.2, atol=0)


@given(seeds=st.integers(1, 10), pairs=st.integers(2, 5))
def test_estimates_sum_to_all_minus_none(seeds: int, pairs: int) -> None:
    scores = random_scores(seeds)
    values, _ = estimate(lambda subset: scores[subset], seeds, pairs)
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
    values, errors = estimate(score_of, seeds, pairs=2)
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-12)
    assert errors.max() < 1e-12


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


@pytest.mark.parametrize(("seeds", "pairs"), [(0, 2), (3, 1)])
def test_no_seed_or_a_single_pair_is_refused(seeds: int, pairs: int) -> None:
    with pytest.raises(ValueError, match=f"not {seeds} and {pairs}"):
        estimate_shapley_values(lambda _: torch.zeros(()), seeds, pairs, torch.Generator())
