"""`replay RUN`, `demo`: the dashboard over a recording, or over the one that ships with the package."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.dashboard import DisplayOptions, add_screen_options, show_dashboard
from esper.cli.options import EXIT_OK, Parser, add_run_argument, print_usage_error, print_warnings
from esper.config import ConfigError
from esper.formatting import suggest
from esper.history.address import AddressError, ViewAddress, parse_address
from esper.recording.segments import ReadError

if TYPE_CHECKING:
    from esper.history.divergence import GhostRun
    from esper.history.history import History
    from esper.history.playback import Playback


FIRST_FRAME_READ_S = 0.02
"""Seconds of reading before the first frame; the dashboard reads on."""
ADDRESS_HELP = (
    "FILE_OR_RUN may be an address, as the key Y of the dashboard copies it: 'RUN#step=812&env=17&view=overview'. "
    "A time of day such as 12:30 is local, and the first that the recording reached."
)


def run(arguments: Sequence[str]) -> int:
    """Show a recorded run."""
    from esper.recording.runs import resolve_run

    parser = Parser(prog="esper-sanctum replay", description="Show a recorded run.", epilog=ADDRESS_HELP)
    add_run_argument(parser, "FILE_OR_RUN")
    parser.add_argument("--follow", action="store_true", help="begin at the end, and stay there while it is written")
    parser.add_argument("--against", metavar="RUN", help="show another run as a ghost, and find where the two part")
    chosen = parse_replay(parser, arguments)
    if chosen.follow and (chosen.no_tui or chosen.narrate):
        option = "--narrate" if chosen.narrate else "--no-tui"
        raise ConfigError(f"--follow needs the dashboard: leave out {option}, or see esper-sanctum attach {option}")
    if chosen.follow and chosen.against:
        raise ConfigError("--against compares what is recorded: leave out --follow")
    if chosen.follow and chosen.at:
        raise ConfigError("--follow begins at the end: leave out --at")
    against = resolve_run(chosen.against, chosen.telemetry_dir) if chosen.against else None
    address = _read_address(chosen.run)
    if address.moment is not None and chosen.at is not None:
        raise ConfigError(f"{chosen.run} says already when to begin: leave out --at")
    if address.moment is not None and chosen.follow:
        raise ConfigError(f"{chosen.run} says when to begin: leave out --follow")
    chosen.at = address.moment or chosen.at
    path = resolve_run(address.run, chosen.telemetry_dir)
    return replay(path, chosen, follow=chosen.follow, against=against, address=address)


def _read_address(text: str) -> ViewAddress:
    """What the first argument means. Raises ConfigError."""
    if Path(text).exists():
        return ViewAddress(text)
    try:
        return parse_address(text)
    except AddressError as error:
        raise ConfigError(str(error)) from None


def parse_replay(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command, with those that say how a recording is shown. Raises ConfigError."""
    parser.add_argument(
        "--at", metavar="WHEN", help="where to begin: round:14, step:812, event:1234, anomaly:1, 1h20m, 12:30 or 40%%"
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        metavar="X",
        help="how fast time passes, inf: as fast as it goes (default: 1)",
    )
    add_screen_options(parser)
    chosen = parser.parse_args(arguments)
    if not chosen.speed > 0:
        raise ConfigError(f"--speed {chosen.speed} is not valid: it must be a number above 0")
    return chosen


def replay(
    path: Path,
    chosen: argparse.Namespace,
    *,
    follow: bool = False,
    against: Path | None = None,
    address: ViewAddress | None = None,
) -> int:
    """Show a recording in the way that was chosen, beside another run or alone; the exit code.

    Args:
        path: of the recording.
        chosen: what `parse_replay` gave.
        follow: begin at the end, and read on while it is written.
        against: another recording that goes along as a ghost.
        address: env and view to begin with.
    """
    from esper.history.address import MomentError, parse_moment
    from esper.history.divergence import GhostRun
    from esper.history.history import open_history
    from esper.history.playback import Playback

    headless = chosen.no_tui or chosen.narrate
    whole = headless or chosen.at or follow
    playback = Playback(open_history(path, math.inf if whole else FIRST_FRAME_READ_S))
    rival = (
        GhostRun(playback.history, open_history(against, math.inf if whole else FIRST_FRAME_READ_S))
        if against
        else None
    )
    try:
        end = playback.length if whole and not chosen.narrate else 0
        playback.seek(parse_moment(chosen.at, playback.history) if chosen.at else end)
    except MomentError as error:
        raise ConfigError(f"--at: {error}") from None
    if headless:
        _print_replay(playback, rival, narrate=chosen.narrate)
        return EXIT_OK
    playback.speed = chosen.speed
    from esper.sanctum.source import ReplaySource

    source = ReplaySource(playback, hold=chosen.at is not None, follow=follow, ghost_run=rival)
    env, place = _env_and_view(address, playback.history) if address is not None else (0, "overview")
    code = show_dashboard(source, DisplayOptions.from_options(vars(chosen)), env=env, initial_view=place)
    return print_usage_error(source.failure) if source.failure else code


def _print_replay(playback: Playback, rival: GhostRun | None, *, narrate: bool) -> None:
    """Print the summary of a recording at this moment, or narrate it from here on."""
    from esper.cli.console import Narrator, format_summary
    from esper.telemetry.state import Keyframe

    print_warnings(playback.history.notices)
    if narrate:
        here = Keyframe.from_state(playback.state)
        Narrator(sys.stdout).run(itertools.chain([here], playback.history.events(playback.position)))
    else:
        print(format_summary(playback.state, _run_status(playback)))
    if rival is not None:
        rival.comparison.search()
        print(rival.comparison.description)


def _run_status(playback: Playback) -> str | None:
    """What became of a run whose recording has been read to its end; None at a moment before, or of a single file."""
    from esper.history.run_info import display_status, is_being_written

    path, state = playback.history.path, playback.state
    if playback.position < playback.length or not path.is_dir():
        return None
    return display_status(state.status, live=is_being_written(path, state.time, time.time()))


def _env_and_view(address: ViewAddress, history: History) -> tuple[int, str]:
    """The env and the view that an address names, or those that one begins with. Raises ConfigError."""
    from esper.sanctum.bindings import VIEW_NAMES

    place = address.view or VIEW_NAMES[0]
    if place not in VIEW_NAMES:
        raise ConfigError(f"there is no view {place!r}: {suggest(place, VIEW_NAMES)}")
    env, envs = address.env or 0, len(history.state_at(min(history.length, 1)).envs)
    if env >= envs and address.env is not None:
        raise ConfigError(f"there is no env {env} in {address.run}: it has {envs}, counted from 0")
    return env, place


def run_demo(arguments: Sequence[str]) -> int:
    """Show it."""
    parser = Parser(prog="esper-sanctum demo", description="Replay the recorded run that ships with the package.")
    chosen = parse_replay(parser, arguments)
    return replay(find_demo(), chosen)


def find_demo() -> Path:
    """Where it is: an installed package has it inside, a checkout at its root. Raises ReadError if it is at neither."""
    package = Path(__file__).resolve().parents[2]
    places = (package / "demo", package.parents[1] / "telemetry" / "demo")
    for place in places:
        if place.is_dir():
            return place
    raise ReadError(f"the demo is missing: there is no directory {places[0]}; install the package again")
