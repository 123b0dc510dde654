"""Imports the code of the user that an option names, isolated from the rest of the process. Imports torch.

Only what the user named is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.formatting import suggest
from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import Reference, describe_exception, user_errors


def import_object(reference: Reference) -> tuple[object, ModuleType]:
    """Import the module of a reference, and return the object and the module.

    Raises:
        ConfigError: The module or the attribute does not exist, or the user's code raises an exception.
    """
    module = _import(reference)
    found = getattr(module, reference.attribute, None)
    if found is None:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "").startswith("esper")]
        hint = f"; {suggest(reference.attribute, names)}" if names else ""
        raise ConfigError(f"{reference.text}: {reference.module} has no attribute {reference.attribute!r}{hint}")
    return found, module


def import_entry_points(group: str) -> None:
    """Import the modules of all entry points of a group, which register themselves.

    Raises:
        ConfigError: A module cannot be imported.
    """
    for point in entry_points(group=group):
        _import(Reference(f"entry point {point.name} of {group}", point.value.partition(":")[0], ""))


def _import(reference: Reference) -> ModuleType:
    module = reference.module
    try:
        with isolated(reference.text):
            return _import_file(Path(module)) if reference.is_file else importlib.import_module(module)
    except ConfigError:
        raise
    except TaskError as error:
        raise ConfigError(str(error)) from error
    except user_errors() as error:
        # The named module or one of its packages is missing, and not a module that the user's code imports.
        is_named = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if is_named and not reference.is_file:
            raise ConfigError(f"{reference.text}: module {module!r} not found") from None
        raise ConfigError(f"{reference.text}: {describe_exception(error)}") from error


def _import_file(path: Path) -> ModuleType:
    """Import a file as the module of its stem, with its directory on `sys.path`, as Python does for a script."""
    path = path.resolve()
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None or path.stem in sys.stdlib_module_names:
        raise ConfigError(f"{path} has the name of another module, {path.stem!r}; rename the file")
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
