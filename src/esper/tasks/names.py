"""Task names, importable without torch."""

from __future__ import annotations

from esper.config import TaskError
from esper.formatting import nearest

TASK_NAMES = ("digits_impaired", "digits", "synthetic", "cifar10", "cifar_impaired")
"""Names of the tasks; the first is the default."""


def check_task_name(name: str) -> None:
    """Check that a task has this name.

    Raises:
        TaskError: No task has this name; the message suggests the nearest one.
    """
    if name not in TASK_NAMES:
        raise TaskError(f"unknown task {name!r}: {nearest(name, TASK_NAMES)}")
