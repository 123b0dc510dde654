"""Settings of a task that the `[training]` table of the configuration can override. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from esper.common.configuration.config import Config, TaskError, TrainingConfig
from esper.networks.tasks.family import TaskFamily
from esper.networks.tasks.optimizers import (
    AnyOptimizer,
    get_setting,
    optimizer_name,
    setting_names,
    with_settings,
)
from esper.networks.tasks.registry import TASKS, get_built_in, is_built_in
from esper.networks.tasks.task import Task

_OPTIMIZER_KEYS = ("momentum", "weight_decay")
"""Settings of host and seeds together."""


def settings_of(task: Task) -> dict[str, float | None]:
    """Return the task's own value of each key of `[training]` that has no other default, by field name.

    None for a value that the task does not have, or that differs between host and seeds, or between structures.
    """
    if isinstance(task, TaskFamily):
        first, *others = map(settings_of, task.structures)
        return {name: value if all(other[name] == value for other in others) else None for name, value in first.items()}
    values: dict[str, float | None] = {
        "host_clip": task.clip,
        "seed_clip": task.seed_clip,
        "host_learning_rate": task.optimizer.learning_rate,
        "seed_learning_rate": task.seed_optimizer.learning_rate,
        "batch_size": task.batch_size,
        "samples_per_epoch": task.samples_per_epoch,
    }
    for name in _OPTIMIZER_KEYS:
        host, seed = (get_setting(optimizer, name) for optimizer in (task.optimizer, task.seed_optimizer))
        values[name] = host if host == seed else None
    return values


def fill_in_settings(config: Config, task: Task) -> Config:
    """Return the configuration with the task's own settings in place of those that it leaves open."""
    own = {name: value for name, value in settings_of(task).items() if getattr(config.training, name) is None}
    return msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **own))


def override_settings(task: Task, training: TrainingConfig) -> Task:
    """Return the task with the settings of a `[training]` table in place of its own.

    Raises:
        TaskError: A setting does not exist for the task's optimizer.
    """
    given = {name: value for name in settings_of(task) if (value := getattr(training, name)) is not None}
    shared = {name: given.pop(name) for name in _OPTIMIZER_KEYS if name in given}
    if "host_clip" in given:
        given["clip"] = given.pop("host_clip")
    if isinstance(task, TaskFamily):
        structures = tuple(override_settings(structure, training) for structure in task.structures)
        task = replace(task, structures=structures)
    return replace(
        task,
        optimizer=_override(task, "optimizer", given.pop("host_learning_rate", None), shared),
        seed_optimizer=_override(task, "seed_optimizer", given.pop("seed_learning_rate", None), shared),
        **given,
    )


def _override(task: Task, name: str, learning_rate: float | None, shared: dict[str, float]) -> AnyOptimizer:
    optimizer: AnyOptimizer = getattr(task, name)
    values = shared if learning_rate is None else {**shared, "learning_rate": learning_rate}
    for key in sorted(values.keys() - setting_names(optimizer)):
        option = key if key in shared else f"{'seed' if name == 'seed_optimizer' else 'host'}-{key}"
        option = option.replace("_", "-")
        raise TaskError(
            f"training.{option} = {values[key]} does not apply to task {task.name}, whose {name} is "
            f"{optimizer_name(optimizer)}, which has no {key}; remove --training.{option}, or the key from the file of "
            "--config"
        )
    return with_settings(optimizer, values)


def with_task_settings(config: Config) -> Config:
    """Return the configuration with the settings of its built-in task filled in; of other tasks, unchanged."""
    return fill_in_settings(config, get_built_in(config.task)) if is_built_in(config.task) else config


def own_values(name: str) -> dict[str, float | None]:
    """Return the value of each built-in task by task name, for a key of `settings_of`."""
    return {task: settings_of(get_built_in(task))[name] for task in TASKS}
