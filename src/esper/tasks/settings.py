"""Training settings of every task, which the `[training]` table of the configuration can override. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import msgspec

from esper.config import Config
from esper.tasks.registry import check_task_name


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings of SGD with Nesterov momentum. Each has a key of the same name in `[training]`."""

    batch_size: int
    samples_per_epoch: int
    """Samples of the training split per epoch, for any number of envs."""
    host_learning_rate: float
    seed_learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 5e-4


_DIGITS = TaskSettings(batch_size=128, samples_per_epoch=1024, host_learning_rate=0.05, seed_learning_rate=0.2)
_CIFAR = TaskSettings(batch_size=128, samples_per_epoch=12_800, host_learning_rate=0.1, seed_learning_rate=0.1)

TASK_SETTINGS: Mapping[str, TaskSettings] = {
    "digits_impaired": _DIGITS,
    "digits": _DIGITS,
    "synthetic": replace(_CIFAR, samples_per_epoch=512),
    "cifar10": _CIFAR,
    "cifar_impaired": _CIFAR,
}


def settings_of(config: Config) -> TaskSettings:
    """Return the settings of a run: those in its configuration, and the task's own for the rest.

    Raises:
        TaskError: The task name is unknown.
    """
    check_task_name(config.task)
    own = TASK_SETTINGS[config.task]
    given = {field.name: getattr(config.training, field.name) for field in fields(own)}
    return replace(own, **{name: value for name, value in given.items() if value is not None})


def with_task_settings(config: Config) -> Config:
    """Return the configuration with the task's own settings in place of those that it leaves open.

    Raises:
        TaskError: The task name is unknown.
    """
    training = msgspec.structs.replace(config.training, **asdict(settings_of(config)))
    return msgspec.structs.replace(config, training=training)


def with_recorded_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded configuration with the settings of its task, which older recordings lack.

    Args:
        config: Configuration as a recording stores it; may be of another version of this program.
    """
    own = TASK_SETTINGS.get(config.get("task", ""))
    recorded = config.get("training", {})
    if own is None or not isinstance(recorded, dict):
        return config
    settings = {name.replace("_", "-"): value for name, value in asdict(own).items()}
    return {**config, "training": {**settings, **recorded}}


def own_values(name: str) -> dict[str, float]:
    """Return the value of each task by name, for a field of `TaskSettings`."""
    return {task: getattr(settings, name) for task, settings in TASK_SETTINGS.items()}
