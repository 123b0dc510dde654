"""Set-up of a task for a run or an evaluation: code, data, slots, and the check that it is the task of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from esper.common.configuration.config import Config, ConfigError, TaskError
from esper.common.formatting import suggest
from esper.common.system.process import RankInfo
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.common.user_code.references import TaskOrigin
from esper.networks.tasks import fill_in_settings, load_task
from esper.networks.tasks.data_loading import load_data_once
from esper.networks.tasks.loading import describe_changes
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.settings import override_settings
from esper.networks.tasks.splits import TaskData
from esper.networks.tasks.task import Task


class PreparedTask(NamedTuple):
    """A task that is ready to train."""

    task: Task
    data: TaskData
    profile: TaskProfile
    config: Config
    """Configuration with the task's name, its settings and its slots filled in."""
    origin: TaskOrigin | None
    """Source of the task, for checkpoints; None for a built-in task."""
    defaults: dict[str, Any]
    """Slots and settings of the task itself, before the configuration replaces them: a part of a configuration."""


class SavedTask(NamedTuple):
    """The task of a checkpoint from which a run resumes, or that is evaluated."""

    name: str
    origin: TaskOrigin | None


def prepare_task(
    config: Config,
    task: Task | None = None,
    saved: SavedTask | None = None,
    *,
    accept_changed: bool = False,
    ranks: RankGroup = SINGLE_RANK,
) -> PreparedTask:
    """Load the task that the configuration names, and its data; find its slots.

    Args:
        config: Configuration whose `task` is a name or a reference.
        task: Task to use in place of the one that the configuration names.
        saved: Task of the checkpoint; None for a new run.
        accept_changed: Accept that the task's code has changed since the checkpoint.
        ranks: Ranks of the run, which load the data together.

    Raises:
        TaskError: The task cannot be loaded or grown, or is not that of the checkpoint.
        ConfigError: A slot is unknown.
    """
    task = task or load_task(config.task)
    if saved:
        _check_same(task, saved, accept_changed=accept_changed)
    own = msgspec.to_builtins(fill_in_settings(Config(), task).training)
    task = override_settings(task, config.training)
    directory = Path(config.data_dir) if config.data_dir else None
    data = load_data_once(task, directory, ranks, RankInfo.from_environment())
    profile = probe_task(task, data, _select_slots(config, task))
    if saved and saved.origin:
        profile = profile.with_shared_prefix(saved.origin.shares_prefix)
    slots = tuple(site.name for site in profile.sites)
    config = msgspec.structs.replace(fill_in_settings(config, task), task=task.name, slots=slots)
    origin = None
    if task.source:
        origin = TaskOrigin(task.source.reference, dict(task.source.digests), profile.shares_prefix)
    defaults = {"slots": [*slots, *(name for name in task.slots if name not in slots)], "training": own}
    return PreparedTask(task, data, profile, config, origin, defaults)


def _check_same(task: Task, saved: SavedTask, *, accept_changed: bool) -> None:
    if task.name != saved.name:
        raise TaskError(f"the checkpoint was made with the task {saved.name}, not {task.name}")
    if task.source and saved.origin and not accept_changed:
        changes = describe_changes(saved.origin.digests, task.source.digests)
        if changes:
            raise TaskError(
                f"the code of the task {task.name} differs from that of the checkpoint: {changes}; "
                "use it nevertheless with --accept-changed-task"
            )


def _select_slots(config: Config, task: Task) -> Sequence[str]:
    """Return the names of the configured slots, or of all. Raises ConfigError."""
    for name in config.slots:
        if name not in task.slots:
            raise ConfigError(f"--slots {name!r} is not a slot of the task {task.name}; {suggest(name, task.slots)}")
    return [name for name in task.slots if not config.slots or name in config.slots]
