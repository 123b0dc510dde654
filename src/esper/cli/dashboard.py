"""Options of the dashboard, and the function with which commands open it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from esper.cli.options import NARRATIONS
from esper.cli.streams import discard_broken_output
from esper.common.configuration.config import ConfigError
from esper.common.system.process import freeze_loaded_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper.sanctum.keys import KeyBinding
    from esper.sanctum.source import RunSource


AUTO_THEME = "auto"
"""Stands for the default theme, or the light one if the terminal has a light background."""


class DisplayOptions(NamedTuple):
    """Appearance and notifications of the dashboard. The field names are the option names."""

    theme: str
    symbols: str
    """`auto`, `braille`, `block` or `ascii`."""
    bell: bool
    """Ring the terminal bell when an anomaly begins."""
    notify: str | None = None
    """Escape sequence for desktop notifications, `osc9` or `osc777`; None for no notifications."""

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> DisplayOptions:
        """Return the display options of the parsed command line. Raises ConfigError as `check_theme` does."""
        check_theme(options.theme)
        return cls(*(getattr(options, name) for name in cls._fields))


def add_screen_options(parser: argparse.ArgumentParser) -> None:
    """Add the display options, and `--no-tui` and `--narrate`, which replace the dashboard."""
    add_display_options(parser)
    parser.add_argument("--no-tui", action="store_true", help="print log lines instead of opening the dashboard")
    parser.add_argument(
        "--narrate",
        nargs="?",
        const=NARRATIONS[0],
        choices=NARRATIONS,
        help="print ASCII sentences instead of opening the dashboard, for screen readers and pipes: summary (rounds, "
        "anomalies, checkpoints and faults); all (every notable event) (default: summary)",
    )


def add_display_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `DisplayOptions`."""
    parser.add_argument(
        "--theme",
        default=AUTO_THEME,
        metavar="NAME",
        help="colour theme; auto follows the background of the terminal; a key of the dashboard switches to the next "
        "one (default: auto)",
    )
    parser.add_argument(
        "--symbols",
        default="auto",
        choices=("auto", "braille", "block", "ascii"),
        help="characters of charts; auto chooses by TERM and locale (default: auto)",
    )
    parser.add_argument("--bell", action="store_true", help="ring the terminal bell when an anomaly begins")
    parser.add_argument(
        "--notify",
        choices=("osc9", "osc777"),
        help="send a desktop notification when an anomaly begins, or when the run is held or ends: osc9 (iTerm2, "
        "kitty); osc777 (foot, rxvt)",
    )


def add_own_task_option(parser: argparse.ArgumentParser) -> None:
    """Add `--task`, for commands that show a run of another process, whose task may be the user's own code."""
    parser.add_argument(
        "--task",
        metavar="TASK",
        help="task of the run, needed to compute effects of decisions if it is your own code (FILE.py or MODULE:NAME)",
    )


def check_terminal(theme: str) -> Sequence[KeyBinding]:
    """Check that the dashboard can be opened, and return the table of its keys, with those of the user.

    Raises:
        ConfigError: Standard input is not a terminal, neither standard error nor standard output is one, the theme is
            unknown, or the user's file of keys is invalid.
    """
    from esper.sanctum.own_keys import load_keys
    from esper.sanctum.theme import find_theme, load_themes

    if not _is_served() and not (sys.stdin.isatty() and (sys.stderr.isatty() or sys.stdout.isatty())):
        raise ConfigError("the dashboard needs a terminal; add --no-tui to run without it")
    if theme != AUTO_THEME:
        find_theme(theme, load_themes())
    return load_keys()


def _is_served() -> bool:
    """Return True if `serve` shows the dashboard in a browser."""
    return "TEXTUAL_DRIVER" in os.environ


def check_theme(theme: str) -> None:
    """Check a theme that the user named.

    Raises:
        ConfigError: The theme is unknown, or its file is invalid.
    """
    if theme != AUTO_THEME:
        from esper.sanctum.theme import find_theme, load_themes

        find_theme(theme, load_themes())


def show_dashboard(
    source: RunSource | Path,
    display: DisplayOptions,
    *,
    env: int = 0,
    initial_view: str = "overview",
    moment: str | None = None,
) -> int:
    """Open the dashboard, wait until the user leaves it, and restore the terminal.

    Args:
        source: Run or recording to show, or the directory whose runs the workspace shows.
        display: Appearance and notifications.
        env: Index of the env that is selected first.
        initial_view: Name of the view that is shown first.
        moment: Moment of a recording to go to as soon as it was read; None to stay at the start.

    Returns:
        Exit code: 0; 128 + n if signal n abandoned the run; 1 if the dashboard failed.

    Raises:
        ConfigError: As `check_terminal` does.
    """
    from esper.sanctum.terminal_background import BackgroundQuery, is_light, typed_keys

    keys = check_terminal(display.theme)
    is_asked = display.theme == AUTO_THEME and not _is_served()
    query = BackgroundQuery(sys.stdin.fileno()) if is_asked else None
    try:
        from esper.sanctum.app import SanctumApp, WorkspaceApp
        from esper.sanctum.theme import DEFAULT_THEME, LIGHT_THEME
    finally:
        reply = query.close() if query is not None else b""
    if display.theme == AUTO_THEME:
        display = display._replace(theme=LIGHT_THEME if is_asked and is_light(reply) else DEFAULT_THEME)

    options: dict[str, Any] = {**display._asdict(), "keys": keys, "typed": typed_keys(reply)}
    if isinstance(source, Path):
        app = WorkspaceApp(source, **options)
    else:
        app = SanctumApp(source, **options, env=env, initial_view=initial_view, moment=moment)
    freeze_loaded_objects()
    try:
        app.run()
    finally:
        discard_broken_output()  # if the terminal was closed
    return 1 if app.return_code is None else app.return_code  # None: the input thread failed
