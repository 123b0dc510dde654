"""Families of tasks: in each round, every host draws a context, a structure with settings.

A family is a `Task` with several structures. They share data, loss, score and optimizers, and differ in the model and
its slots. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from esper.tasks.task import Task

if TYPE_CHECKING:
    import torch

    from esper.tasks.splits import Splits

RENT, LEARNING_RATE = "rent", "learning_rate"
"""Settings that the engine applies: the weight of the rent, and the learning rate of the host."""
MAX_STRUCTURES = 4
"""Maximum number of structures of a family."""

_SHARED_FIELDS = (
    *("data", "loss", "score", "metrics", "augment", "optimizer", "seed_optimizer", "train"),
    *("batch_size", "validation_batch", "samples_per_epoch"),
)
"""Fields in which the structures of a family agree."""
Value: TypeAlias = "float | str"
ChangeData: TypeAlias = "Callable[[Splits, Any, torch.Generator], Splits]"
"""Function of the data, the drawn value and a generator on the CPU that returns the changed data."""


@dataclass(frozen=True)
class Setting:
    """A property in which the contexts of a family differ.

    Attributes:
        values: Values that can be drawn: numbers or texts.
        weights: Relative frequency of each value; None: all alike.
        data: Function that changes the data; None for the settings `rent` and `learning_rate`.
    """

    values: Sequence[Value]
    weights: Sequence[float] | None = None
    data: ChangeData | None = None


@dataclass(frozen=True, kw_only=True)
class TaskFamily(Task):
    """A task with several structures. Made by `Family`; its model and slots are those of the largest structure.

    Attributes:
        structures: Tasks whose models and slots the contexts have.
        settings: Settings of a context, keyed by name, in the order in which they change the data.
    """

    structures: Sequence[Task] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])


def Family(name: str, structures: Sequence[Task], settings: Mapping[str, Setting] | None = None) -> TaskFamily:  # noqa: N802 (used like a class)
    """Return a family of tasks.

    The structures differ in their models and slots, and agree in data, loss, score, optimizers and batches. The slots
    of each structure are named as the first ones of the structure with the most slots.

    Args:
        name: Name of the family, as `Task.name`.
        structures: One to four tasks.
        settings: Settings that are drawn for each context.

    Raises:
        ValueError: A structure or a setting is not valid.
    """
    settings = settings or {}
    problems = [*_structure_problems(structures), *_setting_problems(settings)]
    if problems:
        raise ValueError(f"family {name!r}: {problems[0]}")
    largest = max(structures, key=lambda task: len(task.slots))
    base: dict[str, Any] = {attribute: getattr(largest, attribute) for attribute in Task.__dataclass_fields__}
    base |= {"name": name, "blueprints": structures[0].blueprints, "wide_model": None}
    return TaskFamily(**base, structures=tuple(structures), settings=dict(settings))


def structures_of(task: Task) -> Sequence[Task]:
    """Return the structures of a task: itself if it is not a family."""
    return task.structures if isinstance(task, TaskFamily) else (task,)


def settings_of_family(task: Task) -> Mapping[str, Setting]:
    """Return the settings of the contexts of a task, keyed by name; empty if it is not a family."""
    return task.settings if isinstance(task, TaskFamily) else {}


def _structure_problems(structures: Sequence[Task]) -> list[str]:
    if not 1 <= len(structures) <= MAX_STRUCTURES:
        return [f"structures must be 1 to {MAX_STRUCTURES} tasks, got {len(structures)}"]
    names = [task.name for task in structures]
    found = [f"two structures are named {name!r}" for name in names if names.count(name) > 1]
    longest = max((list(task.slots) for task in structures), key=len)
    for task in structures:
        slots = list(task.slots)
        if slots != longest[: len(slots)]:
            wanted = ", ".join(longest[: len(slots)])
            found.append(
                f"the slots of {task.name!r} are {', '.join(slots)}; name them {wanted}, as in other structures"
            )
        for attribute in _SHARED_FIELDS:
            if getattr(task, attribute) != getattr(structures[0], attribute):
                found.append(f"{attribute} of {task.name!r} differs from that of {structures[0].name!r}")
    return found


def _setting_problems(settings: Mapping[str, Setting]) -> list[str]:
    found: list[str] = []
    for name, setting in settings.items():
        if not name.isidentifier():
            found.append(f"the setting {name!r} is not a valid name; use letters, digits and _")
        if not setting.values:
            found.append(f"the setting {name!r} has no values")
        if setting.weights is not None and (
            len(setting.weights) != len(setting.values) or min(setting.weights) < 0 or sum(setting.weights) <= 0
        ):
            found.append(f"the weights of {name!r} must be one for each value, none negative, and not all 0")
        if (setting.data is None) != (name in (RENT, LEARNING_RATE)):
            known = f"{RENT} and {LEARNING_RATE}"
            found.append(
                f"the setting {name!r} needs data=, a function that changes the data; only {known} have none"
                if setting.data is None
                else f"the setting {name!r} has no data= function, because the engine applies {known}"
            )
    return found
