"""Dry run of the recipe of a task: its schedule, and its own optimizers on every seed that can be planted."""

from __future__ import annotations

from esper.common.configuration.config import TaskError
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.seeds.blend import BlendGate
from esper.networks.seeds.network import count_samples
from esper.networks.tasks.checks.seeds import new_seed
from esper.networks.tasks.family import structures_of
from esper.networks.tasks.optimizers import Optimizer
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.schedules import check_schedule, describe_schedule
from esper.networks.tasks.splits import TaskData
from esper.networks.tasks.task import Task
from esper.training.envs.task_optimizer import make_optimizer


def check_recipe(task: Task, profile: TaskProfile, data: TaskData, steps: int) -> None:
    """Compute all factors of the schedule, and try the optimizer of the seeds.

    The optimizer of the host is tried when the host is built.

    Args:
        steps: Steps of an episode.

    Raises:
        TaskError: The user's code raises an exception, or cannot be used.
    """
    for index, structure in enumerate(structures_of(task)):
        try:
            batches = structure.count_epoch_batches(count_samples(data[index].train[0]))
            check_schedule(structure.schedule, steps, batches)
        except user_errors() as error:
            name = describe_schedule(structure.schedule)
            raise TaskError(f"the schedule {name} of task {structure.name}: {describe_exception(error)}") from error
        if isinstance(structure.seed_optimizer, Optimizer):
            _check_seed_optimizer(structure, profile.of_structure(index), structure.seed_optimizer)


def _check_seed_optimizer(task: Task, profile: TaskProfile, spec: Optimizer) -> None:
    for site in profile.sites:
        modules = {f"a seed {blueprint!r}": new_seed(site, blueprint) for blueprint in site.blueprints}
        for name, module in {**modules, "a blend gate": BlendGate(site.channels)}.items():
            try:
                make_optimizer(spec, list(module.named_parameters()), task.seed_clip)
            except TaskError as error:
                raise TaskError(f"seed_optimizer of task {task.name}, for {name}: {error}") from error
