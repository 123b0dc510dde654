"""`grow`: finds the best network of a task within a budget, and writes it as ordinary files."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from esper.cli.commands.harvest import format_harvest
from esper.cli.dashboard import DisplayOptions, add_screen_options
from esper.cli.growth_lines import format_growth
from esper.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    Parser,
    add_accept_changed_task_option,
    add_run_options,
    given_options,
    print_warnings,
)
from esper.cli.run_display import print_ending, run_headless, run_in_dashboard, run_silently
from esper.cli.start_point import decide_start
from esper.cli.streams import print_text
from esper.common.configuration.config import GROWTH_CONFIG
from esper.common.configuration.files import resolve_config
from esper.common.system.process import RankInfo, parent_start_time
from esper.recordings.candidates.candidates import Objective
from esper.studies.growth.growth import (
    DEFAULT_TRIALS,
    FRESH_HOSTS,
    MAX_FINALISTS,
    MIN_FINALISTS,
    Growth,
    GrowthRequest,
    check_growth,
    find_growth,
    make_request,
)
from esper.studies.harvest.structure import check_target, holds_networks_of
from esper.training.engine.start_checks import resolve_policy
from esper.training.engine.start_point import RunOptions, StartPoint

if TYPE_CHECKING:
    from esper.studies.growth.run import GrowthRun

FIXED_KEYS = ("rounds", "reward")
"""Keys of the configuration that a growth does not let the user set."""
NETWORK_DIR = "grown"
"""Directory of the network in the run directory, if the user gives no other."""


def run(arguments: Sequence[str]) -> int:
    """Grow networks, with or without the dashboard, and print the candidates and the answer."""
    options = _parser().parse_args(arguments)
    display, target = DisplayOptions.from_options(options), options.to
    headless = options.no_tui or options.narrate is not None
    request = make_request(
        trials=options.trials,
        minutes=options.minutes,
        objective=options.objective,
        max_parameters=options.max_parameters,
        patience=options.patience,
        compares=options.compare,
        until_flat=options.until_flat,
    )
    rank_info = RankInfo.from_environment()
    decide = partial(_resolve_start, options, request)
    start, workers = decide_start(decide, rank_info, is_resuming=True)

    from esper.training.engine.thread import EngineThread

    growth = Growth(request=request, target=_target(target), writes_all=options.all)
    run_options = RunOptions(
        interactive=not headless,
        accept_changed_task=options.accept_changed_task,
        load_kind=partial(_load_run, growth),
    )
    restart = partial(decide, restarted=True) if options.new else None
    engine = EngineThread(start, run_options, restart=restart, workers=workers)
    if rank_info.rank > 0:
        run_silently(engine)
        return print_ending(engine)
    if headless:
        checkpoint = start.checkpoint if isinstance(start, StartPoint) else None
        run = checkpoint and checkpoint.parent.parent
        notice = f"continues the growth {run}; --new begins another one" if run else None
        run_headless(engine, sys.stdout, narrate=options.narrate, notice=notice)
    else:
        run_in_dashboard(engine, display, start.config.task if isinstance(start, StartPoint) else "")
    if code := print_ending(engine):
        return code
    return _print_result(growth, narrated=options.narrate is not None)


def _resolve_start(options: argparse.Namespace, request: GrowthRequest, *, restarted: bool) -> StartPoint:
    """Return where the growth starts.

    Args:
        restarted: torchrun has restarted the ranks: `--new` then continues the growth that they have begun.

    Raises:
        ConfigError, ReadError, CheckpointError: The configuration cannot grow a network.
        HarvestError: The network cannot be written to the directory of `--to`.
        RecordingError: Another process trains the growth.
    """
    config = resolve_policy(resolve_config(options.config, given_options(options), base=GROWTH_CONFIG))
    check_growth(config)
    checkpoint = None
    if restarted or not options.new:
        checkpoint = find_growth(config, request, since=parent_start_time() if options.new else 0.0)
    target: Path | None = options.to
    if target is not None and not (checkpoint and holds_networks_of(target, checkpoint.parent.parent.name)):
        check_target(target)
    return StartPoint.at_checkpoint(config, checkpoint) if checkpoint else StartPoint(config)


def _load_run(growth: Growth) -> GrowthRun:
    from esper.studies.growth.run import GrowthRun  # imports torch

    return GrowthRun(growth)


def _target(directory: Path | None) -> Callable[[Path], Path]:
    """Return the function from the run directory to that of the network, which removes earlier networks of the run."""

    def place(run: Path) -> Path:
        target = run / NETWORK_DIR if directory is None else directory
        if holds_networks_of(target, run.name):  # of this growth, before it was stopped or had a larger budget
            shutil.rmtree(target, ignore_errors=True)
        return target

    return place


def _print_result(growth: Growth, *, narrated: bool) -> int:
    """Print the directories of the networks, the candidates and the answer, and return the exit code.

    Args:
        narrated: Leave out the table and the chart, which are neither sentences nor ASCII.
    """
    search = growth.search
    if search is None or search.answer is None or growth.grown is None:
        answer = search.answer if search and search.answer else "stopped before a training began"
        print_warnings([answer])
        return EXIT_FAILED if growth.is_complete else EXIT_OK
    for name, directory in growth.directories.items():
        print_text(format_harvest(growth.networks[name].structure, directory, growth.problems.get(name)))
    if narrated:
        print_text(search.answer)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print_text(format_growth(search, growth.grown.structure.score_name, width=width))
    if growth.failure is not None:
        print_warnings([growth.failure])
        return EXIT_FAILED
    return EXIT_OK


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum grow",
        description="Find the best network of a task within a budget. A search tries your network as it is, policies, "
        "plans that were good elsewhere, and plans of its own. Your network and the best "
        f"{MIN_FINALISTS} to {MAX_FINALISTS} candidates are then trained on {FRESH_HOSTS} fresh hosts each, and the "
        "best of these is the answer. It is tested, and written as ordinary files. The same command continues an "
        "interrupted growth, or one with a smaller budget.",
    )
    add_run_options(parser, GROWTH_CONFIG)
    for action, field in list(parser.fields.items()):
        if field.key in FIXED_KEYS:
            action.help = argparse.SUPPRESS
            del parser.fields[action]
    _add_aim_options(parser)
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="directory to write: new, empty, or of this growth (default: grown/ in the run directory)",
    )
    parser.add_argument(
        "--all", action="store_true", help="write every network of the front, each to its own directory in that of --to"
    )
    parser.add_argument("--new", action="store_true", help="begin a new growth instead of continuing the last one")
    add_accept_changed_task_option(parser)
    add_screen_options(parser)
    return parser


def _add_aim_options(parser: Parser) -> None:
    """Add the options of budget, objective and trainings."""
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help=f"number of trainings of the search, without those on fresh hosts (default: {DEFAULT_TRIALS})",
    )
    budget.add_argument(
        "--minutes", type=float, metavar="MINUTES", help="minutes of all trainings, in place of --trials"
    )
    parser.add_argument(
        "--objective",
        choices=get_args(Objective),
        default="return",
        help="quantity to maximise: return, the score gain minus the rent of grown parameters (--reward-weights.rent); "
        "or score (default: return)",
    )
    parser.add_argument(
        "--max-parameters",
        default="",
        metavar="NUMBER",
        help="limit of the parameters of a network: a number, or a multiple of those of yours such as 1.5x",
    )
    parser.add_argument(
        "--patience",
        type=int,
        metavar="STEPS",
        help="steps without a better score after which a training ends (default: a third of the steps, 5 or more)",
    )
    parser.add_argument(
        "--until-flat",
        action="store_true",
        help="double --steps, up to 16 times, until longer trainings do not improve your network beyond chance",
    )
    parser.add_argument(
        "--compare", action="store_true", help="also train the architecture of the answer from scratch, with all seeds"
    )
