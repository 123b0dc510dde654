"""`grow`: grows one network from a task, and writes it as ordinary files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from esper.cli.commands.harvest import format_comparison, format_harvest
from esper.cli.dashboard import DisplayOptions, add_screen_options
from esper.cli.options import EXIT_FAILED, EXIT_OK, Parser, add_run_options, given_options
from esper.cli.run_display import print_engine_error, run_headless, run_in_dashboard
from esper.config import ConfigError
from esper.config_files import resolve_config
from esper.engine.growth import DEFAULT_PATIENCE, GROWTH_CONFIG, Growth, check_growth
from esper.engine.start_checks import check_start, resolve_policy
from esper.harvest.structure import check_target
from esper.process import RankInfo


def run(arguments: Sequence[str]) -> int:
    """Grow a network, with or without the dashboard, and print its scores."""
    options = _parser().parse_args(arguments)
    display, target = DisplayOptions.from_options(options), options.to
    headless = options.no_tui or options.narrate is not None
    config = resolve_policy(resolve_config(options.config, given_options(options), base=GROWTH_CONFIG))
    check_growth(config, options.patience)
    if target is not None:
        check_target(target)
    rank_info = RankInfo.from_environment()
    if rank_info.world_size > 1:
        raise ConfigError("grow cannot be used under torchrun; give --devices several devices of this machine")
    workers = check_start(config, rank_info, is_new=True)

    from esper.engine.thread import EngineThread

    growth = Growth(patience=options.patience, target=lambda run: target or run / "grown", compares=options.compare)
    engine = EngineThread(config, None, workers=workers, interactive=not headless, growth=growth)
    if headless:
        run_headless(engine, sys.stdout, narrate=options.narrate)
    else:
        run_in_dashboard(engine, display, config.task)
    if code := print_engine_error(engine):
        return code
    return _print_result(growth)


def _print_result(growth: Growth) -> int:
    """Print the scores of the grown network, and return the exit code."""
    if growth.grown is None:
        print("esper-sanctum: the run ended before a network had a score, so none was grown", file=sys.stderr)
        return EXIT_FAILED
    if growth.directory is None:
        print(f"esper-sanctum: {growth.failure}", file=sys.stderr)
        return EXIT_FAILED
    print(format_harvest(growth.grown.structure, growth.directory, growth.problem))
    if growth.comparison:
        print(format_comparison(growth.comparison, growth.grown.structure.score_name))
    return EXIT_OK


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum grow",
        description="Grow one network: train several networks of a task for one round, in which the policy does not "
        "learn, and write the best by validation score as ordinary files. Its score on the test split is reported.",
    )
    add_run_options(parser, GROWTH_CONFIG)
    parser.add_argument(
        "--patience",
        type=int,
        default=DEFAULT_PATIENCE,
        metavar="STEPS",
        help=f"stop after so many steps without a better validation score (default: {DEFAULT_PATIENCE})",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also train the host alone, and the grown architecture from scratch, for as many epochs",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="directory to write, new or empty (default: grown/ in the run directory)"
    )
    add_screen_options(parser)
    return parser
