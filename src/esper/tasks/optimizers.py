"""Optimizers that a task can choose. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TypeGuard, cast


@dataclass(frozen=True)
class SGD:
    """SGD with Nesterov momentum (Sutskever et al., 2013), as in `torch.optim.SGD`.

    Attributes:
        learning_rate: Learning rate; it falls in the last quarter of an episode.
        momentum: Nesterov's μ, 0 to below 1.
        weight_decay: Added to the gradient, times the parameter.
    """

    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        _check_above_zero("SGD", "learning_rate", self.learning_rate)
        _check_decay("SGD", "momentum", self.momentum)
        _check_weight_decay("SGD", self.weight_decay)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as in `torch.optim.AdamW`.

    Attributes:
        learning_rate: Learning rate; it falls in the last quarter of an episode.
        betas: Decay of the moving averages of the gradient and of its square, 0 to below 1.
        eps: Added to the denominator.
        weight_decay: Multiplied by learning rate and parameter, and subtracted from the parameter.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_above_zero("AdamW", "learning_rate", self.learning_rate)
        if not isinstance(cast("object", self.betas), tuple) or len(self.betas) != 2:
            raise ValueError(f"AdamW: betas must be a tuple of two numbers, not {self.betas!r}")
        for index, beta in enumerate(self.betas):
            _check_decay("AdamW", f"betas[{index}]", beta)
        _check_above_zero("AdamW", "eps", self.eps)
        _check_weight_decay("AdamW", self.weight_decay)


def _check_above_zero(optimizer: str, name: str, value: object) -> None:
    if not (_is_finite(value) and value > 0):
        raise ValueError(f"{optimizer}: {name} must be a finite number above 0, not {value!r}")


def _check_decay(optimizer: str, name: str, value: object) -> None:
    if not (_is_finite(value) and 0 <= value < 1):
        raise ValueError(f"{optimizer}: {name} must be a number from 0 to below 1, not {value!r}")


def _check_weight_decay(optimizer: str, value: object) -> None:
    if not (_is_finite(value) and value >= 0):
        raise ValueError(f"{optimizer}: weight_decay must be a finite number of at least 0, not {value!r}")


def _is_finite(value: object) -> TypeGuard[float]:
    """Return True for a finite number; a task file can pass any object."""
    return isinstance(value, Real) and math.isfinite(value)
