"""What the commands share: exit codes, a parser that refuses in one sentence, and the options of a run."""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from esper.config import Config
from esper.nearest import nearest
from esper.tasks import TASK_NAMES

DONE, FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130


VALUES = {"task": TASK_NAMES}
"""Of options whose values the configuration does not know."""


def refuse(sentence: str) -> int:
    """Say on stderr why a request is not carried out; the exit code for that."""
    print(f"esper-sanctum: {sentence}", file=sys.stderr)
    return WRONG_REQUEST


def warn(sentences: Iterable[str]) -> None:
    """Say on stderr what a request was carried out in spite of."""
    for sentence in sentences:
        print(f"esper-sanctum: {sentence}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know with the nearest option that it does.

    Args:
        commands: names that may stand in place of the options, where there are any.
        options: of argparse.
    """

    def __init__(self, *, commands: Collection[str] = (), **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._commands = commands

    def error(self, message: str) -> NoReturn:
        """One sentence, exit code 2."""
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and words[0].startswith("--"):
            known = [option for action in self._actions for option in action.option_strings]
            message = f"unknown option {words[0]}: {nearest(words[0], known)}"
        elif message.startswith("unrecognized arguments"):
            offer = nearest(words[0], self._commands) if self._commands else f"{self.prog} --help lists what there is"
            message = f"unknown {'command or ' if self._commands else ''}argument {words[0]!r}: {offer}"
        raise SystemExit(refuse(message))


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """`--config`, and a flag for each field of `Config` that is not a table of it."""
    hints = typing.get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        notes = getattr(hints[field.name], "__metadata__", ())
        if not notes:
            continue  # a table of the TOML file
        several = isinstance(field.default, tuple)
        default = " ".join(field.default) if several else field.default
        values = f": {', '.join(VALUES[field.name])}" if field.name in VALUES else ""
        parser.add_argument(
            f"--{field.encode_name}",
            dest=field.name,
            nargs="+" if several else None,
            metavar=field.name.rpartition("_")[2].upper(),
            help=notes[0].description + values + (f" (default: {default})" if default != "" else ""),
        )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of these, and tables")


def add_recording(parser: argparse.ArgumentParser, metavar: str, *, several: bool = False) -> None:
    """`run`, for what `resolve_run` finds, and `--telemetry-dir`, where it looks; `runs` where there may be several."""
    what = "a path, a run below the telemetry directory, or last"
    if several:
        parser.add_argument("runs", nargs="+", metavar=metavar, help=f"each {what}")
    else:
        parser.add_argument("run", metavar=metavar, help=what)
    add_telemetry_dir(parser)


def add_telemetry_dir(parser: argparse.ArgumentParser) -> None:
    """`--telemetry-dir`, for commands that look runs up."""
    parser.add_argument(
        "--telemetry-dir",
        type=Path,
        default=Path(Config().telemetry_dir),
        metavar="DIR",
        help="where runs are looked for",
    )
