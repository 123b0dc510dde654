"""Entry point: finds the command, runs it, and turns errors into exit codes.

Exit codes: 0: done, or stopped on request; 1: the run failed; 2: invalid arguments or unusable files; 130 or 143: ended
by a second SIGINT or SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from esper.cli.commands import COMMANDS, TRAINING
from esper.cli.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    complete_narrate,
    print_usage_error,
    print_warnings,
)
from esper.cli.streams import CLOSED_ERRNOS, DISK_FULL_ERRNOS, discard_broken_output
from esper.common.configuration.config import ConfigError
from esper.networks.tasks import TaskError
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.segments import ReadError
from esper.studies.harvest.structure import HarvestError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: Arguments without the program's name. None for those of the process.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the stream was closed, as with `>&-`; discard the output
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the process ends)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="replace")  # a × that the terminal cannot encode must not end a run
    arguments = sys.argv[1:] if argv is None else argv
    name, *options = arguments or [""]
    try:
        try:
            return (
                _command(COMMANDS[name])(complete_narrate(options))
                if name in COMMANDS
                else _command(TRAINING)(arguments)
            )
        finally:
            sys.stdout.flush()  # raises write errors here; at exit, Python itself would print a traceback
    except (ConfigError, TaskError, CheckpointError, HarvestError, ReadError, RecordingError) as error:
        return print_usage_error(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno in CLOSED_ERRNOS:
            discard_broken_output()
            return EXIT_OK
        if error.errno in DISK_FULL_ERRNOS:
            discard_broken_output()
            print_warnings([f"cannot write output: {error.strerror}"])
            return EXIT_FAILED
        if error.filename is None or error.strerror is None:
            raise
        return print_usage_error(f"cannot use {error.filename}: {error.strerror}")


def _command(target: str) -> Callable[[Sequence[str]], int]:
    """Import the function of a command, given as `module:function`."""
    module, function = target.split(":")
    return getattr(import_module(f"esper.cli.commands.{module}"), function)
