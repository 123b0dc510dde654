"""The PPO loss over factored heads (Schulman et al., 2017), and its reduction over ranks.

Each head that an op uses has its own ratio and its own clipped surrogate; at ratio 1, the gradient of their sum is that
of the joint log-probability. Invalid steps are excluded from every term.

Shapes: E envs, T steps, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from esper.common.system.ranks import RankGroup
from esper.training.policy.network import ActionEvaluation
from esper.training.ppo.rollout import SequenceBatch


class PPOLoss(NamedTuple):
    """Terms of the loss and statistics for telemetry. All are scalar tensors except the last two, which are [H]."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    """Mean normalised entropy over the heads with a choice."""
    kl: Tensor
    clip_fraction: Tensor
    """Fraction of the head decisions with a choice whose ratio is outside [1 − ε, 1 + ε]."""
    entropy_sum_H: Tensor
    """Sum of the normalised entropy of each head over the decisions in which it had a choice."""
    num_choices_H: Tensor
    """Number of decisions in which each head had a choice."""


def ppo_loss(
    evaluation: ActionEvaluation, batch: SequenceBatch, *, clip: float, value_coef: float, entropy_coef: float
) -> PPOLoss:
    """Return the loss: clipped surrogate + value_coef · ½ MSE − entropy_coef · exploration bonus.

    Args:
        evaluation: Evaluation of the batch's actions by the policy in training; leading dimensions [E, T].
        clip: Clipping range ε.
        entropy_coef: Weight of the exploration bonus, the sum over the heads.
    """
    valid_ET = batch.valid_ET
    steps = valid_ET.sum().clamp(min=1)
    choice_ETH = evaluation.has_choice_H & valid_ET.unsqueeze(-1)
    choices = choice_ETH.sum().clamp(min=1)

    # Values of invalid steps are arbitrary, even NaN: they are replaced and not multiplied by 0.
    log_ratio_ETH = torch.where(choice_ETH, evaluation.log_prob_H - batch.log_prob_ETH, 0.0)
    advantage_ET = torch.where(valid_ET, batch.advantage_ET, 0.0)
    ratio_ETH = log_ratio_ETH.exp()
    advantage_ET1 = advantage_ET.unsqueeze(-1)
    surrogate_ETH = torch.minimum(ratio_ETH * advantage_ET1, ratio_ETH.clamp(1 - clip, 1 + clip) * advantage_ET1)
    policy = -(surrogate_ETH * choice_ETH).sum() / steps

    error_ET = torch.where(valid_ET, evaluation.value - batch.return_ET, 0.0)
    value = 0.5 * error_ET.square().sum() / steps

    entropy_ETH = torch.where(choice_ETH, evaluation.entropy_H, 0.0)
    bonus = torch.where(choice_ETH, evaluation.bonus_H, 0.0).sum() / steps

    with torch.no_grad():
        joint_ET = log_ratio_ETH.sum(dim=-1)
        kl = (joint_ET.exp() - 1 - joint_ET).sum() / steps
        clipped = (((ratio_ETH - 1).abs() > clip) & choice_ETH).sum() / choices
        entropy_sum_H = entropy_ETH.sum(dim=(0, 1))
        choices_H = choice_ETH.sum(dim=(0, 1))
    total = policy + value_coef * value - entropy_coef * bonus
    return PPOLoss(
        total, policy.detach(), value.detach(), entropy_sum_H.sum() / choices, kl, clipped, entropy_sum_H, choices_H
    )


def all_reduce_gradients(loss: PPOLoss, steps: Tensor, grads: Sequence[Tensor], ranks: RankGroup) -> PPOLoss:
    """Average the gradients and the loss of a minibatch over the steps of all ranks.

    The loss of a rank is a mean over its own steps, so that ranks are weighted by their number of steps. All values are
    sent in one flat buffer.

    Args:
        loss: Loss of this rank's part of the minibatch, after its backward pass.
        steps: Number of valid steps in that part, an int64 scalar.
        grads: Gradients of all parameters, replaced in place. The loss depends on every head, so that none is missing.

    Returns:
        The loss of the whole minibatch.
    """
    if ranks.is_single:
        return loss
    choices = loss.num_choices_H.sum()
    scalars = torch.stack((loss.total.detach(), loss.policy, loss.value, loss.kl))
    weighted = torch.cat([scalars, *map(torch.flatten, grads)])
    counted = [torch.stack((steps, choices, loss.clip_fraction * choices)), loss.entropy_sum_H, loss.num_choices_H]
    sizes = [len(weighted), *map(len, counted)]
    # Float64 is exact for all counts, and the order of the ranks in a sum does not change its float32 value.
    buffer = torch.cat([weighted.double() * steps, *(part.double() for part in counted)])
    weighted, totals, entropy_sum_H, choices_H = torch.split(ranks.all_reduce_(buffer), sizes)
    weighted = weighted / totals[0].clamp(min=1)
    total, policy, value, kl = weighted[:4].float()
    for grad, reduced in zip(grads, torch.split(weighted[4:], [grad.numel() for grad in grads]), strict=True):
        grad.copy_(reduced.view_as(grad))
    choices = totals[1].clamp(min=1)
    return PPOLoss(
        total=total,
        policy=policy,
        value=value,
        entropy=(entropy_sum_H.sum() / choices).float(),
        kl=kl,
        clip_fraction=(totals[2] / choices).float(),
        entropy_sum_H=entropy_sum_H.float(),
        num_choices_H=choices_H.to(torch.int64),
    )
