"""Entry point: finds the command, runs it, turns errors into exit codes.

Exit codes: 0 done, or stopped as asked; 1 the run failed; 2 the request was wrong; 130, 143: a second signal, INT or
TERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

from esper.checkpoint.manifest import CheckpointError
from esper.cli.commands import COMMANDS, TRAINING
from esper.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, print_usage_error
from esper.cli.streams import CLOSED_ERRNOS, DISK_FULL_ERRNOS, discard_broken_output
from esper.config import ConfigError
from esper.recording.segments import ReadError
from esper.tasks import TaskError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # as after `>&-`: nobody is to read what is printed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the end of the process)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # no run is to end for a × that a terminal does not know
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, *options = arguments or [""]
    try:
        try:
            return _command(COMMANDS[name])(options) if name in COMMANDS else _command(TRAINING)(arguments)
        finally:
            sys.stdout.flush()  # what cannot be printed is known only now, and at exit Python itself would complain
    except (ConfigError, TaskError, CheckpointError, ReadError) as error:
        return print_usage_error(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno in CLOSED_ERRNOS:
            discard_broken_output()
            return EXIT_OK
        if error.errno in DISK_FULL_ERRNOS:
            discard_broken_output()
            print(f"esper-sanctum: no more can be written: {error.strerror}", file=sys.stderr)
            return EXIT_FAILED
        if error.filename is None or error.strerror is None:
            raise
        return print_usage_error(f"{error.filename} cannot be used: {error.strerror}")


def _command(target: str) -> Callable[[Sequence[str]], int]:
    """Import the function of a command, given as `module:function`."""
    module, function = target.split(":")
    return getattr(import_module(f"esper.cli.commands.{module}"), function)
