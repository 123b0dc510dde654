"""`evaluate --checkpoint PATH`: compares policies on held-out episodes."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import msgspec

from esper.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    RUN_HELP,
    Parser,
    add_accept_changed_task_option,
    add_telemetry_dir_option,
    open_checkpoint,
    print_warnings,
)
from esper.cli.progress import progress_bar
from esper.cli.streams import print_json, print_text
from esper.common.configuration.config import MAX_COUNT, ConfigError
from esper.common.formatting import pluralise
from esper.common.printed_table import PrintedTable
from esper.common.score_scale import ScoreScale
from esper.common.system.process import RankInfo
from esper.recordings.effects.paying import HEADING, PAYS
from esper.studies.evaluation.comparison import EvaluationReport, PairedDifference, PolicyResult
from esper.studies.evaluation.figure import check_figure, draw_text, write_figure
from esper.studies.evaluation.journal import EvaluationJournal
from esper.studies.evaluation.results import EVALUATION_POLICIES, NEED_PPO, PPO, TRAINED
from esper.training.lanes.device_names import early_lanes
from esper.training.policy.loading import POLICY_NAMES, check_policy_reference
from esper.training.policy.plan import EXAMPLE, PLAN, PREFIX, split_plan

JOURNALS = "evaluations"
"""Directory of the journals of evaluations, in the telemetry directory."""
MAX_COLUMNS, PLOT_ROWS = 100, 16
"""Maximum length of the printed lines, and height of the plot."""
MAX_NAME_COLS = 22
"""Columns of the longest policy, or pair of policies, that stands in the row of its figures."""
FEW_EPISODES = 16
"""Number of episodes below which the output says that its intervals are wide."""
DEFAULT_POLICIES = tuple(name for name in POLICY_NAMES if name != PLAN)


def run(arguments: Sequence[str]) -> int:
    """Evaluate the policies and print their results."""
    options = _parser().parse_args(arguments)
    _check(options)
    checkpoints = [open_checkpoint(name, options.telemetry_dir, options.task) for name in options.checkpoint]
    early_lanes(options.devices, RankInfo())

    from esper.studies.evaluation.comparison import build_report
    from esper.studies.evaluation.held_out import HeldOutEvaluation
    from esper.studies.evaluation.plantings import EpisodePlantings, describe_inexact, paying_of
    from esper.training.lanes.errors import FaultError

    settings = {
        name: getattr(options, name)
        for name in ("policies", "episodes", "seed", "devices", "accept_changed_task", "plantings")
    }
    try:
        with contextlib.redirect_stdout(sys.stderr):  # which the user's code may print to
            held_out = HeldOutEvaluation(
                checkpoints, **settings, journals=options.telemetry_dir / JOURNALS, task_reference=options.task
            )
            journal = held_out.journal
            print_warnings([_describe(journal, given=options.seed is not None)])
            plantings: dict[str, list[list[EpisodePlantings]]] = {}
            with contextlib.closing(held_out):
                with progress_bar(held_out.num_env_steps) as advance:
                    runs = held_out.run(advance)
                if options.plantings:
                    with progress_bar(held_out.num_planting_steps) as advance:
                        plantings = held_out.measure_plantings(advance)
    except FaultError as fault:
        print_warnings([f"{fault.traceback_text or ''}{fault}"])
        return EXIT_FAILED
    except KeyboardInterrupt:
        print_warnings(["interrupted; the same command continues"])
        raise
    print_warnings(describe_inexact(plantings))
    report = build_report(
        runs,
        plantings=paying_of(plantings),
        checkpoints=list(map(str, checkpoints)),
        task=held_out.config.task,
        score_name=held_out.score_name,
        score_scale=held_out.score_scale,
        steps=held_out.config.steps,
        seed=journal.seed,
    )
    if options.figure:
        write_figure(report, options.figure)
    if options.json:
        print_json(msgspec.json.encode(report))
    else:
        print_text(report_text(report, min(shutil.get_terminal_size().columns, MAX_COLUMNS)))
    return EXIT_OK


def _check(options: argparse.Namespace) -> None:
    """Check the options before torch is imported. Raises ConfigError."""
    for policy in options.policies:
        if policy != PLAN and policy not in EVALUATION_POLICIES:  # the plan is that of the checkpoint
            check_policy_reference(*split_plan(policy), MAX_COUNT, EVALUATION_POLICIES)
        if policy in NEED_PPO and PPO not in options.policies:
            raise ConfigError(f"--policies {policy} is made from the networks of PPO: add {PPO}")
    if options.figure:
        check_figure(options.figure)
    for name, minimum in {"episodes": 2, "seed": 0, "plantings": 0}.items():
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise ConfigError(f"--{name} {value} is not valid: it must be {minimum} or more")
    if options.plantings > options.episodes:
        raise ConfigError(
            f"--plantings {options.plantings} is more than the {options.episodes} episodes; raise --episodes, too"
        )
    if options.plantings and not set(options.policies) & set(TRAINED):
        raise ConfigError(f"--plantings is for trained policies; add {' or '.join(TRAINED)} to --policies")


def _describe(journal: EvaluationJournal, *, given: bool) -> str:
    """Return a sentence about the random seed of the episodes."""
    if journal.is_new:
        why = "" if given else ", the next one that no evaluation has used"
        return f"episodes of random seed {journal.seed}{why}; results go to {journal.path}"
    return f"episodes of random seed {journal.seed}; finished parts are read from {journal.path}"


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum evaluate",
        description="Compare policies on held-out episodes",
        epilog="Hosts and data orders of the episodes are used by no training run, and are the same for every policy. "
        "The PPO policy of the checkpoint does not learn here. It samples its ops with min-p: ops with less than a "
        "tenth of the probability of the most probable one are dropped. Every other head takes its most probable "
        "choice. Only evaluate, grow and harvest use the test split. Tables of results: docs/results.md.",
    )
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        required=True,
        metavar="RUN",
        help=f"checkpoint to evaluate, or a run, whose newest one is used (checkpoint path, {RUN_HELP}); several "
        "training seeds of one configuration give intervals over training seeds and episodes",
    )
    add_telemetry_dir_option(parser, f"; results are kept in its directory {JOURNALS}")
    parser.add_argument(
        "--task",
        metavar="TASK",
        help="another task, on which the policy was not trained; or the task of the checkpoint, needed if it is your "
        "own code (FILE.py or MODULE:NAME)",
    )
    add_accept_changed_task_option(parser)
    parser.add_argument(
        "--policies",
        nargs="+",
        default=DEFAULT_POLICIES,
        metavar="NAME",
        help=f"policies to evaluate, also {', '.join(EVALUATION_POLICIES)}, FILE.py, MODULE:NAME, or "
        f"'{PREFIX}{EXAMPLE}' (default: {' '.join(DEFAULT_POLICIES)})",
    )
    parser.add_argument("--episodes", type=int, default=64, metavar="N", help="episodes per policy (default: 64)")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="SEED",
        help="random seed of the episodes (default: the next one that no evaluation in the telemetry directory has "
        "used; an interrupted evaluation continues with its own)",
    )
    parser.add_argument(
        "--devices", nargs="+", default=["auto"], metavar="DEVICES", help="devices of the lanes (default: auto)"
    )
    parser.add_argument(
        "--plantings",
        type=int,
        default=0,
        metavar="N",
        help=f"in the first N episodes of {' and '.join(TRAINED)}, leave out each planting in turn, and print how many "
        "pay (default: 0)",
    )
    parser.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw the score against parameters as .svg, .pdf or .png"
    )
    parser.add_argument("--json", action="store_true", help="print JSON that includes the results of each episode")
    return parser


def report_text(report: EvaluationReport, columns: int) -> str:
    """Format a report as tables, a plot and a caption.

    Args:
        columns: Maximum length of the lines of text and plot. Tables have at most `MAX_COLUMNS`.
    """
    results, pairs = report.policies, report.differences
    scale, score = report.score_scale, f"test {report.score_name}"
    blocks = [
        _table(("policy", score, "parameters", "net return"), [(r.policy, *_cells(r, scale)) for r in results]),
        _table(
            ("policy", "net return on test", "worst", "broken", "CPU s", "interval over"),
            [(r.policy, *_more_cells(r)) for r in results],
        ),
    ]
    planted = [(result.policy, str(result.plantings)) for result in results if result.plantings]
    if planted:
        blocks.append(_table(("policy", HEADING), planted))
    if pairs:
        returns = [(_pair(d), d.net_return.signed, d.verdict) for d in pairs]
        score_difference = f"{score}, {scale.difference_unit}".rstrip(", ")
        on_test = [(_pair(d), d.test_return.signed, scale.signed_interval(d.test_score)) for d in pairs]
        blocks += [
            _table(("difference", "net return, paired", ""), returns),
            _table(("difference", "net return on test", score_difference), on_test),
        ]
    blocks += [draw_text(report, columns, PLOT_ROWS)]
    blocks += [wrap(paragraph, columns) for paragraph in _caption(report)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table. A name that is longer than `MAX_NAME_COLS` has its own lines, above its row."""
    cells = [("" if _is_long(name) else name, *others) for name, *others in rows]
    heading, *lines = PrintedTable.from_cells(headings, cells).lines()
    table = [heading]
    for (name, *_), line in zip(rows, lines, strict=True):
        table += [*(wrap(name, MAX_COLUMNS, break_on_hyphens=False) if _is_long(name) else ()), line]
    return table


