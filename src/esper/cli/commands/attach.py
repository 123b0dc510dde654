"""`attach [RUN]`: the dashboard over a run in another process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.dashboard import DisplayOptions, add_screen_options, show_dashboard
from esper.cli.options import EXIT_FAILED, EXIT_OK, Parser, add_telemetry_dir_option, print_warnings
from esper.config import ConfigError
from esper.domain import TERMINAL_STATUSES

if TYPE_CHECKING:
    from esper.attach.session import AttachedRun
    from esper.telemetry.state import RunState


def run(arguments: Sequence[str]) -> int:
    """Watch a live run."""
    parser = Parser(prog="esper-sanctum attach", description="Watch and control a run that trains in another process.")
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's name or directory (default: the newest live one)"
    )
    add_telemetry_dir_option(parser)
    parser.add_argument("--read-only", action="store_true", help="ask nothing of the run")
    add_screen_options(parser)
    chosen = parser.parse_args(arguments)
    directory = find_live_run(chosen.run, chosen.telemetry_dir)
    if not (chosen.no_tui or chosen.narrate):
        return show_live_run(directory, look=DisplayOptions.from_options(vars(chosen)), read_only=chosen.read_only)
    return print_live_run(directory, narrate=chosen.narrate)


def find_live_run(name: str | None, telemetry_dir: Path) -> Path:
    """The directory of the live run that is meant: by name or path, or the newest.

    Raises:
        ConfigError: it is not live.
        ReadError: there is no such run.
    """
    from esper.recording.run_lock import is_live, live_since
    from esper.recording.runs import list_runs, resolve_run

    if name is None:
        live = [run for run in list_runs(telemetry_dir) if is_live(run)]
        if not live:
            raise ConfigError(f"no run in {telemetry_dir} is live: esper-sanctum replay last shows the last one")
        return max(live, key=live_since)
    directory = resolve_run(name, telemetry_dir)
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not the directory of a run: esper-sanctum replay {name} shows it")
    if not is_live(directory):
        raise ConfigError(f"{directory} is not live, no process trains it: esper-sanctum replay {name} shows it")
    return directory


def print_live_run(directory: Path, *, narrate: bool) -> int:
    """Print what a live run has to say, until it ends; the exit code.

    Args:
        directory: of the run.
        narrate: plain sentences, rather than lines for a log and a summary.
    """
    from esper.attach.session import AttachedRun
    from esper.cli.console import Narrator, RunPrinter, drain

    session = AttachedRun(directory, read_only=True)
    session.start()
    printer = Narrator(sys.stdout) if narrate else RunPrinter(sys.stdout)
    state = printer.run(drain(session.records, lambda: session.is_engine_alive))
    return _print_outcome(session, state, brief=narrate)


def show_live_run(directory: Path, *, look: DisplayOptions, read_only: bool) -> int:
    """Follow a live run in the dashboard until the user leaves it; the exit code.

    Raises:
        ConfigError: there is no terminal, or no such theme.
    """
    from esper.attach.session import AttachedRun
    from esper.sanctum.source import AttachSource

    session = AttachedRun(directory, read_only=read_only)
    source = AttachSource(session)
    code = show_dashboard(source, look)
    session.close()
    if code or (source.alive and source.live_state.status not in TERMINAL_STATUSES):
        print(f"{directory.name} goes on: esper-sanctum attach {directory} comes back to it")
        return code
    return _print_outcome(session, source.live_state)


def _print_outcome(session: AttachedRun, state: RunState, *, brief: bool = False) -> int:
    """What came of a run that is followed no longer, where there is more to say than was said; the exit code."""
    from esper.cli.console import format_summary

    print_warnings(session.notices)
    if session.fatal_error:
        print(f"esper-sanctum: {session.fatal_error}", file=sys.stderr)
        return EXIT_FAILED
    if not brief:
        print(format_summary(state))
    if state.status in {"done", "stopped"}:
        return EXIT_OK
    if state.status != "failed":
        print(f"esper-sanctum: the process that trained {session.directory} ended without a word", file=sys.stderr)
    return EXIT_FAILED
