"""`runs [DIR]`: lists the runs of a directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from esper.cli.options import EXIT_OK, Parser, print_warnings
from esper.config import Config, ConfigError
from esper.formatting import NOT_MEASURED, align_columns, format_age, format_bytes, format_number
from esper.history.run_index import SAVE_INTERVAL_S, RunIndex, index_cache_path
from esper.history.run_info import RunInfo
from esper.telemetry.codec import encode_json

_HEADINGS = ("run", "state", "task", "policy", "round", "best", "size", "written")
_RIGHT_ALIGNED = (4, 5, 6, 7)
"""Indices of right-aligned columns."""


def run(arguments: Sequence[str]) -> int:
    """Print the runs."""
    options = _parser().parse_args(arguments)
    if options.directory is not None and options.telemetry_dir is not None:
        raise ConfigError("the directory is given twice; remove DIR or --telemetry-dir")
    directory = options.directory or options.telemetry_dir or Path(Config().telemetry_dir)
    if not directory.is_dir() and directory != Path(Config().telemetry_dir):
        raise ConfigError(f"directory {directory} not found")
    index = RunIndex(directory, index_cache_path(directory))
    index.poll(SAVE_INTERVAL_S)
    while not index.is_complete:  # in slices, so that little is lost if the user interrupts it
        index.poll(SAVE_INTERVAL_S)
    infos = sorted(index.runs, key=lambda info: info.written, reverse=True)
    now = time.time()
    if options.json:
        print(encode_json(infos).decode())
    elif infos:
        print("\n".join(align_columns([_HEADINGS, *(_row(info, now) for info in infos)], _RIGHT_ALIGNED)))
        print_warnings(_problem(info) for info in infos if info.problem)
    else:
        print(f"no runs in {directory}; train one with `esper-sanctum` or replay one with `esper-sanctum demo`")
    return EXIT_OK


def _parser() -> Parser:
    default = Config().telemetry_dir
    parser = Parser(
        prog="esper-sanctum runs",
        description="List the runs in a directory, the most recently written first",
        epilog="A run is live while a process trains it, and crashed if its process exited without recording its end.",
    )
    parser.add_argument(
        "directory", nargs="?", type=Path, metavar="DIR", help=f"directory of the runs (default: {default})"
    )
    parser.add_argument("--telemetry-dir", type=Path, metavar="DIR", help="the same, as in the other commands")
    parser.add_argument("--json", action="store_true", help="print a JSON list of runs")
    return parser


def _row(info: RunInfo, now: float) -> tuple[str, ...]:
    return (
        info.run,
        info.state,
        info.task or NOT_MEASURED,
        info.policy or NOT_MEASURED,
        f"{info.round}/{info.rounds}" if info.rounds is not None else NOT_MEASURED,
        format_number(info.best_score, ".1%"),
        NOT_MEASURED if info.bytes is None else format_bytes(info.bytes),
        format_age(now - info.written),
    )


def _problem(info: RunInfo) -> str:
    return f"{info.run} is unreadable: {info.problem}" if info.state == "unreadable" else f"{info.run}: {info.problem}"
