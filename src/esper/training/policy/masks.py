"""Masks of legal actions, and distributions over them.

An op whose gate would refuse is illegal, so that no step is wasted on it. WAIT is always legal.

Shapes: E envs, O ops, S slots, Y styles, A actions of one head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.common.domain import Op
from esper.networks.seeds.blend import BLEND_STYLES, Blend
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.slot import Slot
from esper.training.policy.actions import Action, head_sizes
from esper.training.policy.agent import EnvStatus
from esper.training.policy.sites import index_arrays, stack_by_sites


class ActionMasks(NamedTuple):
    """Bool masks of legal actions. All choices of the heads without a mask are legal. B blueprints."""

    op_EO: Tensor
    """Ops that are legal in any slot."""
    slot_EOS: Tensor
    """Legal slots of each op. All slots of an env are legal for WAIT, which uses none."""
    blueprint_ESB: Tensor
    """Blueprints that each slot offers."""
    style_ESY: Tensor
    """Legal styles of each slot: of GERMINATE if it is empty, of SET_ALPHA if it has a seed."""

    @classmethod
    def empty(cls, *lead: int, slots: int, blueprints: int) -> ActionMasks:
        """Return masks with leading dimensions `lead` in which every action is illegal."""
        return cls(
            torch.zeros(*lead, len(Op), dtype=torch.bool),
            torch.zeros(*lead, len(Op), slots, dtype=torch.bool),
            torch.zeros(*lead, slots, blueprints, dtype=torch.bool),
            torch.zeros(*lead, slots, len(BLEND_STYLES), dtype=torch.bool),
        )

    def given(self, op: Tensor, slot: Tensor) -> Tensor:
        """Return the legal choices of each head [..., H, A], given the choices [...] of op and slot.

        The choices of a head are the first of its row. The rest of the row is illegal: A is the largest number of
        choices of a head.
        """
        sizes = head_sizes(self.slot_EOS.shape[-1], self.blueprint_ESB.shape[-1])
        exists_HA = torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(-1)
        legal_HA = exists_HA.to(op.device).repeat(*op.shape, 1, 1)
        masked = (self.op_EO, *(gather_rows(*pair) for pair in zip(self[1:], (op, slot, slot), strict=True)))
        for head, legal_A in enumerate(masked):
            legal_HA[..., head, : legal_A.shape[-1]] = legal_A
        return legal_HA

    def at_step(self, step: int) -> ActionMasks:
        """Return views of one step, for masks with leading dimensions [E, T]."""
        return ActionMasks(*(mask[:, step] for mask in self))


_STYLES_OF_SEED = [tuple((blend is Blend.GATE) == gated for _, blend in BLEND_STYLES) for gated in (False, True)]
"""Styles that SET_ALPHA can give to a seed: without a blend gate, with one."""


def legal_ops(slot: Slot) -> tuple[bool, ...]:
    """Return, for each op in the order of `Op`, True if it is legal in this slot."""
    if slot.blueprint is None:
        return (True, slot.can_germinate, False, False, False, False)
    return (True, False, slot.can_advance, slot.can_set_alpha, slot.can_cull, slot.can_fossilize)


def legal_styles(slot: Slot) -> tuple[bool, ...]:
    """Return, for each style, True if a new seed of an empty slot can have it, or if SET_ALPHA can give it to the seed.

    A change to or from GATE is illegal, because the blend gate is created at germination.
    """
    return slot.site.styles if slot.blueprint is None else _STYLES_OF_SEED[slot.blend is Blend.GATE]


def is_legal(action: Action, slots: Sequence[Slot], blueprints: Sequence[str]) -> bool:
    """Return True if the masks allow an action.

    Args:
        blueprints: Blueprints that the policy can select, in the order of the head.
    """
    op = Op(action.op)
    if op is Op.WAIT:
        return True
    if action.slot >= len(slots):
        return False
    slot = slots[action.slot]
    if not legal_ops(slot)[op] or (op is Op.GERMINATE and blueprints[action.blueprint] not in slot.site.blueprints):
        return False
    return op not in (Op.GERMINATE, Op.SET_ALPHA) or legal_styles(slot)[action.style]


def write_masks(views: Sequence[EnvStatus], out: ActionMasks, blueprints: tuple[str, ...]) -> None:
    """Write the masks of every env into `out`, in place, which is on the CPU.

    Args:
        views: State of each env. An env can have fewer slots than the masks; the others are illegal.
        blueprints: Blueprints that the policy can select, in the order of the head.
    """
    # These arrays share the memory of the tensors.
    slot_EOS, blueprint_ESB, style_ESY = (mask.numpy() for mask in (out.slot_EOS, out.blueprint_ESB, out.style_ESY))
    blueprint_ESB[...], style_ESY[...] = stack_by_sites(
        views, lambda sites, _: _site_masks(sites, slot_EOS.shape[-1], blueprints)
    )
    slot_EOS[...] = False
    rows = [(env, index) for env, view in enumerate(views) for index in range(len(view.slots))]
    slot_EOS.swapaxes(1, 2)[index_arrays(rows)] = [legal_ops(slot) for view in views for slot in view.slots]
    seeds = [(env, index) for env, index in rows if views[env].slots[index].blueprint is not None]
    if seeds:
        style_ESY[index_arrays(seeds)] = [legal_styles(views[env].slots[index]) for env, index in seeds]
    torch.any(out.slot_EOS, dim=-1, out=out.op_EO)


@lru_cache(1024)
def _site_masks(
    sites: tuple[SlotSite, ...], slots: int, blueprints: tuple[str, ...]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the blueprints that each slot offers, [S, B], and the styles of new seeds, [S, Y]."""
    offered_SB = np.zeros((slots, len(blueprints)), dtype=np.bool_)
    style_SY = np.zeros((slots, len(BLEND_STYLES)), dtype=np.bool_)
    for row, site in enumerate(sites):
        offered_SB[row] = [name in site.blueprints for name in blueprints]
        style_SY[row] = site.styles
    return offered_SB, style_SY


