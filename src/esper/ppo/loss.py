"""The PPO loss over factored heads (Schulman et al., 2017).

Each head that an op uses has its own ratio and its own clipped surrogate; at ratio 1 the gradient of their sum is that
of the joint log-probability. Steps that do not count enter nowhere.

Shapes: E envs, T steps, H heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper.policy.network import ActionEvaluation
from esper.ppo.rollout import SequenceBatch
from esper.ranks import RankGroup


class PPOLoss(NamedTuple):
    """Terms of the loss and what telemetry says of them; all scalar tensors unless said otherwise."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    """Mean normalised entropy over the heads with a choice."""
    kl: Tensor
    clip_fraction: Tensor
    """Share of the head decisions with a choice whose ratio left [1 − ε, 1 + ε]."""
    entropy_sum_H: Tensor
    num_choices_H: Tensor
    """Decisions with a choice, by head."""


def ppo_loss(
    evaluation: ActionEvaluation, batch: SequenceBatch, *, clip: float, value_coef: float, entropy_coef: float
) -> PPOLoss:
    """Clipped surrogate + value_coef · ½ MSE − entropy_coef · normalised entropy.

    Args:
        evaluation: of the batch's actions by the policy being trained, leading dimensions [E, T].
        batch: the experience.
        clip: ε.
        value_coef: weight of the value loss.
        entropy_coef: weight of the entropy bonus.
    """
    counts_ET = batch.valid_ET
    steps = counts_ET.sum().clamp(min=1)
    choice_ETH = evaluation.has_choice_H & counts_ET.unsqueeze(-1)
    choices = choice_ETH.sum().clamp(min=1)

    # Where a step does not count its values may be anything: they are replaced, not multiplied by 0.
    log_ratio_ETH = torch.where(choice_ETH, evaluation.log_prob_H - batch.log_prob_ETH, 0.0)
    advantage_ET = torch.where(counts_ET, batch.advantage_ET, 0.0)
    ratio_ETH = log_ratio_ETH.exp()
    gain_ETH = advantage_ET.unsqueeze(-1)
    surrogate_ETH = torch.minimum(ratio_ETH * gain_ETH, ratio_ETH.clamp(1 - clip, 1 + clip) * gain_ETH)
    policy = -(surrogate_ETH * choice_ETH).sum() / steps

    error_ET = torch.where(counts_ET, evaluation.value - batch.return_ET, 0.0)
    value = 0.5 * error_ET.square().sum() / steps

    entropy_ETH = torch.where(choice_ETH, evaluation.entropy_H, 0.0)
    bonus = entropy_ETH.sum() / steps

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


def all_reduce_gradients(loss: PPOLoss, steps: Tensor, network: nn.Module, ranks: RankGroup) -> PPOLoss:
    """Give every rank the gradients and the loss of the whole minibatch: means over the steps of all ranks.

    A rank's loss is a mean over its own steps, so each counts by their number. Everything travels in one flat buffer.

    Args:
        loss: of this rank's part of the minibatch, after its backward pass.
        steps: that count in that part; int64, no dimension.
        network: whose gradients are replaced. A parameter that no rank has a gradient for keeps none.
        ranks: that take part.

    Raises:
        RankLostError: another rank has ended, or does not answer.
    """
    if ranks.is_single:
        return loss
    parameters = list(network.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    reached_P = loss.total.new_tensor([p.grad is not None for p in parameters])
    choices = loss.num_choices_H.sum()
    weighted = torch.cat(
        [torch.stack((loss.total.detach(), loss.policy, loss.value, loss.kl)), *map(torch.flatten, grads)]
    )
    counted = [
        torch.stack((steps, choices, loss.clip_fraction * choices)),
        loss.entropy_sum_H,
        loss.num_choices_H,
        reached_P,
    ]
    sizes = [len(weighted), *map(len, counted)]
    # Float64 holds every count, and the order in which the ranks are added is lost in rounding.
    buffer = torch.cat([weighted.double() * steps, *(part.double() for part in counted)])
    weighted, totals, entropy_sum_H, choices_H, reached_P = ranks.all_reduce_(buffer).split(sizes)
    weighted = weighted / totals[0].clamp(min=1)
    total, policy, value, kl = weighted[:4].float()
    _replace_gradients(parameters, weighted[4:], reached_P > 0)
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


def _replace_gradients(parameters: list[nn.Parameter], flat: Tensor, reached_P: Tensor) -> None:
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece, reached in zip(parameters, pieces, reached_P.tolist(), strict=True):
        parameter.grad = piece.view_as(parameter).to(parameter.dtype) if reached else None
