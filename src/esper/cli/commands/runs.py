"""`runs [DIR]`: lists the runs of a directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from esper.cli.options import EXIT_OK, Parser, print_warnings
from esper.config import Config, ConfigError
from esper.formatting import NOT_MEASURED, align_columns, format_age, format_bytes, format_number
from esper.history.run_info import RunInfo, read_run_info
from esper.recording.runs import last_write_time, list_runs

_HEADINGS = ("run", "state", "task", "policy", "round", "best", "size", "written")
_RIGHT = (4, 5, 6, 7)


def run(arguments: Sequence[str]) -> int:
    """Print them."""
    chosen = _parser().parse_args(arguments)
    directory = Path(chosen.directory)
    if not directory.is_dir() and directory != Path(Config().telemetry_dir):
        raise ConfigError(f"there is no directory {directory}")
    now = time.time()
    found = [read_run_info(path, last_write_time(path) or 0.0, now) for path in list_runs(directory)]
    if chosen.json:
        print(msgspec.json.encode(found).decode())
    elif found:
        print("\n".join(align_columns([_HEADINGS, *(_row(each, now) for each in found)], _RIGHT)))
        print_warnings(f"{each.run} is unreadable: {each.problem}" for each in found if each.problem)
    else:
        print(f"{directory} holds no runs: esper-sanctum trains one, and esper-sanctum demo replays a recorded one")
    return EXIT_OK


def _parser() -> Parser:
    default = Config().telemetry_dir
    parser = Parser(
        prog="esper-sanctum runs",
        description="List the runs below a directory, the one written to last first. live: a process trains it; "
        "crashed: it has no end, and no process trains it.",
    )
    parser.add_argument(
        "directory", nargs="?", default=default, metavar="DIR", help=f"where runs are written (default: {default})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a list of runs")
    return parser


def _row(each: RunInfo, now: float) -> tuple[str, ...]:
    return (
        each.run,
        each.state,
        each.task or NOT_MEASURED,
        each.policy or NOT_MEASURED,
        f"{each.round}/{each.rounds}" if each.rounds is not None else NOT_MEASURED,
        format_number(each.best_accuracy, ".1%"),
        format_bytes(each.bytes),
        format_age(now - each.written),
    )
