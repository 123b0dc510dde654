"""`evaluate --checkpoint PATH`: policies compared on held-out episodes."""

from __future__ import annotations

import contextlib
import sys
import typing
from collections.abc import Callable, Iterator, Sequence

from esper.checkpoint.catalog import find_checkpoint
from esper.cli.options import EXIT_FAILED, EXIT_OK, Parser, add_telemetry_dir_option, print_warnings
from esper.config import ConfigError, PolicyName
from esper.evaluation.comparison import EvaluationReport, IntervalEstimate, PairedDifference, PolicyResult
from esper.formatting import suggest
from esper.recording.runs import resolve_run


def run(arguments: Sequence[str]) -> int:
    """Have the policies play, and print what they came to."""
    chosen = _parser().parse_args(arguments)
    names = typing.get_args(PolicyName)
    for policy in chosen.policies:
        if policy not in names:
            raise ConfigError(f"--policies {policy!r} is not a policy: {suggest(policy, names)}")
    for option, value, least in (("episodes", chosen.episodes, 2), ("seed", chosen.seed, 0)):
        if value < least:
            raise ConfigError(f"--{option} {value} is not valid: it must be {least} or more")
    checkpoint = find_checkpoint(resolve_run(chosen.checkpoint, chosen.telemetry_dir))

    from esper.evaluation.comparison import build_report, to_json
    from esper.evaluation.episodes import HeldOutEvaluation
    from esper.lanes.errors import FaultError

    options = {name: getattr(chosen, name) for name in ("policies", "episodes", "seed", "devices")}
    held_out = HeldOutEvaluation(checkpoint, **options)
    steps = held_out.config.steps
    try:
        with contextlib.closing(held_out), _progress_bar(len(set(chosen.policies)) * steps) as advance:
            results = held_out.run(advance)
    except FaultError as fault:
        print_warnings([f"{fault.traceback_text or ''}{fault}"])
        return EXIT_FAILED
    task = held_out.config.task
    found = build_report(results, checkpoint=str(checkpoint), task=task, steps=steps, seed=chosen.seed)
    if chosen.json:
        print(to_json(found))
    elif sys.stdout.isatty():
        print_table(found)
    else:
        print(to_text(found))
    return EXIT_OK


def _parser() -> Parser:
    names = typing.get_args(PolicyName)
    parser = Parser(
        prog="esper-sanctum evaluate",
        description="Compare policies on held-out episodes: hosts and data orders that no run has trained on, the same "
        "for every policy. A PPO policy acts from the checkpoint without learning, and draws its actions from its "
        "probabilities as in training. This is the only command that touches the test split.",
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="RUN",
        help="a checkpoint, or a run's newest: a path, a run below the telemetry directory, or last",
    )
    add_telemetry_dir_option(parser)
    parser.add_argument(
        "--policies",
        nargs="+",
        default=names,
        metavar="NAME",
        help=f"who plays (default: all: {' '.join(names)})",
    )
    parser.add_argument("--episodes", type=int, default=64, metavar="N", help="episodes of each (default: 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="of the episodes (default: 0)")
    parser.add_argument("--devices", nargs="+", default=["auto"], metavar="DEVICES", help="lanes (default: auto)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the results of each episode")
    return parser


@contextlib.contextmanager
def _progress_bar(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on the terminal of stderr, and nothing where that is none. Yields what is to be called at each step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=steps)
        yield lambda policy: progress.update(task, advance=1, description=policy)


# For people

_HEADINGS = ("test accuracy", "parameters", "net return")


def caption(comparison: EvaluationReport) -> str:
    """What the numbers are."""
    return (
        f"{comparison.episodes} held-out episodes of {comparison.steps} steps on {comparison.task}, "
        f"seed {comparison.seed}, the same for every policy; mean and {comparison.level:.0%} bootstrap interval. "
        "Parameters: over those of the bare host. "
        "Net return: final validation accuracy − initial − rent of all steps − charge of all ops."
    )


def to_text(comparison: EvaluationReport) -> str:
    """Plain text, a line for each policy and each difference."""
    text = [caption(comparison)]
    for report in comparison.policies:
        cells = zip(_HEADINGS, _cells(report), strict=True)
        text.append(f"{report.policy:10} " + ", ".join(f"{heading} {cell}" for heading, cell in cells))
    text += [
        f"{_pair(difference):21} {_signed(difference.net_return)}, {_verdict(difference.net_return)}"
        for difference in comparison.differences
    ]
    return "\n".join(text)


def print_table(comparison: EvaluationReport) -> None:
    """The same on a terminal, with rich."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    policies = Table("policy", *_HEADINGS, box=SIMPLE_HEAD, pad_edge=False)
    for report in comparison.policies:
        policies.add_row(report.policy, *_cells(report))
    differences = Table("difference of net return", "paired", "", box=SIMPLE_HEAD, pad_edge=False)
    for difference in comparison.differences:
        differences.add_row(_pair(difference), _signed(difference.net_return), _verdict(difference.net_return))
    console = Console(highlight=False, markup=False)
    console.print(policies)
    if comparison.differences:
        console.print(differences)
    console.print(caption(comparison))


def _cells(report: PolicyResult) -> tuple[str, str, str]:
    accuracy, parameters = report.test_accuracy, report.parameter_ratio
    return (
        f"{accuracy.mean:.1%} [{accuracy.low:.1%}, {accuracy.high:.1%}]",
        f"×{parameters.mean:.2f} [{parameters.low:.2f}, {parameters.high:.2f}]",
        _signed(report.net_return),
    )


def _signed(value: IntervalEstimate) -> str:
    return f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def _pair(difference: PairedDifference) -> str:
    return f"{difference.policy} − {difference.against}"


def _verdict(value: IntervalEstimate) -> str:
    if not value.excludes_zero:
        return "undecided"
    return "better" if value.mean > 0 else "worse"
