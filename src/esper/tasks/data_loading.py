"""Loads the data of a task."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from esper.config import TaskError
from esper.seeding import forked_generators, make_generator
from esper.tasks.splits import Splits
from esper.tasks.task import Task
from esper.user_code import describe_exception


def load_data(task: Task, directory: Path | None) -> Splits:
    """Call the data function of a task, with torch, numpy and random seeded, so that each call returns the same data.

    Args:
        task: Task whose data are loaded.
        directory: Argument of the function.

    Raises:
        TaskError: The function raises an exception, or does not return `Splits`.
    """
    try:
        with forked_generators(make_generator(0, "data").initial_seed()):
            splits = cast("object", task.data(directory))
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"data of task {task.name}: {describe_exception(error)}") from error
    if not isinstance(splits, Splits):
        raise TaskError(f"data of task {task.name} returned a {type(splits).__name__}; return esper.Splits")
    return splits
