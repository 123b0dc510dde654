"""Optimizers that a task can choose. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


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
        _check("SGD", "learning_rate", self.learning_rate, self.learning_rate > 0)
        _check("SGD", "momentum", self.momentum, 0 <= self.momentum < 1)
        _check("SGD", "weight_decay", self.weight_decay, self.weight_decay >= 0)


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
        _check("AdamW", "learning_rate", self.learning_rate, self.learning_rate > 0)
        _check("AdamW", "betas", self.betas, all(0 <= beta < 1 for beta in self.betas))
        _check("AdamW", "eps", self.eps, self.eps > 0)
        _check("AdamW", "weight_decay", self.weight_decay, self.weight_decay >= 0)


def _check(optimizer: str, name: str, value: object, is_valid: bool) -> None:
    if not is_valid:
        raise ValueError(f"{optimizer}: {name} {value} is not valid")
