"""The dashboard, for the commands that show it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from esper.config import ConfigError

if TYPE_CHECKING:
    from esper.sanctum.source import Source


def add_screen_options(parser: argparse.ArgumentParser) -> None:
    """`--theme`, and `--no-tui` to do without."""
    parser.add_argument("--theme", default="sanctum-dark", metavar="NAME", help="colours (default: sanctum-dark)")
    parser.add_argument("--no-tui", action="store_true", help="no dashboard: lines fit for a log file")


def check_screen(theme: str) -> None:
    """Raises ConfigError if there is no terminal for the dashboard, or no such theme."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("the dashboard needs a terminal, and there is none here: add --no-tui")
    from esper.sanctum.theme import ThemeError, find_theme, load_themes

    try:
        find_theme(theme, load_themes())
    except ThemeError as error:
        raise ConfigError(str(error)) from None


def show(source: Source, theme: str, *, env: int = 0, place: str = "overview") -> int:
    """The dashboard, until the user leaves it; its exit code. Raises ConfigError as `check_screen` does.

    Args:
        source: what is shown.
        theme: name of the colours.
        env: the one under the cursor.
        place: the view to begin with.
    """
    check_screen(theme)
    from esper.sanctum.app import run_dashboard

    return run_dashboard(source, theme=theme, env=env, place=place)
