"""Tasks: models, their slots and their data. Importing this package does not import torch."""

from __future__ import annotations

from esper.common.configuration.config import TaskError
from esper.networks.tasks.loading import check_task_reference, load_task
from esper.networks.tasks.registry import TASK_NAMES, is_built_in
from esper.networks.tasks.settings import fill_in_settings, own_values, with_task_settings

__all__ = [
    "TASK_NAMES",
    "TaskError",
    "check_task_reference",
    "fill_in_settings",
    "is_built_in",
    "load_task",
    "own_values",
    "with_task_settings",
]
