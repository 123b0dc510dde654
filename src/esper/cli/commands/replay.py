"""`replay RUN` and `demo`: show a recording, or one that ships with the package, in the dashboard."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.dashboard import DisplayOptions, add_own_task_option, add_screen_options, show_dashboard
from esper.cli.options import EXIT_OK, NarrationDetail, Parser, add_run_argument, print_usage_error, print_warnings
from esper.cli.streams import print_text
from esper.common.configuration.config import ConfigError
from esper.common.formatting import suggest
from esper.recordings.history.address import ViewAddress, parse_address

if TYPE_CHECKING:
    from esper.recordings.history.divergence import GhostRun
    from esper.recordings.history.history import History
    from esper.recordings.history.playback import Playback


FIRST_FRAME_READ_S = 0.02
"""Seconds of reading before the first frame. The dashboard reads the rest in the background."""
MOMENT_READ_S = 0.3
"""The same with `--at`, so that the first frame shows the moment of a short recording, and refuses a missing one."""
ADDRESS_HELP = (
    "FILE_OR_RUN may be an address copied in the dashboard (default key: Y): 'RUN#step=812&env=17&view=overview'. "
    "A time of day such as 12:30:00 is local time; if the recording contains it more than once, the first is used."
)


def run(arguments: Sequence[str]) -> int:
    """Show a recorded run."""
    from esper.recordings.files.runs import resolve_run

    parser = Parser(prog="esper-sanctum replay", description="Show a recorded run", epilog=ADDRESS_HELP)
    add_run_argument(parser, "FILE_OR_RUN")
    parser.add_argument("--follow", action="store_true", help="start at the end and follow the recording as it grows")
    parser.add_argument("--against", metavar="RUN", help="overlay a second run and report the first difference")
    add_own_task_option(parser)
    options = parse_replay(parser, arguments)
    if options.follow and (options.no_tui or options.narrate):
        option = "--narrate" if options.narrate else "--no-tui"
        raise ConfigError(f"--follow needs the dashboard; remove {option} or use `esper-sanctum attach {option}`")
    if options.follow and options.against:
        raise ConfigError("--against cannot be combined with --follow; remove one of them")
    if options.follow and options.at:
        raise ConfigError("--follow starts at the end; remove --at")
    against = resolve_run(options.against, options.telemetry_dir) if options.against else None
    address = ViewAddress(options.run) if Path(options.run).exists() else parse_address(options.run)
    if address.moment is not None and options.at is not None:
        raise ConfigError(f"{options.run} already names a moment; remove --at")
    if address.moment is not None and options.follow:
        raise ConfigError(f"{options.run} names a moment; remove --follow")
    options.at = address.moment or options.at
    path = resolve_run(address.run, options.telemetry_dir)
    return replay(path, options, follow=options.follow, against=against, address=address, task=options.task)


def parse_replay(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Add the options of a replay to a parser, and parse the arguments of its command.

    Raises:
        ConfigError: `--speed` is not a positive number.
    """
    parser.add_argument(
        "--at",
        metavar="MOMENT",
        help="moment to start at: round:8 (its end), 8:12 (its step 12), step:812, event:1234, anomaly:1, 1h20m, "
        "12:30:00, 40%%",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        metavar="X",
        help="playback speed; inf plays as fast as possible (default: 1)",
    )
    add_screen_options(parser)
    options = parser.parse_args(arguments)
    if not options.speed > 0:
        raise ConfigError(f"--speed {options.speed} is not valid: it must be a number above 0")
    return options


