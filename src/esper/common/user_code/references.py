"""Code of the user that an option names: a file, an attribute of a module, or an entry point; and its exceptions.

`imports.py` imports it. This module imports neither that code nor torch.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.formatting import suggest
from esper.common.user_code.code_places import find_own

P = ParamSpec("P")
Result = TypeVar("Result")


class TaskOrigin(msgspec.Struct, frozen=True):
    """Source of a task that is the user's own code."""

    reference: str
    """The task as the user named it on the command line."""
    digests: dict[str, str]
    """BLAKE2b digests of its file and of the modules beside it, keyed by relative path."""
    shares_prefix: bool
    """True if counterfactuals share the part of the forward pass before a slot."""


@dataclass(frozen=True)
class Reference:
    """Code that an option names.

    Attributes:
        text: The reference as the user wrote it, with its option.
        module: Path of a file that ends in `.py`, or name of a module.
        attribute: Name of the object in it.
    """

    text: str
    module: str
    attribute: str

    @property
    def is_file(self) -> bool:
        """True if the module is a file."""
        return self.module.endswith(".py")


def parse_reference(option: str, value: str, *, group: str, attribute: str, built_in: Collection[str]) -> Reference:
    """Return the code that an option names, after checking that a file exists.

    Args:
        option: Name of the option, such as `--task`.
        value: `FILE.py`, `FILE.py:NAME`, `MODULE:NAME`, or a name of an entry point.
        group: Group of the entry points.
        attribute: Name of the object if the value does not have one.
        built_in: Names that are not code of the user, for the message.

    Raises:
        ConfigError: The file does not exist, or the name is unknown.
    """
    text = f"{option} {value}"
    path, separator, name = value.rpartition(":")
    if value.endswith(".py"):
        found = Reference(text, value, attribute)
    elif separator and path and name.isidentifier():
        found = Reference(text, path, name)
    else:
        from importlib.metadata import entry_points  # takes a tenth of the start of a command

        points = {point.name: point for point in entry_points(group=group)}
        if value not in points:
            kind = option.removeprefix("--")
            raise ConfigError(f"unknown {kind} {value!r}; {suggest(value, [*built_in, *points])}")
        module, _, name = points[value].value.partition(":")
        found = Reference(text, module, name or attribute)
    if found.is_file and not Path(found.module).is_file():
        raise ConfigError(f"{text}: no such file: {Path(found.module).absolute()}")
    return found


def user_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that the user's code can raise; `sys.exit` raises one of them.

    A KeyboardInterrupt is left out where Ctrl-C raises it: in the main thread with Python's own handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return Exception, SystemExit
    return Exception, SystemExit, KeyboardInterrupt


def with_short_errors(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function of the public interface: the traceback of a ConfigError or TaskError ends at its call.

    The message is one sentence, with the line of the user's code. Frames of this package, and the exceptions that led
    to it, would hide it. The last of them stays in `__context__` of the error, for a debugger.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except (ConfigError, TaskError) as error:
            raise error.with_traceback(None) from None

    return call


def describe_type(value: object) -> str:
    """Return the type of a value of the user's code for a message, such as "an int" or "the class module.Name"."""
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def describe_exception(error: BaseException) -> str:
    """Return the type and first line of an exception in the user's code, and the line that raised it."""
    text = (exception_text(error) or "no message").splitlines()[0]
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {text}{describe_origin(error)}"


def exception_text(error: BaseException) -> str:
    """Return the message of an exception, whose class may be the user's; empty without one."""
    try:
        return str(error).strip()
    except Exception as other:  # noqa: BLE001 (of the user's `__str__`)
        return f"(its message cannot be read: {type(other).__name__})"


def describe_origin(error: BaseException, *, libraries: bool = True) -> str:
    """Return the file and line outside this package that raised an exception, in parentheses; empty without one.

    Args:
        libraries: Return the place in a library if there is none in the user's own code.
    """
    frames = traceback.extract_tb(error.__traceback__)
    found = find_own([(frame.filename, frame.lineno or 0, frame.name) for frame in frames], libraries=libraries)
    return f" ({found[0]}, line {found[1]})" if found else ""
