"""The options of the dashboard, and how a command opens it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from esper.cli.streams import discard_broken_output
from esper.config import ConfigError

if TYPE_CHECKING:
    from esper.sanctum.source import RunSource


DEFAULT_THEME = "sanctum-dark"


class DisplayOptions(NamedTuple):
    """How the dashboard is to be."""

    theme: str
    symbols: str
    bell: bool
    notify: str | None = None

    @classmethod
    def from_options(cls, chosen: dict[str, Any]) -> DisplayOptions:
        """Out of the options that a user chose."""
        return cls(*(chosen.pop(name) for name in cls._fields))


def add_screen_options(parser: argparse.ArgumentParser) -> None:
    """What `Look` holds, and `--no-tui` and `--narrate` to do without."""
    parser.add_argument(
        "--theme",
        default=DEFAULT_THEME,
        metavar="NAME",
        help=f"colours; the key t shows all there are (default: {DEFAULT_THEME})",
    )
    parser.add_argument(
        "--symbols",
        default="auto",
        choices=("auto", "braille", "block", "ascii"),
        help="what charts are drawn with (default: auto, by TERM and locale)",
    )
    parser.add_argument("--bell", action="store_true", help="ring the terminal's bell when an anomaly begins")
    parser.add_argument(
        "--notify",
        choices=("osc9", "osc777"),
        help="have the terminal notify the desktop when an anomaly begins, the run is held, or ends, by the sequence "
        "that it understands: OSC 9 (iTerm2, kitty), OSC 777 (foot, rxvt)",
    )
    parser.add_argument("--no-tui", action="store_true", help="no dashboard: lines fit for a log file")
    parser.add_argument(
        "--narrate",
        action="store_true",
        help="no dashboard: a plain sentence for each notable change, in ASCII, for screen readers and pipes",
    )


def check_terminal(theme: str) -> None:
    """Raises ConfigError if there is no terminal for the dashboard, or no such theme."""
    served = "TEXTUAL_DRIVER" in os.environ  # its terminal is a page
    if not served and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("the dashboard needs a terminal, and there is none here: add --no-tui")
    check_theme(theme)


def check_theme(theme: str) -> None:
    """Raises ConfigError if there is no such theme."""
    from esper.sanctum.theme import ThemeError, find_theme, load_themes

    try:
        find_theme(theme, load_themes())
    except ThemeError as error:
        raise ConfigError(str(error)) from None


def show_dashboard(source: RunSource, look: DisplayOptions, *, env: int = 0, initial_view: str = "overview") -> int:
    """The dashboard, until the user leaves it; its exit code. Raises ConfigError as `check_screen` does.

    Args:
        source: what is shown.
        look: how it is to be.
        env: the one under the cursor.
        initial_view: View that is opened first.
    """
    check_terminal(look.theme)
    from esper.sanctum.app import run_dashboard

    try:
        return run_dashboard(source, **look._asdict(), env=env, initial_view=initial_view)
    finally:
        discard_broken_output()  # of the terminal, if it was closed
