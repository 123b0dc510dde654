"""PyTorch operators without a public name or without types: fused updates of lists of tensors, and norms.

`torch.optim.SGD(fused=True)` and `torch.nn.utils.get_total_norm` call them. A fused operator updates a whole list, and
takes a fraction of the time of one operator per tensor.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, _foreach_add_, _foreach_copy_, _foreach_norm, _foreach_sub_, _fused_adamw_, _fused_sgd_


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, a scalar on its device."""
    return list(_foreach_norm(list(tensors)))


def l2_norm(values: Tensor) -> Tensor:
    """Return the L2 norm of all elements, a scalar on their device."""
    norm: Tensor = torch.linalg.vector_norm(values)
    return norm


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into the target of the same index; all tensors have the same dtype."""
    _foreach_copy_(list(targets), list(sources))


def fused_sgd_(
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    grad_scale: Tensor,
    found_inf: Tensor | None,
) -> None:
    """Make one SGD step with Nesterov momentum, in place.

    Args:
        parameters: Parameters to update.
        grads: Their gradients.
        momenta: Their momenta, initialised.
        lr: Learning rate.
        momentum: Nesterov's μ.
        weight_decay: Added to the gradient, times the parameter.
        grad_scale: Divisor of all gradients, a float32 scalar on their device.
        found_inf: 1.0 to change nothing, else 0.0, a scalar on their device; None always steps.
    """
    _fused_sgd_(
        list(parameters),
        list(grads),
        list(momenta),
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        dampening=0.0,
        nesterov=True,
        maximize=False,
        is_first_step=False,
        grad_scale=grad_scale,
        found_inf=found_inf,
    )


def fused_adamw_(
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    grad_scale: Tensor,
    found_inf: Tensor | None,
) -> None:
    """Make one step of Adam with decoupled weight decay, in place.

    Args:
        parameters: Parameters to update.
        grads: Their gradients.
        averages: Moving averages of their gradients.
        squares: Moving averages of the squares of their gradients.
        steps: Number of earlier steps of each parameter, float32 scalars on their device; counted up unless skipped.
        lr: Learning rate.
        betas: Decay of the two moving averages.
        eps: Added to the denominator.
        weight_decay: Multiplied by learning rate and parameter, and subtracted from the parameter.
        grad_scale: Divisor of all gradients, a float32 scalar on their device.
        found_inf: 1.0 to change nothing, else 0.0, a scalar on their device; None always steps.
    """
    _foreach_add_(list(steps), 1)
    _fused_adamw_(
        list(parameters),
        list(grads),
        list(averages),
        list(squares),
        [],
        list(steps),
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
        grad_scale=grad_scale,
        found_inf=found_inf,
    )
    if found_inf is not None:
        _foreach_sub_(list(steps), [found_inf] * len(steps))
