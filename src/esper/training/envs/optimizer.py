"""Optimizers with gradient clipping in one fused operator."""

# The fused operators, which `torch.optim` calls too, have no public name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, _foreach_add_, _foreach_sub_, _foreach_zero_, _fused_adamw_, _fused_sgd_, nn

from esper.networks.tasks.optimizers import SGD, AdamW


class Gradients(NamedTuple):
    """Gradients of the parameters that the loss depends on. A seed with alpha 0 has none."""

    parameters: list[Tensor]
    values: list[Tensor]
    indices: list[int]
    """Index of each parameter in the optimizer."""


class ModuleOptimizer(ABC):
    """Optimizer of a host, or of a seed, or of a seed with its blend gate.

    Args:
        parameters: Parameters to train; may be none.
        clip: Maximum norm of all gradients together; None: they are not clipped.
    """

    learning_rate: float
    """Learning rate, before `lr_scale` is applied."""

    def __init__(self, parameters: Sequence[nn.Parameter], clip: float | None) -> None:
        self.parameters = list(parameters)
        self.clip = math.inf if clip is None else clip
        self.lr_scale = 1.0
        """Factor of the learning rate in the next steps."""
        self.state: dict[str, list[Tensor]] = {}
        """State of the parameters, keyed by the name that checkpoints use: always the same tensors."""

    @abstractmethod
    def step(self, grads: Gradients, norm: Tensor, found_inf: Tensor | None) -> None:
        """Clip the gradients and update the parameters.

        Args:
            grads: Result of `gradients`.
            norm: L2 norm of all gradients together, a scalar on the device.
            found_inf: 1.0 to skip the step, else 0.0, a scalar on the device; None without loss scaling.
        """

    @abstractmethod
    def begin_epoch(self) -> None:
        """Train with the state that `state` contains now."""

    @abstractmethod
    def end_epoch(self) -> None:
        """Write the state to the tensors of `state`."""

    def rate(self) -> Tensor | None:
        """Return the learning rate of the next steps as a scalar on the device, for CUDA graphs; None if there are
        none."""
        return None

    def reset_state(self) -> None:
        """Set the state to that before the first step, in place."""
        if values := [value for values in self.state.values() for value in values]:
            _foreach_zero_(values)

    def state_tensors(self, owner: str) -> dict[str, Tensor]:
        """Return the live state, keyed `name.owner.index` as in checkpoints."""
        return {
            f"{name}.{owner}.{index}": value
            for name, values in self.state.items()
            for index, value in enumerate(values)
        }

    def gradients(self) -> Gradients:
        """Return the gradients of the last backward pass, with their parameters."""
        rows = [(p, p.grad, index) for index, p in enumerate(self.parameters) if p.grad is not None]
        return Gradients([p for p, _, _ in rows], [g for _, g, _ in rows], [index for _, _, index in rows])

    def zero_grad(self) -> None:
        """Release the gradients of the last backward pass.

        Gradients that live until the next pass fragment the memory of the freed activations, so that no large tensor
        fits between them: this took 5 MiB of CPU memory for each env.
        """
        for parameter in self.parameters:
            parameter.grad = None


