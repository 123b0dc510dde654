"""Tasks by name. To add a task, list it here, its name in `names.py`, and its settings in `settings.py`."""

from __future__ import annotations

from collections.abc import Mapping

from esper.config import TaskError
from esper.formatting import nearest
from esper.tasks.cifar import CIFAR10_TASK, CIFAR_IMPAIRED_TASK
from esper.tasks.digits import DIGITS_IMPAIRED_TASK, DIGITS_TASK
from esper.tasks.synthetic import SYNTHETIC_TASK
from esper.tasks.task import Task

TASKS: Mapping[str, Task] = {
    task.name: task for task in (DIGITS_IMPAIRED_TASK, DIGITS_TASK, SYNTHETIC_TASK, CIFAR10_TASK, CIFAR_IMPAIRED_TASK)
}


TASK_NAMES = ("digits_impaired", "digits", "synthetic", "cifar10", "cifar_impaired")
"""Names of the tasks; the first is the default."""


def check_task_name(name: str) -> None:
    """Check that a task has this name.

    Raises:
        TaskError: No task has this name; the message suggests the nearest one.
    """
    if name not in TASK_NAMES:
        raise TaskError(f"unknown task {name!r}: {nearest(name, TASK_NAMES)}")
