"""Hosts of a task: built by its model function with seeded generators, with their frozen parts found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.formatting import suggest
from esper.common.seeding import forked_generators, make_generator
from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.tasks.task import Task


class Host(NamedTuple):
    """A host, and the modules of it that are not trained."""

    model: nn.Module
    frozen: tuple[nn.Module, ...]
    """Modules that stay in evaluation mode; their parameters require no gradient."""

    def set_mode(self, *, is_training: bool) -> None:
        """Set training or evaluation mode; frozen modules stay in evaluation mode."""
        self.model.train(is_training)
        for module in self.frozen:
            module.training = False


def build_host(task: Task, seed: int, host: int, round_index: int) -> Host:
    """Build a host on the CPU. Its initial values depend on the arguments only.

    The model function runs with torch, numpy and random seeded for this host; which are restored afterwards.

    Raises:
        TaskError: The model function raises an exception, or the model has no submodule that `task.train` names.
    """
    number = make_generator(seed, "host", host, round_index).initial_seed()
    try:
        with isolated(f"model of task {task.name}"), forked_generators(number), torch.enable_grad():  # it may train
            model = task.model()
    except TaskError:
        raise
    except user_errors() as error:
        raise TaskError(f"model of task {task.name}: {describe_exception(error)}") from error
    return Host(model, _freeze(task, model))


def widen(task: Task, width: float) -> Task:
    """Return a task with a `wide_model`, with the widths of its model multiplied by a factor."""
    assert task.wide_model is not None
    return replace(task, model=partial(task.wide_model, width))


def _freeze(task: Task, model: nn.Module) -> tuple[nn.Module, ...]:
    """Let only the trained submodules require gradients, and return the modules that are not trained."""
    if task.train is True:
        return ()
    trained: set[nn.Module] = set()
    parameters: set[nn.Parameter] = set()
    for path in task.train or ():
        submodule = find_submodule(model, path, f"train of task {task.name}")
        trained.update(submodule.modules())
        parameters.update(submodule.parameters())
    for parameter in model.parameters():
        if parameter not in parameters:
            parameter.requires_grad_(False)
    return tuple(module for module in model.modules() if module not in trained)


def find_submodule(model: nn.Module, path: str, where: str) -> nn.Module:
    """Return the submodule of this path.

    Raises:
        TaskError: The model has none; the message suggests the nearest paths.
    """
    modules = dict(cast("Iterable[tuple[str, nn.Module]]", model.named_modules()))
    if path not in modules or not path:
        known = [name for name in modules if name]
        raise TaskError(f"{where}: the model has no submodule {path!r}; {suggest(path, known)}")
    return modules[path]


def frozen_tensors(host: Host) -> dict[str, Tensor]:
    """Return the weights that all hosts share: parameters without gradient, and buffers of frozen modules."""
    found: dict[str, Tensor] = {
        name: parameter for name, parameter in host.model.named_parameters() if not parameter.requires_grad
    }
    buffers = {id(buffer) for module in host.frozen for buffer in module.buffers(recurse=False)}
    return found | {name: buffer for name, buffer in host.model.named_buffers() if id(buffer) in buffers}


def share_tensors(host: Host, shared: Mapping[str, Tensor]) -> None:
    """Replace the frozen weights of a host by shared ones of the same names, without a copy.

    Args:
        shared: Result of `frozen_tensors` of the first host, on the device of this one.
    """
    replaced = {tensor: shared[name] for name, tensor in frozen_tensors(host).items()}
    for module in host.model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter in replaced:
                setattr(module, name, replaced[parameter])
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if buffer in replaced:
                setattr(module, name, replaced[buffer])