class FusedOptimizer(ModuleOptimizer):
    """PyTorch's fused updates without `torch.optim.Optimizer`.

    Its `step` takes four times as long as the update of a few small tensors, and the first one of a process loads
    torch.compile, which takes three to four seconds. The state is created here and not by the first step,
    because a fused first step that is skipped for an overflow leaves it uninitialised.

    Args:
        parameters: Parameters to train; may be none.
        learning_rate: Learning rate, before `lr_scale` is applied.
        clip: Maximum norm of all gradients together; None: they are not clipped.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, learning_rate: float, clip: float | None) -> None:
        super().__init__(parameters, clip)
        self.learning_rate = learning_rate
        self.state = self._initial_state()
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        # The fused operators read a float32 on a GPU. A float64 on a CPU gives the same bits as a number.
        self._rate = torch.zeros((), device=device, dtype=torch.float32 if device.type == "cuda" else torch.float64)
        self._written_rate = 0.0

    @abstractmethod
    def _initial_state(self) -> dict[str, list[Tensor]]:
        """Return the state of each parameter before the first step, in their order."""

    @abstractmethod
    def _update(self, grads: Gradients, divisor: Tensor, found_inf: Tensor | None) -> None:
        """Update the parameters and the state of `grads`, whose gradients are divided by `divisor` first."""

    @torch.no_grad()
    def rate(self) -> Tensor:
        """Return the learning rate of the next steps, a scalar on the device.

        The tensor is the same in every call. It is written here if the rate has changed, so a function that is recorded
        in a CUDA graph must not be the first to call this.
        """
        rate = self.learning_rate * self.lr_scale
        if rate != self._written_rate:
            self._rate.fill_(rate)
            self._written_rate = rate
        return self._rate

    def share_state(self, parts: Sequence[ModuleOptimizer]) -> None:
        """Use the state of other optimizers of this type, which together train the same parameters in the same order.

        A seed and its blend gate are clipped together, but each keeps its own state.
        """
        for name in self.state:
            self.state[name] = [value for part in parts for value in part.state[name]]

    def begin_epoch(self) -> None:
        """Do nothing: the updates read and write `state`."""

    def end_epoch(self) -> None:
        """Do nothing: the updates read and write `state`."""

    def step(self, grads: Gradients, norm: Tensor, found_inf: Tensor | None) -> None:
        """Clip the gradients and update the parameters, without synchronising the device."""
        # Clipping is a division in the same operator: fused optimizers take a divisor for loss scales, in float32.
        divisor = (norm / self.clip).clamp(min=1.0).float()
        if grads.parameters:
            self._update(grads, divisor, found_inf)

    def _state_of(self, name: str, grads: Gradients) -> list[Tensor]:
        values = self.state[name]
        return [values[index] for index in grads.indices]


class FusedSGD(FusedOptimizer):
    """SGD with Nesterov momentum."""

    def __init__(self, parameters: Sequence[nn.Parameter], spec: SGD, clip: float | None) -> None:
        self.spec = spec
        super().__init__(parameters, learning_rate=spec.learning_rate, clip=clip)

    def _initial_state(self) -> dict[str, list[Tensor]]:
        return {"momentum": [torch.zeros_like(parameter) for parameter in self.parameters]}

    def _update(self, grads: Gradients, divisor: Tensor, found_inf: Tensor | None) -> None:
        _fused_sgd_(
            grads.parameters,
            grads.values,
            self._state_of("momentum", grads),
            lr=self.rate(),
            momentum=self.spec.momentum,
            weight_decay=self.spec.weight_decay,
            dampening=0.0,
            nesterov=True,
            maximize=False,
            is_first_step=False,
            grad_scale=divisor,
            found_inf=found_inf,
        )


class FusedAdamW(FusedOptimizer):
    """Adam with decoupled weight decay."""

    def __init__(self, parameters: Sequence[nn.Parameter], spec: AdamW, clip: float | None) -> None:
        self.spec = spec
        super().__init__(parameters, learning_rate=spec.learning_rate, clip=clip)

    def _initial_state(self) -> dict[str, list[Tensor]]:
        return {
            "exp_avg": [torch.zeros_like(parameter) for parameter in self.parameters],
            "exp_avg_sq": [torch.zeros_like(parameter) for parameter in self.parameters],
            "step": [torch.zeros((), device=parameter.device) for parameter in self.parameters],
        }

    def _update(self, grads: Gradients, divisor: Tensor, found_inf: Tensor | None) -> None:
        averages, squares, steps = (self._state_of(name, grads) for name in ("exp_avg", "exp_avg_sq", "step"))
        _foreach_add_(steps, 1)
        _fused_adamw_(
            grads.parameters,
            grads.values,
            averages,
            squares,
            [],
            steps,
            lr=self.rate(),
            beta1=self.spec.betas[0],
            beta2=self.spec.betas[1],
            weight_decay=self.spec.weight_decay,
            eps=self.spec.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=found_inf,
        )
        if found_inf is not None:  # a skipped step does not count
            _foreach_sub_(steps, [found_inf] * len(steps))
