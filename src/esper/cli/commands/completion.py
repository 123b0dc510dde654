"""`completion SHELL`: prints a script that makes a shell complete commands, options and names.

The script is complete in itself: a shell that completes a word starts no Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import shtab

from esper.cli.commands import COMMANDS, TRAINING
from esper.cli.options import EXIT_OK, PARSER_REQUEST, Parser, ParserRequested
from esper.cli.streams import print_text
from esper.common.configuration.config import Config
from esper.networks.tasks import TASK_NAMES
from esper.studies.evaluation.results import EVALUATION_POLICIES
from esper.training.policy.loading import POLICY_NAMES

SHELLS = ("bash", "zsh", "fish")
_EVALUATED = (*POLICY_NAMES, *EVALUATION_POLICIES)
"""Policies that `evaluate` can compare."""
_RUNS = "_esper_sanctum_runs"
_TELEMETRY = Config().telemetry_dir
_PREAMBLES = {
    "bash": f"""
{_RUNS}() {{
  compgen -W last -- "$1"
  if [[ $1 == */* ]]; then compgen -f -- "$1"; else (cd {_TELEMETRY} 2>/dev/null && compgen -d -- "$1"); fi
}}
""",
    "zsh": f"""
{_RUNS}() {{
  if [[ $PREFIX == */* ]]; then _files; else compadd -- last {_TELEMETRY}/*(N/:t); fi
}}
""",
    "fish": f"""
function {_RUNS}
  echo last
  set -l runs {_TELEMETRY}/*/
  string replace -r '.*/([^/]+)/$' '$1' $runs
end
""",
}
"""Functions that list the runs of the default directory, keyed by shell."""


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    parser = Parser(
        prog="esper-sanctum completion",
        description="Print a script that makes a shell complete commands, options, and names of runs, tasks and "
        "policies",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    shell = parser.parse_args(arguments).shell
    print_text(shtab.complete(_whole_parser(), shell, preamble=_PREAMBLES[shell]).rstrip())
    return EXIT_OK


def _whole_parser() -> Parser:
    """Return a parser of all commands. It has the options of each, and cannot parse."""
    whole = _parser_of(TRAINING)
    commands = whole.add_subparsers()
    for name, target in COMMANDS.items():
        parser = _parser_of(target)
        commands.add_parser(name, parents=[parser], add_help=False, help=parser.description)
    return whole


def _parser_of(target: str) -> Parser:
    """Return the parser of a command, given as `module:function`, with words that complete its values."""
    module, function = target.split(":")
    try:
        getattr(import_module(f"esper.cli.commands.{module}"), function)(PARSER_REQUEST)
    except ParserRequested as request:
        parser = request.parser
    else:
        raise AssertionError(f"{target} has not parsed its arguments")
    for action in parser._actions:
        if field := parser.fields.get(action):
            action.help, action.choices = field.description, tuple(field.choices) or None
        action.choices = {"task": TASK_NAMES, "policies": _EVALUATED}.get(action.dest, action.choices)
        if str(action.metavar).endswith("RUN"):
            vars(action)["complete"] = dict.fromkeys(SHELLS, _RUNS) | {"fish": f"({_RUNS})"}
    return parser