def replay(
    path: Path,
    options: argparse.Namespace,
    *,
    follow: bool = False,
    against: Path | None = None,
    address: ViewAddress | None = None,
    task: str | None = None,
) -> int:
    """Show or print a recording, and return the exit code.

    Args:
        path: Recording, or run directory.
        options: Result of `parse_replay`.
        follow: Start at the end, and follow the recording as it grows.
        against: Second recording, overlaid as a ghost run; None for none.
        address: Env and view to show first; None for env 0 in the overview.
        task: Reference of the task, if the user named it.

    Raises:
        ConfigError: The moment, env, view or theme does not exist, or the dashboard cannot be opened.
    """
    from esper.recordings.history.address import Moment, MomentError, find_moment
    from esper.recordings.history.divergence import GhostRun
    from esper.recordings.history.history import open_history
    from esper.recordings.history.playback import Playback

    display = DisplayOptions.from_options(options)
    headless = options.no_tui or options.narrate is not None
    read_seconds = math.inf if headless else MOMENT_READ_S if options.at else FIRST_FRAME_READ_S
    playback = Playback(open_history(path, read_seconds))
    ghost_run = GhostRun(playback.history, open_history(against, read_seconds)) if against else None
    try:
        moment = find_moment(options.at, playback.history) if options.at else Moment(0)
    except MomentError as error:
        raise ConfigError(f"--at: {error}") from None
    if options.no_tui and not (options.narrate or options.at):
        playback.seek_end()
    elif moment is not None:
        playback.seek(moment.position)
    env, view = _env_and_view(address, playback.history) if address is not None else (None, "overview")
    if headless:
        _print_replay(playback, ghost_run, narrate=options.narrate)
        return EXIT_OK
    playback.speed = options.speed
    from esper.sanctum.source import ReplaySource

    unread_moment = options.at if moment is None else None
    source = ReplaySource(playback, hold=options.at is not None, follow=follow, ghost_run=ghost_run, task=task)
    if env is None:
        env = moment.env if moment is not None and moment.env is not None else 0
    code = show_dashboard(source, display, env=env, initial_view=view, moment=unread_moment)
    return print_usage_error(source.failure) if source.failure else code


def _print_replay(playback: Playback, ghost_run: GhostRun | None, *, narrate: NarrationDetail | None) -> None:
    """Print the first difference to the ghost run, then the summary at the current position, or narrate from there."""
    from esper.cli.console import Narrator, format_summary
    from esper.recordings.state.state import Keyframe

    print_warnings(playback.history.notices)
    if ghost_run is not None:
        ghost_run.comparison.search()
        print_text(ghost_run.comparison.description)
    if narrate:
        current = Keyframe.from_state(playback.state)
        Narrator(sys.stdout, narrate).run(itertools.chain([current], playback.history.events(playback.position)))
    else:
        print_text(format_summary(playback.state, _run_status(playback)))


def _run_status(playback: Playback) -> str | None:
    """Return the current status of the run; None before the end of the recording, or if it is a single file."""
    from esper.recordings.history.run_status import find_writer, judge_run

    path, state = playback.history.path, playback.state
    if playback.position < playback.length or not path.is_dir():
        return None
    return judge_run(state, find_writer(path, state.time, time.time())).name


def _env_and_view(address: ViewAddress, history: History) -> tuple[int | None, str]:
    """Return the env that an address names, None if it names none, and its view, by default the first one.

    Raises:
        ConfigError: The view or the env does not exist.
    """
    view = address.view or "overview"
    if address.view is not None:
        from esper.sanctum.keys import VIEW_NAMES  # imports textual

        if view not in VIEW_NAMES:
            raise ConfigError(f"unknown view {view!r}; {suggest(view, VIEW_NAMES)}")
    env, envs = address.env or 0, len(history.state_at(min(history.length, 1)).envs)
    if env >= envs and address.env is not None:
        raise ConfigError(f"env {env} not found in {address.run}, which has {envs} envs, counted from 0")
    return address.env, view


def run_demo(arguments: Sequence[str]) -> int:
    """Show a recorded run that ships with the package, and say what to do next."""
    from esper.recordings.files.runs import find_demo

    parser = Parser(prog="esper-sanctum demo", description="Replay a recorded run that ships with the package")
    parser.add_argument("--faults", action="store_true", help="a run with faults: NaN gradients, overflows, rollbacks")
    options = parse_replay(parser, arguments)
    code = replay(find_demo(faults=options.faults), options)
    if code == EXIT_OK and not (options.no_tui or options.narrate):
        other = "demo` shows a run that learns" if options.faults else "demo --faults` shows faults"
        print_text(f"next: `esper-sanctum` trains, `esper-sanctum {other}")
    return code
