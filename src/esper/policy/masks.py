"""Which actions are legal. An op whose gate would refuse is illegal, so that no step is wasted on it; WAIT always is.

Shapes: E envs, O ops, S slots, Y styles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from esper.domain import Op
from esper.growth.blend import BLEND_STYLES, Blend
from esper.growth.slot import Slot
from esper.policy.agent import EnvStatus


class ActionMasks(NamedTuple):
    """True where legal. The remaining heads are always free."""

    op_EO: Tensor
    slot_EOS: Tensor
    """Slots that each op may be applied to. The row of WAIT is all true: the slot is not used."""
    style_ESY: Tensor
    """Styles that SET_ALPHA may give to the seed of each slot; GERMINATE may use all."""

    @classmethod
    def empty(cls, *lead: int, slots: int) -> ActionMasks:
        """All illegal, with leading dimensions `lead`."""
        return cls(
            torch.zeros(*lead, len(Op), dtype=torch.bool),
            torch.zeros(*lead, len(Op), slots, dtype=torch.bool),
            torch.zeros(*lead, slots, len(BLEND_STYLES), dtype=torch.bool),
        )

    def at_step(self, step: int) -> ActionMasks:
        """Views of one step of masks with leading dimensions [E, T]."""
        return ActionMasks(*(mask[:, step] for mask in self))


def legal_ops(slot: Slot) -> tuple[bool, ...]:
    """For each op, whether it may be applied to this slot now."""
    return (
        True,
        slot.can_germinate,
        slot.can_advance,
        slot.can_set_alpha,
        slot.can_cull,
        slot.can_fossilize,
    )


def legal_styles(slot: Slot) -> tuple[bool, ...]:
    """For each style, whether SET_ALPHA may give it to this slot's seed: a gate exists only from germination on."""
    gated = slot.blend is Blend.GATE
    return tuple((blend is Blend.GATE) == gated for _, blend in BLEND_STYLES)


def write_masks(views: Sequence[EnvStatus], out: ActionMasks) -> None:
    """Fill preallocated masks from the live slots of every env."""
    slot_ESO = torch.tensor([[legal_ops(slot) for slot in view.slots] for view in views])
    out.slot_EOS.copy_(slot_ESO.transpose(1, 2))
    out.op_EO.copy_(out.slot_EOS.any(dim=-1))
    out.style_ESY.copy_(torch.tensor([[legal_styles(slot) for slot in view.slots] for view in views]))


MIN_P = 0.1
"""Share of the greatest probability below which an action is only tried now and then."""

validate_masks = False
"""Check that every mask leaves a choice. On in tests; off in the hot path, where it would synchronise a device."""


def masked_log_probs(logits_A: Tensor, legal_A: Tensor) -> Tensor:
    """Log-probabilities over the legal actions; those of illegal ones are the most negative float32.

    Args:
        logits_A: [..., A], of any floating dtype; upcast before masking.
        legal_A: [..., A] bool.

    Raises:
        ValueError: `validate` is on and some row has no legal action.
    """
    if validate_masks and not bool(legal_A.any(dim=-1).all()):
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


def min_p_filter(log_probs_A: Tensor) -> Tensor:
    """The same distribution without what is tried only now and then: min-p sampling (Nguyen et al., 2025).

    Args:
        log_probs_A: [..., A] from `masked_log_probs`.

    Returns:
        [..., A], as from `masked_log_probs` with the rest illegal.
    """
    least = log_probs_A.max(dim=-1, keepdim=True).values + math.log(MIN_P)
    return masked_log_probs(log_probs_A, log_probs_A >= least)


def log_prob_of(log_probs_A: Tensor, action: Tensor) -> Tensor:
    """Log-probability of the given actions, [...]."""
    return log_probs_A.gather(-1, action.unsqueeze(-1)).squeeze(-1)
