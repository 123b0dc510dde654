"""SGD with Nesterov momentum, clipped per owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import (
    Tensor,
    _fused_sgd_,  # pyright: ignore[reportPrivateImportUsage]  (what torch.optim.SGD(fused=True) is made of)
    nn,
)


class Gradients(NamedTuple):
    """Of those parameters that the loss depends on, with their momenta: none of a seed whose alpha is 0."""

    parameters: list[Tensor]
    values: list[Tensor]
    momenta: list[Tensor]


class FusedSGD:
    """PyTorch's fused update without its `Optimizer`.

    The `step` of that takes four times as long as the update of a few small tensors, and the first of its kind loads
    torch.compile, for three to four seconds. A momentum that a first step would build is there from the start: fused
    steps that are skipped for an overflow leave it uninitialised.

    Args:
        parameters: that it trains.
        learning_rate: of a step, as far as `share` does not lower it.
        momentum: Nesterov's μ.
        weight_decay: added to the gradient, times the parameter.
        clip: most that the norm of all gradients together may be.
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
        """Of the learning rate, that the next steps are to have."""
        self.momentum = momentum
        self.weight_decay = weight_decay

    def has_same_parameters(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether these are its parameters, all of them and no others."""
        return list(map(id, self.parameters)) == list(map(id, parameters))

    def copy_momenta_from(self, other: FusedSGD) -> None:
        """Go on with the momenta of another for the parameters that both train."""
        momenta = {id(parameter): m for parameter, m in zip(other.parameters, other.momenta, strict=True)}
        self.momenta = [momenta.get(id(p), m) for p, m in zip(self.parameters, self.momenta, strict=True)]

    def gradients(self) -> Gradients:
        """What the last backward pass left."""
        found = [(p, p.grad, m) for p, m in zip(self.parameters, self.momenta, strict=True) if p.grad is not None]
        return Gradients([p for p, _, _ in found], [g for _, g, _ in found], [m for _, _, m in found])

    def zero_grad(self) -> None:
        """Let go of what the last backward pass left.

        Kept until the next one, they would lie between the activations that were freed around them, where no large one
        fits any more: that took 5 MiB of a CPU's memory for each env.
        """
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, found: Gradients, norm: Tensor, skip: Tensor | None) -> None:
        """Update the parameters, all on the device.

        Args:
            found: what `gradients` gave.
            norm: of its values.
            skip: 1 if nothing may change, else 0; None where nothing is ever skipped.
        """
        # What clips is divided by in the same pass, as fused optimizers do for a loss scale, in float32 always.
        divisor = (norm / self.clip).clamp(min=1.0).float()
        parameters, values, momenta = found
        if parameters:
            _fused_sgd_(
                parameters,
                values,
                momenta,
                lr=self.learning_rate * self.lr_scale,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                dampening=0.0,
                nesterov=True,
                maximize=False,
                is_first_step=False,
                grad_scale=divisor,
                found_inf=skip,
            )
