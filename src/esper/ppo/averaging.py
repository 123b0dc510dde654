"""One minibatch update from the experience of several ranks: gradients and what telemetry says of them, made common.

Shapes: H heads, P parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.ppo.loss import Loss
from esper.ranks import Ranks


def average(loss: Loss, steps: Tensor, network: nn.Module, ranks: Ranks) -> Loss:
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
    if ranks.alone:
        return loss
    parameters = list(network.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    reached_P = loss.total.new_tensor([p.grad is not None for p in parameters])
    choices = loss.choices_H.sum()
    weighted = torch.cat(
        [torch.stack((loss.total.detach(), loss.policy, loss.value, loss.kl)), *map(torch.flatten, grads)]
    )
    counted = [
        torch.stack((steps, choices, loss.clip_fraction * choices)),
        loss.entropy_sum_H,
        loss.choices_H,
        reached_P,
    ]
    sizes = [len(weighted), *map(len, counted)]
    # Float64 holds every count, and the order in which the ranks are added is lost in rounding.
    buffer = torch.cat([weighted.double() * steps, *(part.double() for part in counted)])
    weighted, totals, entropy_sum_H, choices_H, reached_P = ranks.sum(buffer).split(sizes)
    weighted = weighted / totals[0].clamp(min=1)
    total, policy, value, kl = weighted[:4].float()
    _replace_gradients(parameters, weighted[4:], reached_P > 0)
    choices = totals[1].clamp(min=1)
    return Loss(
        total=total,
        policy=policy,
        value=value,
        entropy=(entropy_sum_H.sum() / choices).float(),
        kl=kl,
        clip_fraction=(totals[2] / choices).float(),
        entropy_sum_H=entropy_sum_H.float(),
        choices_H=choices_H.to(torch.int64),
    )


def _replace_gradients(parameters: list[nn.Parameter], flat: Tensor, reached_P: Tensor) -> None:
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece, reached in zip(parameters, pieces, reached_P.tolist(), strict=True):
        parameter.grad = piece.view_as(parameter).to(parameter.dtype) if reached else None
