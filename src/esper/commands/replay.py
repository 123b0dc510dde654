"""`esper-sanctum replay FILE_OR_RUN`: the dashboard over a recording; with `--no-tui`, the summary of its end."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from esper.commands.options import DONE, Parser, add_recording, refuse, warn
from esper.commands.screen import add_screen_options, show
from esper.config import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Show a recorded run."""
    from esper.telemetry.runs import resolve_run

    parser = Parser(prog="esper-sanctum replay", description="Show a recorded run.")
    add_recording(parser, "FILE_OR_RUN")
    parser.add_argument("--follow", action="store_true", help="begin at the end, and stay there while it is written")
    chosen = parse_replay(parser, arguments)
    if chosen.follow and chosen.no_tui:
        raise ConfigError("--follow needs the dashboard: leave out --no-tui, or see esper-sanctum attach --no-tui")
    return replay(resolve_run(chosen.run, chosen.telemetry_dir), chosen, follow=chosen.follow)


def parse_replay(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command, with those that say how a recording is shown. Raises ConfigError."""
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="how fast time passes (default: 1)")
    add_screen_options(parser)
    chosen = parser.parse_args(arguments)
    if not 0 < chosen.speed < math.inf:
        raise ConfigError(f"--speed {chosen.speed} is not valid: it must be a number above 0")
    return chosen


def replay(path: Path, chosen: argparse.Namespace, *, follow: bool = False) -> int:
    """Show a recording in the way that was chosen; the exit code."""
    from esper.telemetry.console import summary
    from esper.telemetry.playback import Playback
    from esper.telemetry.reader import open_history

    playback = Playback(open_history(path))
    if chosen.no_tui:
        playback.to_end()
        warn(playback.history.notices)
        print(summary(playback.state))
        return DONE
    playback.speed = chosen.speed
    from esper.sanctum.source import ReplaySource

    source = ReplaySource(playback, follow=follow)
    code = show(source, chosen.theme)
    return refuse(source.failure) if source.failure else code
