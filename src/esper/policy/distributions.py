"""Masked categorical distributions, in float32.

Illegal logits become `finfo(float32).min`, not −inf: with −inf the entropy, and with a guarded entropy its gradient,
is NaN. Where a single action is legal its log-probability is exactly 0 and so is the entropy.

Shapes: … any leading dimensions, A actions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LIKELY = 0.1
"""Share of the greatest probability below which an action is only tried now and then."""

validate = False
"""Check that every mask leaves a choice. On in tests; off in the hot path, where it would synchronise a device."""


def masked_log_probs(logits_A: Tensor, legal_A: Tensor) -> Tensor:
    """Log-probabilities over the legal actions; those of illegal ones are the most negative float32.

    Args:
        logits_A: [..., A], of any floating dtype; upcast before masking.
        legal_A: [..., A] bool.

    Raises:
        ValueError: `validate` is on and some row has no legal action.
    """
    if validate and not bool(legal_A.any(dim=-1).all()):
        raise ValueError("a mask leaves no legal action")
    floor = torch.finfo(torch.float32).min
    log_probs_A = torch.log_softmax(logits_A.float().masked_fill(~legal_A, floor), dim=-1)
    return log_probs_A.masked_fill(~legal_A, floor)


def entropy(log_probs_A: Tensor, legal_A: Tensor) -> Tensor:
    """Entropy in nats over the legal actions, [...]."""
    safe_A = log_probs_A.masked_fill(~legal_A, 0.0)
    return -(safe_A.exp() * safe_A * legal_A).sum(dim=-1)


def normalised_entropy(log_probs_A: Tensor, legal_A: Tensor) -> Tensor:
    """Entropy over log(number of legal actions), in [0, 1]; 0 where there is no choice."""
    count = legal_A.sum(dim=-1)
    return entropy(log_probs_A, legal_A) / count.clamp(min=2).float().log()


def sample(log_probs_A: Tensor, uniform: Tensor) -> Tensor:
    """Draw by inverting the distribution function.

    The uniform numbers are an argument, so that a decision depends on its own env's numbers only, however many envs
    are in the batch.

    Args:
        log_probs_A: [..., A] from `masked_log_probs`.
        uniform: [...] in [0, 1).

    Returns:
        [...] int64; never an illegal action.
    """
    probs_A = log_probs_A.exp()
    drawn = (probs_A.cumsum(dim=-1) <= uniform.unsqueeze(-1)).sum(dim=-1)
    # Rounding can leave the last sum a little under 1: the last legal action takes what is above it.
    last = probs_A.shape[-1] - 1 - (probs_A > 0).flip(-1).to(torch.int8).argmax(dim=-1)
    return torch.minimum(drawn, last)


def likely(log_probs_A: Tensor) -> Tensor:
    """The same distribution without what is tried only now and then: min-p sampling (Nguyen et al., 2025).

    Args:
        log_probs_A: [..., A] from `masked_log_probs`.

    Returns:
        [..., A], as from `masked_log_probs` with the rest illegal.
    """
    least = log_probs_A.max(dim=-1, keepdim=True).values + math.log(LIKELY)
    return masked_log_probs(log_probs_A, log_probs_A >= least)


def log_prob_of(log_probs_A: Tensor, action: Tensor) -> Tensor:
    """Log-probability of the given actions, [...]."""
    return log_probs_A.gather(-1, action.unsqueeze(-1)).squeeze(-1)
