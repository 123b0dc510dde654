"""`config [options]`: prints the resolved configuration as TOML."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from esper.cli.options import EXIT_OK, Parser, add_run_options, given_options
from esper.cli.streams import print_text
from esper.common.configuration.files import resolve_config, to_toml
from esper.networks.tasks import load_task
from esper.networks.tasks.settings import override_settings, settings_of
from esper.training.engine.start_checks import resolve_policy


def run(arguments: Sequence[str]) -> int:
    """Print the configuration."""
    parser = Parser(
        prog="esper-sanctum config",
        description="Print the configuration of a run with these options as TOML, a file for --config",
    )
    add_run_options(parser)
    options = parser.parse_args(arguments)
    config = resolve_policy(resolve_config(options.config, given_options(options)))
    with contextlib.redirect_stdout(sys.stderr):  # which the user's code may print to
        task = load_task(config.task)
    override_settings(task, config.training)  # refuses a setting that the task does not have
    print_text(to_toml(config, settings_of(task)).removesuffix("\n"))
    return EXIT_OK
