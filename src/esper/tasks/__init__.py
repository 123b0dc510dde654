"""Data sets, and the host that each one trains. Importing this package does not import torch; getting a task does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.tasks.names import TASK_NAMES, TaskError, check_task_name

if TYPE_CHECKING:
    from esper.tasks.task import Task

__all__ = ["TASK_NAMES", "TaskError", "check_task_name", "get_task"]


def get_task(name: str) -> Task:
    """The task of this name.

    Raises:
        TaskError: there is none; it names the nearest.
    """
    check_task_name(name)
    from esper.tasks.registry import TASKS  # here, so that the names are known without torch

    return TASKS[name]
