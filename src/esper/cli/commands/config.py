"""`config [options]`: prints the resolved configuration as TOML."""

from __future__ import annotations

from collections.abc import Sequence

from esper.cli.options import EXIT_OK, Parser, add_run_options, given_options
from esper.config_files import resolve_config, to_toml
from esper.engine.start_checks import resolve_policy
from esper.tasks import check_task_reference, with_task_settings


def run(arguments: Sequence[str]) -> int:
    """Print the configuration."""
    parser = Parser(
        prog="esper-sanctum config",
        description="Print the configuration of a run with these options as TOML, a file for --config",
    )
    add_run_options(parser)
    options = vars(parser.parse_args(arguments))
    config = resolve_policy(resolve_config(options["config"], given_options(options)))
    check_task_reference(config.task)
    print(to_toml(with_task_settings(config)), end="")
    return EXIT_OK
