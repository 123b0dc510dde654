"""SGD with Nesterov momentum and gradient clipping in one fused operator, and its learning-rate schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper.envs.fused_ops import fused_sgd_


class Gradients(NamedTuple):
    """Gradients of the parameters that the loss depends on. A seed with alpha 0 has none."""

    parameters: list[Tensor]
    values: list[Tensor]
    momenta: list[Tensor]


class FusedSGD:
    """PyTorch's fused SGD update without `torch.optim.Optimizer`.

    `Optimizer.step` takes four times as long as the update of a few small tensors, and the first `Optimizer` of a
    process loads torch.compile, which takes three to four seconds. The momenta are created here and not by the first
    step, because a fused first step that is skipped for an overflow leaves them uninitialised.

    Args:
        parameters: Parameters to train.
        learning_rate: Learning rate, before `lr_scale` is applied.
        momentum: Nesterov's μ.
        weight_decay: Added to the gradient, times the parameter.
        clip: Maximum norm of all gradients together.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        learning_rate: float,
        momentum: float,
        weight_decay: float,
        clip: float,
    ) -> None:
        self.parameters = list(parameters)
        self.momenta: list[Tensor] = [torch.zeros_like(parameter) for parameter in parameters]
        self.clip = clip
        self.learning_rate = learning_rate
        self.lr_scale = 1.0
        """Factor of the learning rate in the next steps."""
        self.momentum = momentum
        self.weight_decay = weight_decay

    def has_same_parameters(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Return True if this optimizer trains exactly these parameters, in this order."""
        return list(map(id, self.parameters)) == list(map(id, parameters))

    def copy_momenta_from(self, other: FusedSGD) -> None:
        """Take over the momenta of another optimizer for the parameters that both train."""
        momenta = {id(parameter): m for parameter, m in zip(other.parameters, other.momenta, strict=True)}
        self.momenta = [momenta.get(id(p), m) for p, m in zip(self.parameters, self.momenta, strict=True)]

    def gradients(self) -> Gradients:
        """Return the gradients of the last backward pass, with their parameters and momenta."""
        rows = [(p, p.grad, m) for p, m in zip(self.parameters, self.momenta, strict=True) if p.grad is not None]
        return Gradients([p for p, _, _ in rows], [g for _, g, _ in rows], [m for _, _, m in rows])

    def zero_grad(self) -> None:
        """Release the gradients of the last backward pass.

        Gradients that live until the next pass fragment the memory of the freed activations, so that no large tensor
        fits between them: this took 5 MiB of CPU memory for each env.
        """
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, grads: Gradients, norm: Tensor, found_inf: Tensor | None) -> None:
        """Clip the gradients and update the parameters, without synchronising the device.

        Args:
            grads: Result of `gradients`.
            norm: L2 norm of all gradients together, a scalar on the device.
            found_inf: 1.0 to skip the step, else 0.0, a scalar on the device; None without loss scaling.
        """
        # Clipping is a division in the same operator: fused optimizers take a divisor for loss scales, in float32.
        divisor = (norm / self.clip).clamp(min=1.0).float()
        parameters, values, momenta = grads
        if parameters:
            fused_sgd_(
                parameters,
                values,
                momenta,
                lr=self.learning_rate * self.lr_scale,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                grad_scale=divisor,
                found_inf=found_inf,
            )


COOLDOWN_FRACTION = 0.25
"""Fraction of an episode, at its end, in which the learning rate falls."""
FINAL_LR_FRACTION = 0.1
"""Learning rate of an episode's last step, as a fraction of the full rate."""


def lr_scale(step: int, steps: int) -> float:
    """Return the factor of the learning rate in a step: 1, then a linear cooldown to `FINAL_LR_FRACTION`.

    Without the cooldown, the noise of the last minibatches would be in the final measurement (constant rate with
    cooldown: Hägele et al., 2024).

    Args:
        step: Index of the step, from 0.
        steps: Number of steps of an episode.
    """
    fallen = ((step + 1) / steps - (1.0 - COOLDOWN_FRACTION)) / COOLDOWN_FRACTION
    return 1.0 - (1.0 - FINAL_LR_FRACTION) * max(fallen, 0.0)
