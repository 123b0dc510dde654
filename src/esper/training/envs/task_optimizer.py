"""The optimizer that a task specifies: a fused one, or one with the interface of `torch.optim.Optimizer`."""

# The types of optimizers of other libraries are unknown, and the fused operator has no public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, _foreach_mul_, nn

from esper.common.configuration.config import TaskError
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.tasks.optimizers import AdamW, AnyOptimizer, Group, Optimizer, optimizer_name
from esper.training.envs.optimizer import FusedAdamW, FusedOptimizer, FusedSGD, Gradients, ModuleOptimizer

NamedParameters = Sequence[tuple[str, nn.Parameter]]
_EPSILON = 1e-6
"""Added to the norm before gradients are divided by it, as in `torch.nn.utils.clip_grad_norm_`."""
_TRIAL_STEPS = 2
_TRIAL_GRADIENT = 1e-3
"""Value of each gradient in the trial steps. With zeros, some optimizers divide by zero."""
_NOT_STATE = frozenset({"params", "lr"})
"""Entries of a group that are no state: the schedule sets the learning rate in every step."""


def make_optimizer(spec: AnyOptimizer, named: NamedParameters, clip: float | None) -> ModuleOptimizer:
    """Return the optimizer of some parameters.

    Args:
        named: Names in the host or seed, and parameters.
        clip: Maximum norm of all gradients together; None: they are not clipped.

    Raises:
        TaskError: The optimizer is the user's own, and cannot be built or used.
    """
    if isinstance(spec, Optimizer):
        # Nothing is to be trained of a frozen host, or of a seed without parameters.
        return OwnOptimizer(spec, named, clip) if named else _JoinedOptimizer([], clip)
    parameters = [parameter for _, parameter in named]
    return FusedAdamW(parameters, spec, clip) if isinstance(spec, AdamW) else FusedSGD(parameters, spec, clip)


def join_optimizers(spec: AnyOptimizer, parts: Sequence[ModuleOptimizer], clip: float | None) -> ModuleOptimizer:
    """Return an optimizer that clips the gradients of several ones together. Each keeps its state."""
    if isinstance(spec, Optimizer):
        return _JoinedOptimizer(parts, clip)
    joined = make_optimizer(spec, [("", parameter) for part in parts for parameter in part.parameters], clip)
    cast("FusedOptimizer", joined).share_state(parts)
    return joined


def check_groups(spec: AnyOptimizer, named: NamedParameters) -> None:
    """Check that each group of an optimizer contains a parameter of a host. Raises TaskError if one is empty."""
    groups = spec.groups if isinstance(spec, Optimizer) else ()
    chosen = {_group_index(groups, name, parameter) for name, parameter in named}
    for index, group in enumerate(groups):
        if named and index not in chosen:
            what = repr(group.parameters) if isinstance(group.parameters, str) else f"number {index + 1}"
            raise TaskError(
                f"the group {what} of the optimizer contains no parameter of the host that no earlier group contains; "
                f"its parameters are {', '.join(name for name, _ in named)}"
            )


class _Entry(NamedTuple):
    """A value that an optimizer keeps for a parameter."""

    row: int
    """Index of the parameter."""
    key: str
    kind: type
    """`Tensor`, or the type of a number."""
    device: torch.device
    """Device on which the optimizer wants a tensor: many keep a number in a tensor on the CPU."""
    value: Tensor
    """Its place in `state`: of the same shape, on the device of the parameter."""


class _Found(NamedTuple):
    """State of an optimizer after its first steps: of each parameter, and of each group."""

    by_parameter: list[dict[str, Any]]
    groups: list[dict[str, Any]]


