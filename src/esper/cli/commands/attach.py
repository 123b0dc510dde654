"""`attach [RUN]`: shows and controls a live run of another process."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.dashboard import DisplayOptions, add_own_task_option, add_screen_options, show_dashboard
from esper.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    RUN_HELP,
    NarrationDetail,
    Parser,
    add_telemetry_dir_option,
    print_warnings,
)
from esper.cli.streams import print_text
from esper.common.configuration.config import ConfigError

if TYPE_CHECKING:
    from esper.recordings.attach.session import AttachedRun
    from esper.recordings.state.state import RunState


def run(arguments: Sequence[str]) -> int:
    """Show or print a live run until it ends or the user leaves it."""
    parser = Parser(prog="esper-sanctum attach", description="Watch and control a run that trains in another process")
    parser.add_argument("run", nargs="?", metavar="RUN", help=f"{RUN_HELP} (default: the live run that started last)")
    add_telemetry_dir_option(parser)
    parser.add_argument("--read-only", action="store_true", help="watch without controlling the run")
    add_own_task_option(parser)
    add_screen_options(parser)
    options = parser.parse_args(arguments)
    display = DisplayOptions.from_options(options)
    directory = find_live_run(options.run, options.telemetry_dir)
    if options.no_tui or options.narrate:
        return print_live_run(directory, narrate=options.narrate)
    return show_live_run(directory, display=display, read_only=options.read_only, task=options.task)


def find_live_run(name: str | None, telemetry_dir: Path) -> Path:
    """Return the directory of a live run.

    Args:
        name: Name or path of the run, or `last`. None for the live run that started last.
        telemetry_dir: Directory in which run names are looked up.

    Raises:
        ConfigError: The run is not live, or no run is.
        ReadError: The run does not exist.
    """
    from esper.recordings.files.run_lock import is_live, live_since
    from esper.recordings.files.runs import list_runs, resolve_run

    if name is None:
        runs = list_runs(telemetry_dir)
        live = [run for run in runs if is_live(run)]
        if not live:
            advice = f"; replay the last one with `{_command('replay', runs[0])}`" if runs else ""
            raise ConfigError(f"no run in {telemetry_dir} is live{advice}")
        return max(live, key=live_since)
    directory = resolve_run(name, telemetry_dir)
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a run directory; replay it with `{_command('replay', directory)}`")
    if not is_live(directory):
        raise ConfigError(
            f"{directory} is not live: no process trains it; replay it with `{_command('replay', directory)}`"
        )
    return directory


def _command(name: str, run: Path) -> str:
    return shlex.join(["esper-sanctum", name, str(run)])


def print_live_run(directory: Path, *, narrate: NarrationDetail | None) -> int:
    """Print a live run until it ends, and return the exit code.

    Args:
        narrate: Print sentences of this detail; None for log lines and a summary.
    """
    from esper.cli.console import Narrator, RunPrinter, drain
    from esper.recordings.attach.session import AttachedRun

    session = AttachedRun(directory, read_only=True)
    session.start()
    printer = Narrator(sys.stdout, narrate) if narrate else RunPrinter(sys.stdout)
    state = printer.run(drain(session.records, lambda: session.is_engine_alive))
    return _print_outcome(session, state, brief=narrate is not None)


def show_live_run(directory: Path, *, display: DisplayOptions, read_only: bool, task: str | None = None) -> int:
    """Follow a live run in the dashboard until the user leaves it, and return the exit code.

    Args:
        task: Reference of the task, if the user named it.

    Raises:
        ConfigError: There is no terminal for the dashboard, or the theme is unknown.
    """
    from esper.recordings.attach.session import AttachedRun
    from esper.sanctum.source import AttachSource, run_has_ended

    session = AttachedRun(directory, read_only=read_only)
    source = AttachSource(session, task)
    code = show_dashboard(source, display)
    session.close()
    if code or not run_has_ended(source):
        print_text(f"{directory.name} is still running; reattach with `{_command('attach', directory)}`")
        return code
    return _print_outcome(session, source.live_state)


def _print_outcome(session: AttachedRun, state: RunState, *, brief: bool = False) -> int:
    """Print how a run ended, and what could not be read of it; return the exit code.

    Args:
        brief: Leave out the summary.
    """
    from esper.cli.console import format_summary
    from esper.recordings.history.run_status import judge_run

    print_warnings(session.notices)
    if session.fatal_error:
        print_warnings([session.fatal_error])
        return EXIT_FAILED
    if not brief:
        print_text(format_summary(state, judge_run(state, None).name))
    if state.status in {"done", "stopped"}:
        return EXIT_OK
    if state.status != "failed":
        print_warnings([f"the process training {session.directory} exited without recording the end of the run"])
    return EXIT_FAILED
