"""`esper-sanctum replay FILE_OR_RUN`: the dashboard over a recording; with `--no-tui`, the summary of its end."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from esper.commands.options import DONE, Parser, add_recording, refuse, warn
from esper.commands.screen import add_screen_options, show
from esper.config import ConfigError

FIRST_LOOK = 0.02
"""Seconds of reading before the first frame; the dashboard reads on."""


def run(arguments: Sequence[str]) -> int:
    """Show a recorded run."""
    from esper.telemetry.runs import resolve_run

    parser = Parser(prog="esper-sanctum replay", description="Show a recorded run.")
    add_recording(parser, "FILE_OR_RUN")
    parser.add_argument("--follow", action="store_true", help="begin at the end, and stay there while it is written")
    parser.add_argument("--against", metavar="RUN", help="show another run as a ghost, and find where the two part")
    chosen = parse_replay(parser, arguments)
    if chosen.follow and chosen.no_tui:
        raise ConfigError("--follow needs the dashboard: leave out --no-tui, or see esper-sanctum attach --no-tui")
    if chosen.follow and chosen.against:
        raise ConfigError("--against compares what is recorded: leave out --follow")
    against = resolve_run(chosen.against, chosen.telemetry_dir) if chosen.against else None
    return replay(resolve_run(chosen.run, chosen.telemetry_dir), chosen, follow=chosen.follow, against=against)


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


def replay(path: Path, chosen: argparse.Namespace, *, follow: bool = False, against: Path | None = None) -> int:
    """Show a recording in the way that was chosen, beside another run or alone; the exit code."""
    from esper.telemetry.console import summary
    from esper.telemetry.moments import MomentError, find_moment
    from esper.telemetry.playback import Playback
    from esper.telemetry.reader import open_history
    from esper.telemetry.rival import Rival

    whole = chosen.no_tui or chosen.at or follow
    playback = Playback(open_history(path, math.inf if whole else FIRST_LOOK))
    rival = Rival(playback.history, open_history(against, math.inf if whole else FIRST_LOOK)) if against else None
    try:
        playback.seek(find_moment(chosen.at, playback.history) if chosen.at else playback.length if whole else 0)
    except MomentError as error:
        raise ConfigError(f"--at: {error}") from None
    if chosen.no_tui:
        warn(playback.history.notices)
        print(summary(playback.state))
        if rival is not None:
            rival.comparison.search()
            print(rival.comparison.sentence)
        return DONE
    playback.speed = chosen.speed
    from esper.sanctum.source import ReplaySource

    source = ReplaySource(playback, hold=chosen.at is not None, follow=follow, rival=rival)
    code = show(source, chosen.theme)
    return refuse(source.failure) if source.failure else code
