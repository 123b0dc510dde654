"""The argument parser, exit codes, and options that several commands share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

from esper.cli.streams import print_text
from esper.common.configuration.config import Config, ConfigError
from esper.common.configuration.fields import ConfigField, list_fields
from esper.common.formatting import install_command, join_alternatives, strip_control, suggest
from esper.common.user_code.references import TaskOrigin
from esper.networks.tasks import TASK_NAMES, check_task_reference, own_values
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.recordings.checkpoints.manifest import config_from_manifest, read_manifest
from esper.recordings.files.runs import resolve_run
from esper.training.policy.loading import is_own_policy

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
NarrationDetail = Literal["summary", "all"]
NARRATIONS = get_args(NarrationDetail)
"""Values of `--narrate`; the first is the default."""
RUN_HELP = "run name, path, or last"
"""Help text of every argument that `resolve_run` resolves."""

_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)")
"""Start of a negative value. The pattern of argparse has no exponents, so `-1e-3` would be an unknown option."""


def complete_narrate(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with the default value after each `--narrate` that another word follows.

    `argparse` would take any word as the value, such as the RUN of `replay --narrate RUN`. Training has no
    such argument.
    """
    return [
        f"--narrate={NARRATIONS[0]}" if word == "--narrate" and not {*arguments[at : at + 1]} & {*NARRATIONS} else word
        for at, word in enumerate(arguments, start=1)
    ]


def print_usage_error(sentence: str) -> int:
    """Print an error to standard error and return the exit code for invalid usage."""
    print_warnings([sentence])
    return EXIT_USAGE


def print_warnings(sentences: Iterable[str]) -> None:
    """Print warnings to standard error, one line each."""
    for sentence in sentences:
        print_text(f"esper-sanctum: {strip_control(sentence)}", sys.stderr)


PARSER_REQUEST = [""]
"""Arguments for which a command raises `ParserRequested`, once it has built its parser. Compared by identity."""


class ParserRequested(Exception):  # noqa: N818 (a parser, not an error)
    """A parser has received `PARSER_REQUEST`."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


_LEARNING_RATES = ("--training.host-learning-rate", "--training.seed-learning-rate", "--ppo.learning-rate")
_OTHER_NAMES = {"--headless": ("--no-tui",), "--learning-rate": _LEARNING_RATES, "--lr": _LEARNING_RATES}
"""Options here, keyed by the names that users may know from other programs."""


class Parser(argparse.ArgumentParser):
    """Argument parser that suggests the nearest valid option for an unknown one, and has `--help` and `--help-all`.

    Args:
        commands: Names of commands that the user could give instead of options.
        parser_arguments: Arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, *, commands: Collection[str] = (), **parser_arguments: Any) -> None:
        super().__init__(allow_abbrev=False, **parser_arguments)
        self._negative_number_matcher = _NEGATIVE_NUMBER
        self._commands = commands
        self.fields: dict[argparse.Action, ConfigField] = {}
        """Configuration keys of the options that set one."""
        self.tables: dict[str, Any] = {}
        """Argument groups that only `--help-all` lists, keyed by configuration table. Their type is private."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] (its overloads)
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse arguments, or raise `ParserRequested`."""
        if args is PARSER_REQUEST:
            raise ParserRequested(self)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Return the help. The texts of configuration keys are read here, because a run starts without them."""
        for action, field in self.fields.items():
            action.help = action.help or _help_of(field, with_details=False)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with code 2."""
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and words[0].startswith("--"):
            name = words[0].partition("=")[0]
            message = f"unknown option {name}; {self._nearest_option(name)}"
        elif message.startswith("unrecognized arguments"):
            if words[0] in self._commands:
                message = f"the command comes before the options: {self.prog} {words[0]} …"
            elif self._commands:
                message = f"unknown command or argument {words[0]!r}; {suggest(words[0], self._commands)}"
            else:
                message = f"unknown argument {words[0]!r}; list the valid ones with `{self.prog} --help`"
                if "--narrate" in self._option_string_actions:  # which may stand without a value
                    message += f"; values of --narrate: {', '.join(NARRATIONS)}"
        raise SystemExit(print_usage_error(message))

    def _nearest_option(self, name: str) -> str:
        """Return a suggestion: same key in a table, else nearest key of the same table, else nearest option."""
        known = [option for action in self._actions for option in action.option_strings]
        others = {other: meant for other, meant in _OTHER_NAMES.items() if {*meant} <= {*known}}
        if name in others:
            return f"did you mean {join_alternatives(others[name])}?"
        if without_table := [option for option in known if option.endswith(f".{name.removeprefix('--')}")]:
            return f"did you mean {join_alternatives(without_table)}?"
        table, dot, key = name.partition(".")
        if in_table := [option.removeprefix(table + dot) for option in known if dot and option.startswith(table + dot)]:
            return suggest(key, in_table, prefix=table + dot)
        nearest = get_close_matches(name, [*others, *known], n=1)
        if nearest:
            return f"did you mean {join_alternatives(others.get(nearest[0], nearest))}?"
        return f"list the valid ones with `{self.prog} --help`"


