"""`esper-sanctum config [options]`: the resolved configuration as TOML."""

from __future__ import annotations

from collections.abc import Sequence

from esper.commands.options import DONE, Parser, add_run_options
from esper.config import as_toml, resolve
from esper.tasks import check_task_name


def run(arguments: Sequence[str]) -> int:
    """Print it."""
    parser = Parser(
        prog="esper-sanctum config",
        description="Print the configuration of a run as TOML: what these options, the file and the defaults come to. "
        "Keep it in a file, and give that with --config.",
    )
    add_run_options(parser)
    chosen = vars(parser.parse_args(arguments))
    file = chosen.pop("config")
    config = resolve(file, {name: value for name, value in chosen.items() if value is not None})
    check_task_name(config.task)
    print(as_toml(config), end="")
    return DONE
