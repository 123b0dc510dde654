"""The built-in tasks by name, and where each is defined. Needs no torch.

To add a task, list it here. Its module must not import torch at its top level, because the command line reads the
settings of all built-in tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from esper.common.configuration.config import TaskError
from esper.common.formatting import suggest
from esper.networks.tasks.family import MIXED, mix_tasks
from esper.networks.tasks.task import Task

TASKS = {
    "digits_impaired": "digits:DIGITS_IMPAIRED_TASK",
    "digits": "digits:DIGITS_TASK",
    "digits_family": "digits_family:DIGITS_FAMILY",
    "synthetic": "synthetic:SYNTHETIC_TASK",
    "mnist1d": "mnist1d:MNIST1D_TASK",
    "recall": "recall:RECALL_TASK",
    "cifar10": "cifar:CIFAR10_TASK",
    "cifar_impaired": "cifar:CIFAR_IMPAIRED_TASK",
    "fashion_mnist": "fashion_mnist:FASHION_MNIST_TASK",
}
"""Module and attribute of each task."""

TASK_NAMES = tuple(TASKS)
"""Names of the tasks; the first is the default."""


def is_built_in(name: str) -> bool:
    """Return True if a name is that of a built-in task, or of a mixture of them."""
    return all(part in TASKS for part in name.split(MIXED))


def get_built_in(name: str) -> Task:
    """Return the built-in task of this name, or the mixture of several ones whose names are joined by `MIXED`.

    Raises:
        TaskError: No task has this name, or the tasks cannot be mixed.
    """
    names = name.split(MIXED)
    if len(names) > 1:
        return mix([get_built_in(part) for part in names])
    if name not in TASKS:
        raise TaskError(f"unknown task {name!r}; {suggest(name, TASK_NAMES)}")
    module, attribute = TASKS[name].split(":")
    return getattr(import_module(f"esper.networks.tasks.builtin.{module}"), attribute)


def mix(tasks: Sequence[Task]) -> Task:
    """Return the mixture of some tasks. Raises TaskError if they cannot be mixed."""
    try:
        return mix_tasks(tasks)
    except ValueError as error:
        raise TaskError(str(error)) from None
