"""`esper-sanctum attach [RUN]`: the dashboard over a run that trains in another process, with its controls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.commands.options import DONE, FAILED, Parser, add_telemetry_dir, warn
from esper.commands.screen import Look, add_screen_options, show
from esper.config import ConfigError

if TYPE_CHECKING:
    from esper.attach.session import AttachSession
    from esper.telemetry.state import RunState


def run(arguments: Sequence[str]) -> int:
    """Watch a live run."""
    parser = Parser(prog="esper-sanctum attach", description="Watch and control a run that trains in another process.")
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's name or directory (default: the newest live one)"
    )
    add_telemetry_dir(parser)
    parser.add_argument("--read-only", action="store_true", help="ask nothing of the run")
    add_screen_options(parser)
    chosen = parser.parse_args(arguments)
    directory = find_live_run(chosen.run, chosen.telemetry_dir)
    return watch(directory, look=Look.take(vars(chosen)), read_only=chosen.read_only, headless=chosen.no_tui)


def find_live_run(name: str | None, telemetry_dir: Path) -> Path:
    """The directory of the live run that is meant: by name or path, or the newest.

    Raises:
        ConfigError: it is not live.
        ReadError: there is no such run.
    """
    from esper.telemetry.liveness import is_live
    from esper.telemetry.runs import list_runs, resolve_run

    if name is None:
        live = next((run for run in list_runs(telemetry_dir) if is_live(run)), None)
        if live is None:
            raise ConfigError(f"no run in {telemetry_dir} is live: esper-sanctum replay last shows the last one")
        return live
    directory = resolve_run(name, telemetry_dir)
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not the directory of a run: esper-sanctum replay {name} shows it")
    if not is_live(directory):
        raise ConfigError(f"{directory} is not live, no process trains it: esper-sanctum replay {name} shows it")
    return directory


def watch(directory: Path, *, look: Look, read_only: bool, headless: bool) -> int:
    """Follow a live run until the user leaves it, or without a dashboard until it ends; the exit code.

    Raises:
        ConfigError: there is no terminal, or no such theme.
    """
    from esper.attach.session import AttachSession

    session = AttachSession(directory, read_only=read_only or headless)
    if headless:
        from esper.telemetry.console import Console

        session.start()
        state = Console(sys.stdout).run(session.records, lambda: session.alive)
        return _tell_end(session, state)
    from esper.sanctum.source import ENDED, AttachSource

    source = AttachSource(session)
    code = show(source, look)
    session.close()
    if code or (source.alive and source.state.status not in ENDED):
        print(f"{directory.name} goes on: esper-sanctum attach {directory} comes back to it")
        return code
    return _tell_end(session, source.state)


def _tell_end(session: AttachSession, state: RunState) -> int:
    """What came of a run that is followed no longer; the exit code."""
    from esper.telemetry.console import summary

    warn(session.notices)
    if session.failure:
        print(f"esper-sanctum: {session.failure}", file=sys.stderr)
        return FAILED
    print(summary(state))
    if state.status in {"done", "stopped"}:
        return DONE
    if state.status != "failed":
        print(f"esper-sanctum: the process that trained {session.directory} ended without a word", file=sys.stderr)
    return FAILED
