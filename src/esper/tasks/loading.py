"""Loads the task that the user names: a built-in one, a file, an attribute of a module, or an entry point.

Only what the user named is imported. Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from esper.config import TaskError
from esper.formatting import suggest
from esper.tasks.registry import TASK_NAMES, TASKS, get_built_in
from esper.tasks.task import Task, TaskSource

ENTRY_POINTS = "esper.tasks"
"""Group of the entry points that add tasks."""
DEFAULT_ATTRIBUTE = "task"
"""Name of the task in a file that is named without an attribute."""


class _Reference(NamedTuple):
    """A task that is not built in: a file or module, and the name of the task in it."""

    module: str
    """Path of a file that ends in `.py`, or name of a module."""
    attribute: str

    @property
    def is_file(self) -> bool:
        return self.module.endswith(".py")


def check_task_reference(reference: str) -> None:
    """Check that a task can exist, without importing it.

    Raises:
        TaskError: The file does not exist, or no task has this name.
    """
    found = _parse(reference)
    if found and found.is_file and not Path(found.module).is_file():
        raise TaskError(f"--task {reference}: no such file: {Path(found.module).absolute()}")


def is_own_task(reference: str) -> bool:
    """Return True if a task is code of the user: a file, a module or an entry point."""
    return reference not in TASKS


def load_task(reference: str) -> Task:
    """Return the task that a reference names, and import its code.

    Args:
        reference: Name of a built-in task or of an entry point, `FILE.py`, `FILE.py:NAME` or `MODULE:NAME`.

    Raises:
        TaskError: The task does not exist, its code raises an exception, or it is not an `esper.Task`.
    """
    found = _parse(reference)
    if found is None:
        return get_built_in(reference)
    module = _import(reference, found)
    task = getattr(module, found.attribute, None)
    if task is None:
        names = [name for name, value in vars(module).items() if isinstance(value, Task)]
        hint = f"; it has {', '.join(names)}" if names else ""
        raise TaskError(f"--task {reference}: {found.module} has no attribute {found.attribute!r}{hint}")
    if not isinstance(task, Task):
        raise TaskError(f"--task {reference}: {found.attribute} is a {type(task).__name__}, not an esper.Task")
    if task.name in TASKS:
        raise TaskError(f"--task {reference}: the name {task.name!r} is that of a built-in task; choose another name")
    path = Path(str(module.__file__)).resolve()
    source = TaskSource(reference=reference, path=str(path), attribute=found.attribute, digests=source_digests(path))
    return replace(task, source=source)


def load_source(source: TaskSource) -> Task:
    """Return the task of a source in another process than the one that loaded it first.

    Raises:
        TaskError: The code cannot be imported, or has changed since.
    """
    task = load_task(f"{source.path}:{source.attribute}")
    assert task.source is not None
    changes = describe_changes(source.digests, task.source.digests)
    if changes:
        raise TaskError(f"{source.path} changed while the run was starting: {changes}")
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
    """Return the digests of a file and of all imported modules in its directory, by path relative to the directory."""
    directory = path.parent
    files = {path}
    for module in list(sys.modules.values()):
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


def _parse(reference: str) -> _Reference | None:
    """Return the code that a reference names; None for a built-in task.

    Raises:
        TaskError: No task has this name.
    """
    if reference in TASKS:
        return None
    path, separator, attribute = reference.rpartition(":")
    if reference.endswith(".py"):
        return _Reference(reference, DEFAULT_ATTRIBUTE)
    if separator and path and attribute.isidentifier():
        return _Reference(path, attribute)
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if reference in points:
        module, _, attribute = points[reference].value.partition(":")
        return _Reference(module, attribute or DEFAULT_ATTRIBUTE)
    raise TaskError(f"unknown task {reference!r}: {suggest(reference, [*TASK_NAMES, *points])}")


def _import(reference: str, found: _Reference) -> ModuleType:
    try:
        return _import_file(Path(found.module)) if found.is_file else importlib.import_module(found.module)
    except TaskError:
        raise
    except ModuleNotFoundError as error:
        if error.name and found.module.startswith(error.name):
            raise TaskError(f"--task {reference}: module {found.module!r} not found") from None
        raise TaskError(f"--task {reference}: {describe_exception(error)}") from error
    except Exception as error:
        raise TaskError(f"--task {reference}: {describe_exception(error)}") from error


def _import_file(path: Path) -> ModuleType:
    """Import a file as the module of its stem, with its directory on `sys.path`, as Python does for a script."""
    path = path.resolve()
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None or path.stem in sys.stdlib_module_names:
        raise TaskError(f"{path} has the name of another module, {path.stem!r}; rename the file")
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TaskError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def describe_exception(error: BaseException) -> str:
    """Return the type and first line of an exception in the user's code, and the line that raised it."""
    text = (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "esper" not in Path(frame.filename).parts and "<frozen" not in frame.filename]
    outside = [frame for frame in own if "site-packages" not in frame.filename] or own
    where = f" ({outside[-1].filename}, line {outside[-1].lineno})" if outside else ""
    return f"{type(error).__name__}: {text}{where}"
