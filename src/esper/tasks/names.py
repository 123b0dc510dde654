"""The names of the tasks, for a command line that must answer before torch is imported."""

from __future__ import annotations

from esper.nearest import nearest

TASK_NAMES = ("digits_impaired", "digits", "synthetic", "cifar10", "cifar_impaired")
"""The default comes first."""


class TaskError(ValueError):
    """A task cannot be had: its name is unknown, or its data set is missing or damaged. One sentence for the user."""


def check_task_name(name: str) -> None:
    """Refuse a name that no task has.

    Raises:
        TaskError: with the nearest valid name.
    """
    if name not in TASK_NAMES:
        raise TaskError(f"unknown task {name!r}: {nearest(name, TASK_NAMES)}")
