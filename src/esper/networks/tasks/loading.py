"""Loads the task that the user names: a built-in one, a file, an attribute of a module, or an entry point.

`A+B` names a mixture of tasks: a family of all their structures. Only what the user named is imported. Importing this
module does not import torch.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.user_code.references import Reference, describe_type, parse_reference
from esper.networks.tasks.family import MIXED
from esper.networks.tasks.registry import TASK_NAMES, TASKS, get_built_in, is_built_in, mix
from esper.networks.tasks.task import Task, TaskSource


def check_task_reference(reference: str) -> None:
    """Check that a task can exist, without importing it.

    Raises:
        TaskError: The file does not exist, or no task has this name.
    """
    for part in _split(reference):
        if part not in TASKS:
            _parse(part)


def load_task(reference: str) -> Task:
    """Return the task that a reference names, and import its code.

    The modules of the entry points `esper.blueprints` are imported too, because a task may use their blueprints.

    Args:
        reference: Name of a built-in task or of an entry point, `FILE.py`, `FILE.py:NAME` or `MODULE:NAME`; or several
            of them joined by `+`.

    Raises:
        TaskError: The task does not exist, its code raises an exception, it is not an `esper.Task`, or the tasks cannot
            be mixed.
    """
    if is_built_in(reference):
        return get_built_in(reference)
    parts = _split(reference)
    if len(parts) > 1:
        return _mix(reference, [load_task(part) for part in parts])
    found = _parse(reference)
    from esper.common.user_code.imports import import_entry_points, import_object  # imports torch

    try:
        import_entry_points("esper.blueprints")
        task, module = import_object(found)
    except ConfigError as error:
        raise TaskError(str(error)) from error
    if not isinstance(task, Task):
        raise TaskError(f"{found.text}: {found.attribute} is {describe_type(task)}, not an esper.Task")
    if task.name in TASKS:
        raise TaskError(f"{found.text}: the name {task.name!r} is that of a built-in task; choose another name")
    path = Path(str(module.__file__)).resolve()
    # A module of a package can be imported by its name only: as a file, it has no relative imports.
    absolute = f"{path if found.is_file else found.module}:{found.attribute}"
    source = TaskSource(reference, absolute, source_digests(path))
    return replace(task, source=source)


def resolve_task(task: Task | str) -> Task:
    """Return a task, or load the one that a name or reference names.

    Raises:
        TaskError: As for `load_task`, or it is neither a task nor a text.
    """
    if isinstance(task, str):
        return load_task(task)
    if not isinstance(cast("object", task), Task):
        raise TaskError(f"expected an esper.Task, or its name or reference; got {describe_type(task)}")
    return task


def absolute_reference(task: Task) -> str | None:
    """Return the reference that names a task from every directory; None for a task made in a Python session."""
    if task.source:
        return task.source.absolute
    return task.name if is_built_in(task.name) else None


def _split(reference: str) -> list[str]:
    """Return the tasks of a mixture, or the only task. A file can have a + in its path."""
    path, _, attribute = reference.rpartition(":")
    is_file = Path(reference).is_file() or (attribute.isidentifier() and Path(path).is_file())
    return [reference] if is_file else reference.split(MIXED)


def _mix(reference: str, tasks: Sequence[Task]) -> Task:
    sources = [task.source for task in tasks if task.source]
    source = TaskSource(
        reference=reference,
        absolute=MIXED.join(task.source.absolute if task.source else task.name for task in tasks),
        digests={name: value for source in sources for name, value in source.digests.items()},
    )
    return replace(mix(tasks), source=source)


def load_source(source: TaskSource) -> Task:
    """Return the task of a source in another process than the one that loaded it first.

    Raises:
        TaskError: The code cannot be imported, or has changed since.
    """
    task = load_task(source.absolute)
    assert task.source is not None
    imported = task.source.digests
    # The other process may have imported further modules of the directory, which the task does not need.
    changes = describe_changes({name: value for name, value in source.digests.items() if name in imported}, imported)
    if changes:
        raise TaskError(f"{source.reference} changed while the run was starting: {changes}")
    return replace(task, source=source)


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return which files differ between two sets of digests, or an empty string."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    parts = {
        "changed": changed,
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
    }
    return "; ".join(f"{', '.join(names)} {verb}" for verb, names in parts.items() if names)


def source_digests(path: Path) -> dict[str, str]:
    """Return the digests of a file and of all imported modules in its directory, by path relative to the directory.

    A script that uses the task, `__main__`, does not belong to the task.
    """
    directory = path.parent
    files = {path}
    for module in [module for name, module in list(sys.modules.items()) if name != "__main__"]:
        name = getattr(module, "__file__", None)
        if name is None:
            continue
        file = Path(name)
        if file.suffix == ".py" and file.is_relative_to(directory) and not _is_installed(file.relative_to(directory)):
            files.add(file)
    return {
        file.relative_to(directory).as_posix(): hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        for file in sorted(files)
    }


def _is_installed(relative: Path) -> bool:
    return "site-packages" in relative.parts or any(part.startswith(".") for part in relative.parts)


def _parse(reference: str) -> Reference:
    """Return the code that a reference names. Raises TaskError."""
    try:
        return parse_reference("--task", reference, group="esper.tasks", attribute="task", built_in=TASK_NAMES)
    except ConfigError as error:
        raise TaskError(str(error)) from None
