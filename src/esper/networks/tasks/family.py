"""Families of tasks: in each round, every host draws a context, a structure with settings.

A family is a `Task` with several structures, tasks that may differ in everything. Importing this module does not import
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from esper.common.configuration.config import MAX_LEARNING_RATE
from esper.common.formatting import suggest
from esper.networks.tasks.optimizers import describe_optimizer
from esper.networks.tasks.schedules import describe_schedule
from esper.networks.tasks.task import NAME_RULE, Task

if TYPE_CHECKING:
    import torch

    from esper.networks.tasks.splits import Splits

RENT, LEARNING_RATE = "rent", "learning_rate"
"""Settings that the engine applies: the weight of the rent, and the learning rate of the host."""
MAX_STRUCTURES = 8
"""Maximum number of structures of a family."""
MIXED = "+"
"""Joins the names of the tasks of a mixture."""
Value: TypeAlias = "float | str"
ChangeData: TypeAlias = "Callable[[Splits, Any, torch.Generator], Splits]"
"""Function of the data, the drawn value and a generator on the CPU that returns the changed data."""


@dataclass(frozen=True)
class Setting:
    """A property in which the contexts of a family differ.

    Attributes:
        values: Values that can be drawn: numbers or texts.
        weights: Relative frequency of each value; None: all alike.
        data: Function of the splits, the drawn value and a CPU generator that returns changed splits; None for the
            settings `rent` (of the reward, per step) and `learning_rate` (of the host), which the engine applies.
        structures: Names of the structures that have the setting; None: all.
    """

    values: Sequence[Value]
    weights: Sequence[float] | None = None
    data: ChangeData | None = None
    structures: Sequence[str] | None = None

    def applies_to(self, structure: str) -> bool:
        """Return True if a structure has the setting."""
        return self.structures is None or structure in self.structures


@dataclass(frozen=True, kw_only=True)
class TaskFamily(Task):
    """A task with several structures, built by `Family`.

    The fields inherited from `Task` describe the structure with the most slots.

    Attributes:
        structures: Tasks whose models and slots the contexts have.
        settings: Settings of a context, keyed by name, in the order in which they change the data.
    """

    NAME_SIGNS: ClassVar[str] = Task.NAME_SIGNS + MIXED

    structures: Sequence[Task] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])


def Family(name: str, structures: Sequence[Task], settings: Mapping[str, Setting] | None = None) -> TaskFamily:  # noqa: N802 (used like a class)
    """Return a family of tasks.

    The slots of each structure are named as the first ones of the structure with the most slots.

    Args:
        name: Name of the family, as `Task.name`.
        structures: One to eight tasks. Those with the same data function share the data.
        settings: Settings that are drawn for each context, keyed by name, in the order in which they change the data.

    Returns:
        A task, for all functions that take one.

    Raises:
        ValueError: A structure, a setting or the name is not valid.
    """
    settings = settings or {}
    problems = [*_structure_problems(structures), *_setting_problems(settings, [task.name for task in structures])]
    if problems:
        raise ValueError(f"family {name!r}: {problems[0]}")
    largest = max(structures, key=lambda task: len(task.slots))
    base: dict[str, Any] = {entry.name: getattr(largest, entry.name) for entry in fields(Task)}
    score_names = {task.score_name for task in structures}
    base |= {
        "name": name,
        "blueprints": None,
        "wide_model": None,
        "metrics": {name: metric for task in structures for name, metric in task.metrics.items()},
        "score_name": score_names.pop() if len(score_names) == 1 else "score",
        "float32_defaults": any(task.float32_defaults for task in structures),
    }
    return TaskFamily(**base, structures=tuple(structures), settings=dict(settings))


def mix_tasks(tasks: Sequence[Task]) -> TaskFamily:
    """Return the family of all structures of some tasks, each with the settings of its own task.

    The slots are named as those of the structure with the most slots, in their order. The name is that of the tasks,
    joined by `MIXED`.

    Raises:
        ValueError: There are too many structures, or two of the same name; or two tasks have a setting of the same
            name.
    """
    structures = [structure for task in tasks for structure in structures_of(task)]
    slots = list(max(structures, key=lambda structure: len(structure.slots)).slots)
    settings: dict[str, Setting] = {}
    for task in tasks:
        names = [structure.name for structure in structures_of(task)]
        for name, setting in settings_of_family(task).items():
            if name in settings:
                raise ValueError(f"two of the tasks have a setting {name!r}; remove one of these tasks")
            own = [structure for structure in names if setting.applies_to(structure)]
            settings[name] = replace(setting, structures=own)
    return Family(
        MIXED.join(task.name for task in tasks),
        [replace(task, slots=dict(zip(slots, task.slots.values(), strict=False))) for task in structures],
        settings,
    )


def structures_of(task: Task) -> Sequence[Task]:
    """Return the structures of a task: itself if it is not a family."""
    return task.structures if isinstance(task, TaskFamily) else (task,)


def describe_recipe(task: Task) -> dict[str, str]:
    """Return optimizers and schedule of a task in words, keyed by field; of a family, those of all structures."""
    structures = structures_of(task)
    words = {
        "optimizer": [describe_optimizer(one.optimizer) for one in structures],
        "seed_optimizer": [describe_optimizer(one.seed_optimizer) for one in structures],
        "schedule": [describe_schedule(one.schedule) for one in structures],
    }
    return {name: "; ".join(dict.fromkeys(found)) for name, found in words.items()}


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
    if len({task.score_scale for task in structures}) > 1:
        found.append("the scores of the structures differ in range or direction; give all of them the same")
    return found


def _setting_problems(settings: Mapping[str, Setting], structures: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name, setting in settings.items():
        found += [
            f"the setting {name!r} is for {unknown!r}, which is not a structure; {suggest(unknown, structures)}"
            for unknown in setting.structures or ()
            if unknown not in structures
        ]
        if not name.isidentifier():
            found.append(f"the setting {name!r} is not a valid name; {NAME_RULE}")
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
        kind = name if setting.data is None else ""
        expected = _EXPECTED.get(kind, "a text, or a finite number of the types int and float")
        found += [
            f"the setting {name!r} has the value {value!r}; expected {expected}"
            for value in setting.values
            if not _is_valid(kind, value)
        ]
    return found


_EXPECTED = {RENT: "a finite number of at least 0", LEARNING_RATE: f"a number above 0, and at most {MAX_LEARNING_RATE}"}
"""Values of the settings that the engine applies."""


def _is_valid(kind: str, value: Any) -> bool:
    """Return True if a value can be recorded and, of a setting that the engine applies, used.

    Args:
        kind: `rent` or `learning_rate`; empty for a setting that changes the data.
    """
    is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max  # not a bool, nor a number of NumPy
    if kind == LEARNING_RATE:
        return is_number and 0 < value <= MAX_LEARNING_RATE
    return is_number and value >= 0 if kind == RENT else is_number or isinstance(value, str)
