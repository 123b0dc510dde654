"""`config [options]`: the resolved configuration as TOML."""

from __future__ import annotations

from collections.abc import Sequence

from esper.cli.options import EXIT_OK, Parser, add_run_options, given_options
from esper.config_files import resolve_config, to_toml
from esper.tasks import with_task_settings


def run(arguments: Sequence[str]) -> int:
    """Print it."""
    parser = Parser(
        prog="esper-sanctum config",
        description="Print the configuration that a run with these options would have, as TOML. Save it in a file and "
        "pass it with --config.",
    )
    add_run_options(parser)
    chosen = vars(parser.parse_args(arguments))
    config = resolve_config(chosen["config"], given_options(chosen))
    print(to_toml(with_task_settings(config)), end="")
    return EXIT_OK
