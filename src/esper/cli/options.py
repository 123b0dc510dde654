"""The argument parser, exit codes, and the options of a run."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from esper.config import Config
from esper.config_fields import ConfigField, list_fields, table_description
from esper.formatting import suggest
from esper.tasks import TASK_NAMES, own_values

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)")
"""Start of a negative value. The pattern of argparse has no exponents, so `-1e-3` would be an unknown option."""


def print_usage_error(sentence: str) -> int:
    """Say on stderr why a request is not carried out; the exit code for that."""
    print(f"esper-sanctum: {sentence}", file=sys.stderr)
    return EXIT_USAGE


def print_warnings(sentences: Iterable[str]) -> None:
    """Say on stderr what a request was carried out in spite of."""
    for sentence in sentences:
        print(f"esper-sanctum: {sentence}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """Refuses an unknown option with the nearest valid one, and prints a short help and a complete help.

    Args:
        commands: Names of commands that are valid in place of the options, if there are any.
        options: Arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, *, commands: Collection[str] = (), **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._negative_number_matcher = _NEGATIVE_NUMBER
        self._commands = commands
        self.complete_help: dict[argparse.Action, str] = {}
        """Help texts of `--help-all`, where they differ from those of `--help`."""
        self.tables: dict[str, argparse._ArgumentGroup] = {}
        """Options of `--help-all` only, by table of the configuration."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with code 2."""
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and words[0].startswith("--"):
            name = words[0].partition("=")[0]
            message = f"unknown option {name}: {self._nearest_option(name)}"
        elif message.startswith("unrecognized arguments"):
            offer = suggest(words[0], self._commands) if self._commands else f"{self.prog} --help lists what there is"
            message = f"unknown {'command or ' if self._commands else ''}argument {words[0]!r}: {offer}"
        raise SystemExit(print_usage_error(message))

    def _nearest_option(self, name: str) -> str:
        known = [option for action in self._actions for option in action.option_strings]
        if without_table := [option for option in known if option.endswith(f".{name.removeprefix('--')}")]:
            return f"did you mean {' or '.join(without_table)}?"
        table, dot, key = name.partition(".")
        if in_table := [option.removeprefix(table + dot) for option in known if dot and option.startswith(table + dot)]:
            return suggest(key, in_table, prefix=table + dot)
        return suggest(name, known, listed=[option for option in known if "." not in option])


class _HelpAll(argparse.Action):
    """`--help-all`: prints the complete help and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        for action, text in parser.complete_help.items():
            action.help = text
        for table, group in parser.tables.items():
            group.description = table_description(Config, table)
        parser.print_help()
        parser.exit()


def add_run_options(parser: Parser) -> None:
    """Add `--config`, and an option for each key of `Config`: its dotted name.

    `--help` lists the keys outside the tables; `--help-all` lists all, by table, with range, unit and default. The
    destination of an option is its key with underscores, as `resolve` takes it.
    """
    parser.usage = "%(prog)s [options]"
    pointer = f"{parser.prog} --help-all lists every option with its range, unit and default."
    parser.epilog = f"{parser.epilog} {pointer}" if parser.epilog else pointer
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option, by table, and exit")
    for field in list_fields(Config):
        if field.table and field.table not in parser.tables:
            parser.tables[field.table] = parser.add_argument_group(f"[{field.table}]")
        default = _default_of(field)
        action = parser.tables.get(field.table, parser).add_argument(
            f"--{field.key}",
            dest=field.key.replace("-", "_"),
            nargs="+" if isinstance(field.default, tuple) else None,
            metavar=(field.unit or field.name.rpartition("-")[2]).upper(),
            help=argparse.SUPPRESS if field.table else _escaped(_summary_of(field) + default),
        )
        parser.complete_help[action] = _escaped(field.details + _tasks_of(field) + default)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of the keys that config prints")


def _summary_of(field: ConfigField) -> str:
    choices = f": {', '.join(field.choices)}" if field.choices else ""
    return field.description + choices + _tasks_of(field)


def _tasks_of(field: ConfigField) -> str:
    """Return the names of the tasks for `--task`; the configuration does not have them."""
    return f": {', '.join(TASK_NAMES)}" if field.key == "task" else ""


def _default_of(field: ConfigField) -> str:
    """Return the default in parentheses; for a setting of the task, the value of every task."""
    match field.default:
        case None:
            return f" (default: {_values_by_task(field.name.replace('-', '_'))})"
        case "" | ():
            return ""
        case tuple(words):
            return f" (default: {' '.join(words)})"
        case value:
            return f" (default: {value})"


def _values_by_task(name: str) -> str:
    """Return the value of a task setting, or each value and the tasks that have it."""
    values = own_values(name)
    tasks_by_value = {value: [task for task in values if values[task] == value] for value in values.values()}
    if len(tasks_by_value) == 1:
        return str(next(iter(tasks_by_value)))
    return "; ".join(f"{value} for {', '.join(tasks)}" for value, tasks in tasks_by_value.items())


def _escaped(text: str) -> str:
    """Return a help text without the format characters of argparse."""
    return text.replace("%", "%%")


def given_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that were given, as `resolve` takes them, from the parsed command line."""
    keys = {field.key.replace("-", "_") for field in list_fields(Config)}
    return {name: value for name, value in chosen.items() if name in keys and value is not None}


def add_run_argument(parser: argparse.ArgumentParser, metavar: str, *, several: bool = False) -> None:
    """`run`, for what `resolve_run` finds, and `--telemetry-dir`, where it looks; `runs` where there may be several."""
    what = "a path, a run below the telemetry directory, or last"
    if several:
        parser.add_argument("runs", nargs="+", metavar=metavar, help=f"each {what}")
    else:
        parser.add_argument("run", metavar=metavar, help=what)
    add_telemetry_dir_option(parser)


def add_telemetry_dir_option(parser: argparse.ArgumentParser) -> None:
    """`--telemetry-dir`, for commands that look runs up."""
    parser.add_argument(
        "--telemetry-dir",
        type=Path,
        default=Path(Config().telemetry_dir),
        metavar="DIR",
        help="where runs are looked for",
    )
