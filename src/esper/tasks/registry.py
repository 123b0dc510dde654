"""The tasks by name. To add one, list it here, its name in `names.py`, and its training in `settings.py`."""

from __future__ import annotations

from collections.abc import Mapping

from esper.tasks.cifar import CIFAR10_TASK, CIFAR_IMPAIRED
from esper.tasks.digits import DIGITS, DIGITS_IMPAIRED
from esper.tasks.synthetic import SYNTHETIC
from esper.tasks.task import Task

TASKS: Mapping[str, Task] = {
    task.name: task for task in (DIGITS_IMPAIRED, DIGITS, SYNTHETIC, CIFAR10_TASK, CIFAR_IMPAIRED)
}