class _HelpAll(argparse.Action):
    """The action of `--help-all`: prints the complete help and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        for action, field in parser.fields.items():
            action.help = _help_of(field, with_details=True)
            if field.table:
                parser.tables[field.table].description = field.table_description
        parser.print_help()
        parser.exit()


def add_run_options(parser: Parser, defaults: Mapping[str, Any] | None = None) -> None:
    """Add `--help-all`, `--config`, and an option for each key of `Config`, named by its dotted key.

    `--help` lists the keys outside the tables; `--help-all` lists all, by table, with range, unit and default. The
    destination of an option is its key with underscores, as `resolve_config` expects it.

    Args:
        defaults: Defaults of the command that differ from those of `Config`, keyed by dotted key; None for none.
    """
    defaults = defaults or {}
    parser.usage = "%(prog)s [options]"
    pointer = f"{parser.prog} --help-all lists every option with its range, unit and default."
    parser.epilog = f"{parser.epilog} {pointer}" if parser.epilog else pointer
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option by table and exit")
    for field in list_fields(Config):
        if field.table and field.table not in parser.tables:
            parser.tables[field.table] = parser.add_argument_group(f"[{field.table}]")
        action = parser.tables.get(field.table, parser).add_argument(
            f"--{field.key}",
            dest=field.key.replace("-", "_"),
            nargs="+" if isinstance(field.default, tuple) else None,
            metavar=(field.unit or field.name.rpartition("-")[2]).upper(),
            help=argparse.SUPPRESS if field.table else None,
        )
        parser.fields[action] = replace(field, default=defaults[field.key]) if field.key in defaults else field
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of the keys printed by config")


def _help_of(field: ConfigField, *, with_details: bool) -> str:
    """Return the help text of a key, with its default in parentheses.

    The configuration does not know the task names, nor a default that depends on the task.
    """
    text, default = field.details, field.default
    if not with_details:
        text = field.description + (f": {', '.join(field.choices)}" if field.choices else "")
    if field.key == "task":
        text += f": {', '.join(TASK_NAMES)}; FILE.py or MODULE:NAME for one of your own; A+B for a mixture"
    if default is None:
        default = _values_by_task(field.name.replace("-", "_"))
    elif isinstance(default, tuple):
        default = " ".join(cast("tuple[str, ...]", default))
    text += f" (default: {default})" if default != "" else ""
    return text.replace("%", "%%")  # argparse would format it


def _values_by_task(name: str) -> str:
    """Return the default of a task setting if all tasks that have it share it, else each default and its tasks."""
    values = {task: value for task, value in own_values(name).items() if value is not None}
    tasks_by_value = {value: [task for task in values if values[task] == value] for value in values.values()}
    if len(tasks_by_value) == 1:
        return str(next(iter(tasks_by_value)))
    return "; ".join(f"{value} for {', '.join(tasks)}" for value, tasks in tasks_by_value.items())


def add_accept_changed_task_option(parser: argparse.ArgumentParser) -> None:
    """Add `--accept-changed-task`, for commands that read a checkpoint."""
    parser.add_argument(
        "--accept-changed-task",
        action="store_true",
        help="use your own task although its code has changed since the checkpoint",
    )


def check_own_code_is_named(origin: TaskOrigin | None, saved: Config, run: str, named: Collection[str]) -> None:
    """Check that the user named the task and the policy of a checkpoint that are the user's own code.

    Nothing may be imported that is not named on this command line.

    Args:
        origin: Source of the task in the checkpoint; None for a built-in task.
        saved: Configuration of the checkpoint.
        run: The run as the user named it.
        named: Keys that the user gave.

    Raises:
        ConfigError: The task or the policy is not named.
    """
    if origin and "task" not in named:
        reference = origin.reference
        raise ConfigError(f"{run} trains the task {saved.task} of {reference}; name it again: --task {reference}")
    if is_own_policy(saved.policy) and "policy" not in named:
        raise ConfigError(f"{run} uses the policy {saved.policy}; name it again: --policy {saved.policy}")


def open_checkpoint(run: str, telemetry_dir: Path, task: str | None) -> Path:
    """Return the checkpoint of a command that builds networks, once the user has named the code that this imports.

    Args:
        run: The run or checkpoint as the user named it; of a run, the newest checkpoint is used.
        telemetry_dir: Directory in which run names are looked up.
        task: Value of `--task`; None if it was not given.

    Raises:
        ReadError: The run does not exist.
        CheckpointError: It has no checkpoint, or a damaged one.
        ConfigError: The task is the user's own code and is not named.
        TaskError: The named task does not exist.
    """
    checkpoint = find_checkpoint(resolve_run(run, telemetry_dir))
    manifest = read_manifest(checkpoint)
    named = {"policy"} if task is None else {"policy", "task"}
    check_own_code_is_named(manifest.origin, config_from_manifest(manifest, checkpoint), run, named)
    if task is not None:
        check_task_reference(task)
    return checkpoint


def check_extra(option: str, extra: str, package: str) -> None:
    """Check that the package of an optional dependency is installed, which an option needs. Raises ConfigError."""
    if find_spec(package) is None:
        raise ConfigError(f"{option}: {package} is not installed: run `{install_command(extra)}` in the checkout")


def given_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the run options that the user gave, from the parsed command line, as `resolve_config` expects them."""
    keys = {field.key.replace("-", "_") for field in list_fields(Config)}
    return {name: value for name, value in vars(parsed).items() if name in keys and value is not None}


def add_run_argument(parser: argparse.ArgumentParser, metavar: str, *, several: bool = False) -> None:
    """Add the positional argument `run`, which `resolve_run` resolves, and `--telemetry-dir`.

    Args:
        metavar: Name of the argument in the help.
        several: Accept one or more runs, and call the argument `runs`.
    """
    if several:
        parser.add_argument("runs", nargs="+", metavar=metavar, help=RUN_HELP)
    else:
        parser.add_argument("run", metavar=metavar, help=RUN_HELP)
    add_telemetry_dir_option(parser)


def add_telemetry_dir_option(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Add `--telemetry-dir`, for commands that find runs by name. `also` says what else the directory is for."""
    default = Config().telemetry_dir
    parser.add_argument(
        "--telemetry-dir",
        type=Path,
        default=Path(default),
        metavar="DIR",
        help=f"directory in which run names are looked up{also} (default: {default})",
    )