def _is_long(name: str) -> bool:
    return len(name) > MAX_NAME_COLS


def _caption(report: EvaluationReport) -> list[str]:
    """Return the paragraphs that explain the numbers of a report."""
    seeds = len(report.checkpoints)
    trained = f"PPO of {seeds} training seeds. " if seeds > 1 else ""
    about = (
        f"{report.episodes} held-out episodes of {report.steps} steps on {report.task}, "
        f"random seed {report.seed}, the same for every policy. {trained}Mean and {report.level:.0%} t interval over "
        "what the table says. Parameters: relative to the bare host. Net return: final validation score − initial − "
        "rent of all steps − costs of all ops; on the test split, with the score there. Worst: mean net return of the "
        "worst 5 % of the episodes. Broken: episodes that broke down. CPU s: CPU time for all episodes, in seconds."
    )
    paragraphs = [about]
    if report.differences:
        paragraphs.append(
            "Better, worse: the net return differs beyond chance; undecided: these episodes do not tell. "
            f"{1 - report.level:.0%} is the error rate of all {pluralise(len(report.differences), 'comparison')} "
            "together (Holm). An interval holds for its own row, and may exclude 0 by chance."
        )
    few = f"{report.episodes} episodes are few: the intervals are too wide to compare policies. "
    few += "The default is --episodes 64."
    if any(result.plantings for result in report.policies):
        paragraphs.append(
            f"A planting pays if its episode loses more than {PAYS} of net return when the seed and all later "
            f"decisions about it are left out; {report.level:.0%} intervals over the first episodes, and over the "
            "training seeds if there are several."
        )
    return [*paragraphs, few] if report.episodes < FEW_EPISODES else paragraphs


def _cells(result: PolicyResult, scale: ScoreScale) -> tuple[str, ...]:
    score, parameters = result.test_score, result.parameter_ratio
    return (
        scale.interval(score),
        f"×{parameters.mean:.3g} [{parameters.low:.3g}, {parameters.high:.3g}]",
        result.net_return.signed,
    )


def _more_cells(result: PolicyResult) -> tuple[str, ...]:
    return (
        result.test_return.signed,
        f"{result.worst_return:+.3f}",
        f"{result.breakdowns:.1%}",
        f"{result.cpu_seconds:.0f}",
        result.over,
    )


def _pair(difference: PairedDifference) -> str:
    return f"{difference.policy} − {difference.against}"
