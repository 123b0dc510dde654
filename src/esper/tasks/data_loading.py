"""Loads the data of a task."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from esper.config import TaskError
from esper.seeding import forked_generators, make_generator
from esper.tasks.family import structures_of
from esper.tasks.splits import Splits, TaskData
from esper.tasks.task import Task
from esper.user_code import describe_exception


def load_data(task: Task, directory: Path | None) -> TaskData:
    """Load the data of each structure of a task. A data function of several structures is called once.

    Args:
        task: Task whose data are loaded.
        directory: Argument of the functions.

    Raises:
        TaskError: A function raises an exception, or does not return `Splits`.
    """
    structures = structures_of(task)
    loaded = {structure.data: structure for structure in structures}
    splits = {data: _load_splits(structure, directory) for data, structure in loaded.items()}
    return tuple(splits[structure.data] for structure in structures)


def _load_splits(task: Task, directory: Path | None) -> Splits:
    """Call a data function, with torch, numpy and random seeded, so that each call returns the same data."""
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