MIN_P = 0.1
"""Minimum probability of an action relative to the most probable one; see `min_p_filter`."""

validate_masks = False
"""Check that every row of a mask has a legal action. On in tests only, because the check synchronises the device."""


def masked_log_probs(logits_A: Tensor, legal_A: Tensor) -> Tensor:
    """Return the log-probabilities [..., A] of the legal actions; illegal ones get the minimum float32.

    Args:
        logits_A: [..., A] of any floating dtype; converted to float32 before masking.
        legal_A: [..., A] bool.

    Raises:
        ValueError: `validate_masks` is True and a row has no legal action.
    """
    if validate_masks and not bool(legal_A.any(dim=-1).all()):
        raise ValueError("a mask has no legal action")
    floor = torch.finfo(torch.float32).min
    log_probs_A = torch.log_softmax(logits_A.float().masked_fill(~legal_A, floor), dim=-1)
    return log_probs_A.masked_fill(~legal_A, floor)


def entropy(log_probs_A: Tensor, legal_A: Tensor) -> Tensor:
    """Return the entropy [...] over the legal actions, in nats."""
    safe_A = log_probs_A.masked_fill(~legal_A, 0.0)
    return -(safe_A.exp() * safe_A * legal_A).sum(dim=-1)


def normalised_entropy(log_probs_A: Tensor, legal_A: Tensor) -> Tensor:
    """Return the entropy [...] divided by log(number of legal actions), 0 to 1; 0 with a single legal action."""
    count = legal_A.sum(dim=-1)
    return entropy(log_probs_A, legal_A) / count.clamp(min=2).float().log()


def exploration_bonus(log_probs_A: Tensor, prior_A: Tensor, legal_A: Tensor) -> Tensor:
    """Return 1 minus the divergence from a prior, KL(π ‖ prior) / log(number of legal actions), [...].

    It is at most 1, and negative far from the prior. With a uniform prior and two or more legal actions, it is
    `normalised_entropy`.

    Args:
        log_probs_A: [..., A] log-probabilities of the policy π, from `masked_log_probs`.
        prior_A: [..., A] log-probabilities of the prior.
        legal_A: [..., A] bool.
    """
    difference_A = (log_probs_A - prior_A).masked_fill(~legal_A, 0.0)
    divergence = (log_probs_A.exp() * difference_A).sum(dim=-1)
    return 1 - divergence / legal_A.sum(dim=-1).clamp(min=2).float().log()


def sample(log_probs_A: Tensor, uniform: Tensor) -> Tensor:
    """Sample actions by inverting the cumulative distribution function.

    The uniform numbers are an argument, so that a decision depends only on its own env's numbers and not on the other
    envs of the batch.

    Args:
        log_probs_A: [..., A] from `masked_log_probs`.
        uniform: [...] uniform random numbers in [0, 1).

    Returns:
        [...] int64, indices of legal actions.
    """
    probs_A = log_probs_A.exp()
    drawn = (probs_A.cumsum(dim=-1) <= uniform.unsqueeze(-1)).sum(dim=-1)
    # Rounding can leave the last sum slightly below 1; numbers above it select the last legal action.
    last = probs_A.shape[-1] - 1 - (probs_A > 0).flip(-1).to(torch.int8).argmax(dim=-1)
    return torch.minimum(drawn, last)


def min_p_filter(log_probs_A: Tensor) -> Tensor:
    """Drop actions less than `MIN_P` times as probable as the most probable one (min-p; Nguyen et al., 2025).

    Args:
        log_probs_A: [..., A] from `masked_log_probs`.

    Returns:
        [..., A] normalised log-probabilities, in which dropped actions are illegal.
    """
    minimum = log_probs_A.max(dim=-1, keepdim=True).values + math.log(MIN_P)
    return masked_log_probs(log_probs_A, log_probs_A >= minimum)


def log_prob_of(log_probs_A: Tensor, action: Tensor) -> Tensor:
    """Return the log-probabilities [...] of the given actions [...]."""
    return log_probs_A.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def gather_rows(table_NA: Tensor, index: Tensor) -> Tensor:
    """Return row `index` [...] of each table [..., N, A], as [..., A]."""
    rows = index[..., None, None].expand(*index.shape, 1, table_NA.shape[-1])
    return table_NA.gather(-2, rows).squeeze(-2)
