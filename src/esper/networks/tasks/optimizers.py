"""Optimizers that a task can choose. Needs no torch.

The settings of `SGD` and `AdamW` have the limits of the recorded configuration, so that every run can be read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from esper.common.configuration.config import MAX_LEARNING_RATE
from esper.common.user_code.references import describe_type

if TYPE_CHECKING:
    from torch import nn


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


@dataclass(frozen=True, init=False)
class Group:
    """Parameters that an `Optimizer` trains with options of their own, such as another learning rate.

    Args:
        parameters: Pattern of names of parameters, as in `head.*`, with the wildcards of the shell; or a function of
            name and parameter that returns True for those of the group.
        options: Options of the optimizer for these parameters.
    """

    parameters: str | Callable[[str, nn.Parameter], bool]
    options: Mapping[str, Any]

    def __init__(self, parameters: str | Callable[[str, nn.Parameter], bool], **options: Any) -> None:
        if not (isinstance(parameters, str) or callable(cast("object", parameters))):
            kind = describe_type(parameters)
            raise ValueError(f"Group: the parameters must be a pattern of names or a function, not {kind}")
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "options", options)

    def contains(self, name: str, parameter: nn.Parameter) -> bool:
        """Return True if a parameter, given its name in the host or seed, belongs to the group."""
        if isinstance(self.parameters, str):
            return fnmatchcase(name, self.parameters)
        return bool(self.parameters(name, parameter))


no_decay = Group(lambda _, parameter: parameter.ndim < 2, weight_decay=0.0)
"""Group without weight decay: all parameters with one axis, which are biases and the weights of norms."""


@dataclass(frozen=True, init=False)
class Optimizer:
    """Any optimizer with the interface of `torch.optim.Optimizer`. `SGD` and `AdamW` are faster where they suffice.

    Its state is kept between epochs, sent to worker processes and written to checkpoints. Its kernels are not recorded
    in CUDA graphs.

    Args:
        build: Class of the optimizer; or a function that receives a list of names and parameters, and the options, and
            returns an optimizer. It is called for every host and every seed.
        groups: Groups of parameters with other options. A parameter belongs to the first group that contains it, and
            has the options of the optimizer if none does. A group without a parameter of the host is refused.
        options: Options of the optimizer, such as `lr` and `momentum`.

    Raises:
        ValueError: An argument has a wrong type.
    """

    build: Callable[..., Any]
    groups: Sequence[Group]
    options: Mapping[str, Any]

    def __init__(self, build: Callable[..., Any], *, groups: Sequence[Group] = (), **options: Any) -> None:
        if not callable(cast("object", build)):
            raise ValueError(f"Optimizer: expected the class of an optimizer or a function, not {describe_type(build)}")
        found = cast("object", groups)
        if not isinstance(found, list | tuple) or not all(
            isinstance(one, Group) for one in cast("list[object]", found)
        ):
            raise ValueError("Optimizer: groups must be a list of esper.Group, as in groups=[esper.no_decay]")
        if groups and not isinstance(build, type):
            raise ValueError("Optimizer: a function that builds an optimizer makes its groups itself; remove groups")
        object.__setattr__(self, "build", build)
        object.__setattr__(self, "groups", tuple(groups))
        object.__setattr__(self, "options", options)

    @property
    def takes_groups(self) -> bool:
        """True for a class, which is called with groups of parameters; False for a function."""
        return isinstance(self.build, type)

    @property
    def learning_rate(self) -> float | None:
        """Option `lr`; None if it is not given."""
        rate = self.options.get("lr")
        return float(rate) if isinstance(rate, Real) else None


AnyOptimizer: TypeAlias = SGD | AdamW | Optimizer


def setting_names(optimizer: AnyOptimizer) -> set[str]:
    """Return the names of the settings that `with_settings` can change."""
    if isinstance(optimizer, Optimizer):
        return {*(optimizer.options.keys() - {"lr"}), *(["learning_rate"] if "lr" in optimizer.options else [])}
    return {field.name for field in fields(optimizer)}


def get_setting(optimizer: AnyOptimizer, name: str) -> Any:
    """Return a setting of an optimizer; None if it has none of the name."""
    if isinstance(optimizer, Optimizer) and name != "learning_rate":
        return optimizer.options.get(name)
    return getattr(optimizer, name, None)


def with_settings(optimizer: AnyOptimizer, values: Mapping[str, Any]) -> AnyOptimizer:
    """Return an optimizer with other settings, whose names `setting_names` returns."""
    if isinstance(optimizer, Optimizer):
        options = {("lr" if name == "learning_rate" else name): value for name, value in values.items()}
        return Optimizer(optimizer.build, groups=optimizer.groups, **{**optimizer.options, **options})
    return replace(optimizer, **values)


def optimizer_name(optimizer: AnyOptimizer) -> str:
    """Return the name of the class or function of an optimizer."""
    if isinstance(optimizer, Optimizer):
        return str(getattr(optimizer.build, "__name__", type(optimizer.build).__name__))
    return type(optimizer).__name__


def describe_optimizer(optimizer: AnyOptimizer) -> str:
    """Return an optimizer with its settings as text, as in `SGD(learning_rate=0.05, momentum=0.9)`."""
    if not isinstance(optimizer, Optimizer):
        return repr(optimizer)
    options = ", ".join(f"{name}={value}" for name, value in optimizer.options.items())
    groups = f" with {len(optimizer.groups) + 1} groups of parameters" if optimizer.groups else ""
    return f"{optimizer_name(optimizer)}({options}){groups}"


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
