"""Loads the data of a task, once on each machine: the ranks of a run there share them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from esper.common.configuration.config import TaskError
from esper.common.seeding import forked_generators, make_generator
from esper.common.system.process import RankInfo
from esper.common.system.ranks import RankGroup
from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.tasks.family import structures_of
from esper.networks.tasks.per_sample import PerSample
from esper.networks.tasks.splits import Splits, TaskData, read_data, write_data
from esper.networks.tasks.task import Task


def load_data(task: Task, directory: Path | None) -> TaskData:
    """Load the data of each structure of a task. A data function of several structures is called once.

    Raises:
        TaskError: A function raises an exception, or does not return `Splits`.
    """
    structures = structures_of(task)
    loaded = {structure.data: structure for structure in structures}
    splits = {data: _load_splits(structure, directory) for data, structure in loaded.items()}
    keys = {(structure.data, id(structure.augment)): structure for structure in structures}
    changed = {key: _transformed(structure, splits[structure.data]) for key, structure in keys.items()}
    return tuple(changed[structure.data, id(structure.augment)] for structure in structures)


def load_data_once(task: Task, directory: Path | None, ranks: RankGroup, info: RankInfo) -> TaskData:
    """Load the data of a task on the first rank of each machine, which writes them to a file for the other ranks.

    The file is removed as soon as all ranks have mapped it. Collective: all ranks must call it together.

    Raises:
        TaskError: The data function of a rank fails, or the file cannot be written or read. Every rank raises it.
    """
    if ranks.is_single:
        return load_data(task, directory)
    data, path, problem = None, None, None
    with ExitStack() as opened:
        try:
            if info.local_rank == 0:
                data = load_data(task, directory)
                file = opened.enter_context(tempfile.NamedTemporaryFile(prefix="esper-data-"))
                write_data(data, file)
                path = file.name
        except (OSError, TaskError) as error:
            problem = _describe(error, task)
        outcomes = ranks.all_gather_object((path, problem))
        _raise_first([problem for _, problem in outcomes])
        try:
            if data is None:
                data = read_data(Path(str(outcomes[info.rank - info.local_rank][0])))
        except OSError as error:
            problem = _describe(error, task)
        _raise_first(ranks.all_gather_object(problem))
    assert data is not None
    return data


def _load_splits(task: Task, directory: Path | None) -> Splits:
    """Call a data function, with torch, numpy and random seeded, so that each call returns the same data."""
    try:
        seed = make_generator(0, "data").initial_seed()
        with isolated(f"data of task {task.name}"), forked_generators(seed):
            splits = cast("object", task.data(directory))
    except TaskError:
        raise
    except user_errors() as error:
        raise TaskError(f"data of task {task.name}: {describe_exception(error)}") from error
    if not isinstance(splits, Splits):
        raise TaskError(f"data of task {task.name} returned a {type(splits).__name__}; return esper.Splits")
    return splits


def _transformed(task: Task, splits: Splits) -> Splits:
    """Return the data with the transform of a task, if it has one for each sample. Raises TaskError."""
    if not isinstance(task.augment, PerSample):
        return splits
    try:
        return splits.transformed(task.augment.transform)
    except ValueError as error:
        raise TaskError(f"augment of task {task.name}: {error}") from error


def _describe(error: OSError | TaskError, task: Task) -> str:
    if isinstance(error, TaskError):
        return str(error)
    return f"data of task {task.name} cannot be shared by the ranks of this machine: {error.strerror or error}"


def _raise_first(problems: list[str | None]) -> None:
    for problem in problems:
        if problem:
            raise TaskError(problem)
