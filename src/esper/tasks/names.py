"""Task names, importable without torch."""

from __future__ import annotations

from esper.nearest import nearest

TASK_NAMES = ("digits_impaired", "digits", "synthetic", "cifar10", "cifar_impaired")
"""Names of the tasks; the first is the default."""


class TaskError(ValueError):
    """An unknown task name, or a missing or damaged data set. The message is one sentence for the user."""


def check_task_name(name: str) -> None:
    """Check that a task has this name.

    Raises:
        TaskError: No task has this name; the message suggests the nearest one.
    """
    if name not in TASK_NAMES:
        raise TaskError(f"unknown task {name!r}: {nearest(name, TASK_NAMES)}")
