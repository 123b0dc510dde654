"""Optimizers that a task can choose. Needs no torch.

Their settings have the limits of the recorded configuration, so that every run can be read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from esper.common.configuration.config import MAX_LEARNING_RATE


@dataclass(frozen=True)
class SGD:
    """SGD with Nesterov momentum (Sutskever et al., 2013), as in `torch.optim.SGD`.

    Attributes:
        learning_rate: Learning rate, above 0 and at most 100; it falls in the last quarter of an episode.
        momentum: Nesterov's μ, 0 to below 1.
        weight_decay: Added to the gradient, times the parameter; 0 to 1.

    Raises:
        ValueError: A value is out of its range, or is not a number.
    """

    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        _set_learning_rate(self)
        set_number(self, "momentum", _DECAY, _is_decay)
        _set_weight_decay(self)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as in `torch.optim.AdamW`.

    Attributes:
        learning_rate: Learning rate, above 0 and at most 100; it falls in the last quarter of an episode.
        betas: Decay of the moving averages of the gradient and of its square, 0 to below 1.
        eps: Added to the denominator, above 0.
        weight_decay: Multiplied by learning rate and parameter, and subtracted from the parameter; 0 to 1.

    Raises:
        ValueError: A value is out of its range, or is not a number.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _set_learning_rate(self)
        betas = cast("Any", self.betas)
        if not isinstance(betas, tuple) or len(cast("tuple[Any, ...]", betas)) != 2:
            raise ValueError(f"AdamW: betas must be a tuple of two numbers, not {self.betas!r}")
        checked = tuple(
            checked_number(f"AdamW: betas[{index}]", beta, _DECAY, _is_decay) for index, beta in enumerate(self.betas)
        )
        object.__setattr__(self, "betas", checked)
        set_number(self, "eps", "a finite number above 0", lambda eps: 0 < eps < math.inf)
        _set_weight_decay(self)


def set_number(owner: object, name: str, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    """Check a field of a frozen dataclass, and convert it, as `checked_number` describes."""
    number = checked_number(f"{type(owner).__name__}: {name}", getattr(owner, name), allowed, is_allowed)
    object.__setattr__(owner, name, number)


def checked_number(where: str, value: object, allowed: str, is_allowed: Callable[[float], bool]) -> float:
    """Return a number as a float of Python: a recording cannot contain other types, such as those of NumPy.

    Args:
        value: Any object, as a task file can pass it.
        allowed: The numbers that are allowed, for the message.

    Raises:
        ValueError: The value is not a number, or not an allowed one.
    """
    if not isinstance(value, bool) and isinstance(value, Real) and is_allowed(cast("float", value)):
        number = float(value)
        if is_allowed(number):  # a fraction may be rounded to a limit
            return number
    raise ValueError(f"{where} must be {allowed}, not {value!r}")


_DECAY = "a number from 0 to below 1"


def _is_decay(value: float) -> bool:
    return 0 <= value < 1


def _set_learning_rate(optimizer: SGD | AdamW) -> None:
    allowed = f"a number above 0, and at most {MAX_LEARNING_RATE}"
    set_number(optimizer, "learning_rate", allowed, lambda rate: 0 < rate <= MAX_LEARNING_RATE)


def _set_weight_decay(optimizer: SGD | AdamW) -> None:
    set_number(optimizer, "weight_decay", "a number from 0 to 1", lambda decay: 0 <= decay <= 1)
