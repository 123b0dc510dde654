"""Tasks by name. Importing this package does not import torch; `get_task` does."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import import_module
from typing import TYPE_CHECKING

from esper.config import TaskError
from esper.tasks.registry import TASK_NAMES, TASKS, check_task_name
from esper.tasks.settings import own_values, settings_of, with_recorded_settings, with_task_settings

if TYPE_CHECKING:
    from esper.config import Config
    from esper.tasks.task import Task

__all__ = [
    "TASK_NAMES",
    "TaskError",
    "check_task_name",
    "configured_task",
    "get_task",
    "own_values",
    "with_recorded_settings",
    "with_task_settings",
]


def get_task(name: str) -> Task:
    """Return the task of this name. Imports torch.

    Raises:
        TaskError: No task has this name.
    """
    check_task_name(name)
    module, attribute = TASKS[name].split(":")
    return getattr(import_module(f"esper.tasks.{module}"), attribute)


def configured_task(config: Config) -> Task:
    """Return the task of a run, with the settings of its `[training]` table.

    Raises:
        TaskError: The task name is unknown.
    """
    return replace(get_task(config.task), **asdict(settings_of(config)))