class OwnOptimizer(ModuleOptimizer):
    """An optimizer with the interface of `torch.optim.Optimizer`.

    Such an optimizer makes its state in its first step. Trial steps on copies find its values: `state` has a tensor
    for each of them, so that it can be packed, sent to worker processes and written to checkpoints as that of the fused
    optimizers. A further tensor tells which parameters have been trained. Between `begin_epoch` and `end_epoch`, the
    optimizer has the values.

    Raises:
        TaskError: It cannot be built or used.
    """

    def __init__(self, spec: Optimizer, named: NamedParameters, clip: float | None) -> None:
        super().__init__([parameter for _, parameter in named], clip)
        self._name = optimizer_name(spec)
        self._inner: Any = _build(spec, named)
        self._groups: list[dict[str, Any]] = self._inner.param_groups
        self._rates = [float(group["lr"]) for group in self._groups]
        self.learning_rate = self._first_rate = self._rates[0]
        self._fresh_groups = [_numbers(group) for group in self._groups]
        self._entries: list[_Entry] = []
        self._number_keys: list[list[tuple[str, type]]] = []
        """Names and types of the numbers of each group."""
        self._make_state(_try_steps(spec, named))

    def _make_state(self, found: _Found) -> None:
        first = self.parameters[0]
        self.state = {"trained": [torch.zeros(len(self.parameters), device=first.device)]}
        for index, (parameter, kept) in enumerate(zip(self.parameters, found.by_parameter, strict=True)):
            for key, value in kept.items():
                if isinstance(value, Tensor):
                    place = torch.zeros_like(value, device=parameter.device)
                    entry = _Entry(index, key, Tensor, value.device, place)
                else:
                    place = torch.zeros((), dtype=torch.float64, device=parameter.device)
                    entry = _Entry(index, key, type(value), parameter.device, place)
                self._entries.append(entry)
                self.state.setdefault(f"own_{key}", []).append(entry.value)
        self._number_keys = [[(key, type(value)) for key, value in _numbers(group).items()] for group in found.groups]
        self.state["groups"] = [
            torch.zeros(len(keys), dtype=torch.float64, device=first.device) for keys in self._number_keys
        ]

    def begin_epoch(self) -> None:
        """Give the optimizer the values of `state`. The host waits for the device."""
        trained = self.state["trained"][0].tolist()
        for index, parameter in enumerate(self.parameters):
            if not trained[index]:
                self._inner.state.pop(parameter, None)
            elif parameter not in self._inner.state:
                self._inner.state[parameter] = {}
        for entry in self._entries:
            if trained[entry.row]:
                self._inner.state[self.parameters[entry.row]][entry.key] = _value_of(entry)
        numbers = self._fresh_groups
        if any(trained):
            numbers = [
                {key: kind(value) for (key, kind), value in zip(keys, values.tolist(), strict=True)}
                for keys, values in zip(self._number_keys, self.state["groups"], strict=True)
            ]
        for group, keys, values in zip(self._groups, self._number_keys, numbers, strict=True):
            for key, _ in keys:
                group.pop(key, None)
            group.update(values)
        if hasattr(self._inner, "train"):
            self._inner.train()

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Write the values of the optimizer to `state`. Raises RuntimeError if it keeps values of another kind."""
        if hasattr(self._inner, "eval"):
            self._inner.eval()
        kept = [self._inner.state.get(parameter) or {} for parameter in self.parameters]
        self.state["trained"][0].copy_(torch.tensor([float(bool(values)) for values in kept]))
        known = {(entry.row, entry.key) for entry in self._entries}
        for index, values in enumerate(kept):
            for key, value in values.items():
                if value is not None and (index, key) not in known:
                    raise RuntimeError(f"the optimizer {self._name} keeps {key!r}, which it did not in its first steps")
        for entry in self._entries:
            value = kept[entry.row].get(entry.key)
            if isinstance(value, Tensor) and value is not entry.value:
                entry.value.copy_(value)
            elif value is not None and value is not entry.value:
                entry.value.fill_(value)
        for group, keys, values in zip(self._groups, self._number_keys, self.state["groups"], strict=True):
            values.copy_(torch.tensor([float(group[key]) for key, _ in keys], dtype=torch.float64))

    @torch.no_grad()
    def step(self, grads: Gradients, norm: Tensor, found_inf: Tensor | None) -> None:
        """Clip the gradients and step the optimizer. Under loss scaling, the host waits for the device, as in torch."""
        if not grads.parameters or (found_inf is not None and bool(found_inf)):
            return
        if self.clip < math.inf:
            _foreach_mul_(grads.values, (self.clip / (norm + _EPSILON)).clamp(max=1.0))
        # A family can change the learning rate, and with it those of all groups.
        relative = self.learning_rate / self._first_rate if self._first_rate else 1.0
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate * (relative * self.lr_scale)
        with torch.enable_grad():
            self._inner.step()


class _JoinedOptimizer(ModuleOptimizer):
    """Several optimizers whose gradients are clipped together.

    Args:
        clip: Maximum norm of all gradients together; None: they are not clipped.
    """

    def __init__(self, parts: Sequence[ModuleOptimizer], clip: float | None) -> None:
        super().__init__([parameter for part in parts for parameter in part.parameters], clip)
        self._parts = list(parts)
        self.learning_rate = parts[0].learning_rate if parts else 0.0
        names = {name: None for part in parts for name in part.state}
        self.state = {name: [value for part in parts for value in part.state.get(name, ())] for name in names}

    def begin_epoch(self) -> None:
        """Begin the epoch of each optimizer."""
        for part in self._parts:
            part.begin_epoch()

    def end_epoch(self) -> None:
        """End the epoch of each optimizer."""
        for part in self._parts:
            part.end_epoch()

    def step(self, grads: Gradients, norm: Tensor, found_inf: Tensor | None) -> None:
        """Step each optimizer, whose gradients are clipped by the norm of all."""
        for part in self._parts:
            part.lr_scale = self.lr_scale
            part.step(part.gradients(), norm, found_inf)


def _build(spec: Optimizer, named: NamedParameters) -> Any:
    """Return the optimizer of some parameters. Raises TaskError if it cannot be built."""
    name = optimizer_name(spec)
    try:
        built: Any = (
            spec.build(_group_parameters(spec, named), **spec.options)
            if spec.takes_groups
            else spec.build(list(named), **spec.options)
        )
    except user_errors() as error:
        raise TaskError(f"the optimizer {name} cannot be built: {describe_exception(error)}") from error
    groups: Any = getattr(built, "param_groups", None)
    if not (isinstance(groups, list) and hasattr(built, "step") and hasattr(built, "state")):
        kind = type(built).__name__
        raise TaskError(f"{name} returned {kind}, which does not have the interface of torch.optim.Optimizer")
    found = [id(parameter) for group in cast("list[dict[str, Any]]", groups) for parameter in group["params"]]
    for label, parameter in named:
        if found.count(id(parameter)) != 1:
            problem = "leaves out the parameter" if id(parameter) not in found else "has twice the parameter"
            raise TaskError(f"the optimizer {name} {problem} {label}; each must be in exactly one group")
    if any("lr" not in group for group in groups):
        raise TaskError(f"the optimizer {name} has a group without a learning rate lr, which the schedule changes")
    return built


def _group_parameters(spec: Optimizer, named: NamedParameters) -> list[dict[str, Any]]:
    """Return the groups of some parameters, without those that contain none of them."""
    groups = [{"params": list[nn.Parameter](), **group.options} for group in spec.groups]
    rest = {"params": list[nn.Parameter]()}
    for name, parameter in named:
        chosen = _group_index(spec.groups, name, parameter)
        (rest if chosen is None else groups[chosen])["params"].append(parameter)
    return [group for group in (rest, *groups) if group["params"]]


def _group_index(groups: Sequence[Group], name: str, parameter: nn.Parameter) -> int | None:
    """Return the index of the first group that contains a parameter; None if none does."""
    return next((index for index, group in enumerate(groups) if group.contains(name, parameter)), None)


def _try_steps(spec: Optimizer, named: NamedParameters) -> _Found:
    """Return what an optimizer keeps, found by steps of another one on copies of the parameters.

    Raises:
        TaskError: A step fails, or it keeps something else than numbers and tensors.
    """
    copies = [(name, nn.Parameter(parameter.detach().clone())) for name, parameter in named]
    trial, name = _build(spec, copies), optimizer_name(spec)
    try:
        if hasattr(trial, "train"):
            trial.train()
        for _ in range(_TRIAL_STEPS):
            for _, parameter in copies:
                parameter.grad = torch.full_like(parameter, _TRIAL_GRADIENT)
            trial.step()
    except user_errors() as error:
        if "closure" in describe_exception(error):
            raise TaskError(
                f"the optimizer {name} needs a closure, because it computes the loss several times in a step; choose "
                "one whose step() needs none"
            ) from error
        raise TaskError(f"a step of the optimizer {name} fails: {describe_exception(error)}") from error
    kept = [_kept_values(trial.state.get(parameter) or {}, name) for _, parameter in copies]
    return _Found(kept, trial.param_groups)


def _kept_values(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    for key, value in values.items():
        if value is not None and not isinstance(value, Tensor | int | float):
            raise TaskError(
                f"the optimizer {name} keeps {key!r}, a {type(value).__name__}; only numbers and tensors can be "
                "written to checkpoints"
            )
    return {key: value for key, value in values.items() if value is not None}


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a group that may be state: schedule-free optimizers count their steps there."""
    return {key: value for key, value in group.items() if isinstance(value, int | float) and key not in _NOT_STATE}


def _value_of(entry: _Entry) -> Any:
    if entry.kind is not Tensor:
        return entry.kind(entry.value.item())
    return entry.value if entry.device == entry.value.device else entry.value.to(entry.device)
