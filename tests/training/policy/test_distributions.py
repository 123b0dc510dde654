"""Masked distributions, compared with torch.distributions in float64, and their edge cases."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from esper.training.policy import masks


@st.composite
def logits_and_masks(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    actions = draw(st.integers(1, 7))
    logits = draw(st.lists(st.floats(-20, 20), min_size=actions, max_size=actions))
    legal = draw(st.lists(st.booleans(), min_size=actions, max_size=actions).filter(any))
    return torch.tensor(logits), torch.tensor(legal)


@given(logits_and_masks())
def test_log_probs_and_entropy_equal_torch_on_legal_actions(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, legal = case
    log_probs = masks.masked_log_probs(logits, legal)
    reference = Categorical(logits=logits[legal].double())
    assert torch.allclose(log_probs[legal].double(), reference.logits, atol=1e-5)
    assert torch.allclose(masks.entropy(log_probs, legal).double(), reference.entropy(), atol=1e-5)


@given(logits_and_masks(), st.floats(0, 1, exclude_max=True))
def test_samples_are_always_legal(case: tuple[torch.Tensor, torch.Tensor], uniform: float) -> None:
    logits, legal = case
    log_probs = masks.masked_log_probs(logits, legal)
    assert legal[masks.sample(log_probs, torch.tensor(uniform))]


def test_samples_follow_the_probabilities() -> None:
    log_probs = masks.masked_log_probs(torch.tensor([1.0, 9.0, 0.0, 2.0]), torch.tensor([True, False, True, True]))
    uniform = (torch.arange(10_000) + 0.5) / 10_000
    drawn = masks.sample(log_probs.expand(10_000, 4), uniform)
    assert torch.allclose(torch.bincount(drawn, minlength=4) / 10_000, log_probs.exp(), atol=2e-4)


@given(logits_and_masks())
def test_min_p_keeps_odds_and_drops_unlikely_actions(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, legal = case
    log_probs = masks.masked_log_probs(logits, legal)
    probs, likely = log_probs.exp(), masks.min_p_filter(log_probs).exp()
    kept = probs >= masks.MIN_P * probs.max()
    assert torch.allclose(likely, torch.where(kept, probs, 0.0) / probs[kept].sum(), atol=1e-5)
    assert not likely[~legal].any()


@given(logits_and_masks())
def test_gradients_are_finite_with_few_legal_actions(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, legal = case
    logits = logits.requires_grad_()
    log_probs = masks.masked_log_probs(logits, legal)
    action = legal.int().argmax()
    (masks.log_prob_of(log_probs, action) + masks.normalised_entropy(log_probs, legal)).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@given(logits_and_masks(), st.lists(st.floats(-5, 5), min_size=7, max_size=7))
def test_exploration_bonus_is_the_divergence_from_the_prior(
    case: tuple[torch.Tensor, torch.Tensor], prior: list[float]
) -> None:
    logits, legal = case
    of_prior = torch.tensor(prior[: len(logits)])
    found = masks.exploration_bonus(
        masks.masked_log_probs(logits, legal), masks.masked_log_probs(of_prior, legal), legal
    )
    both = (Categorical(logits=of[legal].double()) for of in (logits, of_prior))
    assert found.item() == pytest.approx(1 - kl_divergence(*both).item() / math.log(max(legal.sum(), 2)), abs=1e-4)


@given(logits_and_masks().filter(lambda case: case[1].sum() > 1))
def test_exploration_bonus_with_a_uniform_prior_is_the_entropy(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, legal = case
    log_probs = masks.masked_log_probs(logits, legal)
    bonus = masks.exploration_bonus(log_probs, masks.masked_log_probs(torch.zeros_like(logits), legal), legal)
    assert bonus.item() == pytest.approx(masks.normalised_entropy(log_probs, legal).item(), abs=1e-4)


def test_single_legal_action_has_probability_one() -> None:
    legal = torch.tensor([False, True, False])
    log_probs = masks.masked_log_probs(torch.randn(3), legal)
    assert log_probs[1] == 0.0
    assert masks.normalised_entropy(log_probs, legal) == 0.0


def test_uniform_distribution_has_normalised_entropy_one() -> None:
    legal = torch.tensor([True, True, False, True])
    log_probs = masks.masked_log_probs(torch.zeros(4), legal)
    assert math.isclose(masks.normalised_entropy(log_probs, legal).item(), 1.0, abs_tol=1e-6)


def test_half_precision_logits_are_upcast_before_masking() -> None:
    logits = torch.randn(5, dtype=torch.float16)
    log_probs = masks.masked_log_probs(logits, torch.ones(5, dtype=torch.bool))
    assert log_probs.dtype is torch.float32
    assert torch.equal(log_probs, torch.log_softmax(logits.float(), dim=-1))


def test_mask_without_a_legal_action_is_refused() -> None:
    with pytest.raises(ValueError, match="no legal action"):
        masks.masked_log_probs(torch.zeros(2, 3), torch.tensor([[True, False, True], [False, False, False]]))
