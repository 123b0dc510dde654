"""`runs [DIR]`: shows the runs of a directory in the workspace, or prints them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from esper.cli.dashboard import DisplayOptions, add_display_options, show_dashboard
from esper.cli.options import EXIT_OK, Parser, print_warnings
from esper.cli.progress import progress_bar
from esper.cli.streams import print_json, print_text
from esper.common.configuration.config import Config, ConfigError
from esper.common.filters import FilterError
from esper.common.formatting import NOT_MEASURED, format_age, format_bytes, pluralise
from esper.common.printed_table import PrintedColumn, PrintedTable
from esper.recordings.events.codec import encode_json
from esper.recordings.files.runs import is_in_future
from esper.recordings.history.measures import listed_measures
from esper.recordings.history.run_cache import RunCache, default_run_cache
from esper.recordings.history.run_filter import ARCHIVED_TERM, DEFAULT_SORT_KEY, parse_run_filter, sort_keys, sort_runs
from esper.recordings.history.run_index import SAVE_INTERVAL_S, RunIndex
from esper.recordings.history.run_info import READING_STATE, UNREADABLE_STATE, RunInfo
from esper.recordings.history.run_status import LIVE_STATES

PROGRESS_INTERVAL_S = 0.2
"""Seconds between two updates of the progress bar."""


def run(arguments: Sequence[str]) -> int:
    """Open the workspace, or print the runs."""
    options = _parser().parse_args(arguments)
    display = DisplayOptions.from_options(options)
    if options.directory is not None and options.telemetry_dir is not None:
        raise ConfigError("the directory is given twice; remove DIR or --telemetry-dir")
    directory = options.directory or options.telemetry_dir or Path(Config().telemetry_dir)
    if not directory.is_dir() and directory != Path(Config().telemetry_dir):
        raise ConfigError(f"directory {directory} not found")
    is_list_wanted = options.no_tui or options.json or options.filter is not None or options.sort is not None
    if not is_list_wanted and sys.stdin.isatty() and sys.stdout.isatty():
        return show_dashboard(directory, display)
    sort_key = options.sort if options.sort is not None else DEFAULT_SORT_KEY
    print_runs(directory, filter_text=options.filter or "", sort_key=sort_key, as_json=options.json)
    return EXIT_OK


def print_runs(directory: Path, *, filter_text: str, sort_key: str, as_json: bool) -> None:
    """Print the runs of a directory as a table or as JSON, and warnings to standard error.

    Args:
        directory: Telemetry directory.
        filter_text: Filter of `parse_run_filter`.
        sort_key: Key of `sort_runs`.
        as_json: Print a JSON list.

    Raises:
        ConfigError: The filter or the key is invalid.
        OSError: The directory cannot be read.
    """
    index = RunIndex(directory, RunCache(default_run_cache()))
    _read_all(index)
    infos = _select(index.runs, filter_text, sort_key)
    if as_json:
        print_json(encode_json(infos))
    elif infos:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print_text("\n".join(_table(infos, sort_key).lines(width)))
    elif index.runs and filter_text.strip():
        print_text(f"no run in {directory} matches the filter {filter_text!r}; list all with `esper-sanctum runs`")
    elif not index.runs:
        print_text(f"no runs in {directory}; train one with `esper-sanctum` or replay one with `esper-sanctum demo`")
    archived = sum(info.archived for info in index.runs)
    if archived and not as_json and not any(info.archived for info in infos):
        print_text(f"not listed: {pluralise(archived, 'archived run')} (`esper-sanctum runs --filter {ARCHIVED_TERM}`)")
    print_warnings([*index.notices, *(_problem(info) for info in infos if info.problem), *_future(infos)])


def _read_all(index: RunIndex) -> None:
    """Read all runs, with a progress bar if that takes long. An interruption loses only the last runs."""
    index.poll(SAVE_INTERVAL_S)
    if index.is_complete:
        return
    with progress_bar(len(index.runs)) as advance:
        num_read = 0
        while not index.is_complete:
            index.poll(PROGRESS_INTERVAL_S)
            before, num_read = num_read, sum(info.state != READING_STATE for info in index.runs)
            advance("reading runs", num_read - before)


def _select(infos: Sequence[RunInfo], filter_text: str, sort_key: str) -> list[RunInfo]:
    """Return the runs that match a filter, sorted. Raises ConfigError."""
    try:
        run_filter = parse_run_filter(filter_text, infos)
    except FilterError as error:
        raise ConfigError(f"--filter: {error}") from None
    try:
        return sort_runs([info for info in infos if run_filter.matches(info)], sort_key)
    except FilterError as error:
        raise ConfigError(f"--sort: {error}") from None


def _parser() -> Parser:
    default = Config().telemetry_dir
    parser = Parser(
        prog="esper-sanctum runs",
        description="Show the runs in a directory on one screen. If the output is no terminal, or with --no-tui, "
        "--filter, --sort or --json, print them instead, the most recently written first.",
        epilog="A run is live while a process trains it, and crashed if its process exited without recording its end. "
        "A live run is starting, running, silent, stuck, paused or held.",
    )
    parser.add_argument(
        "directory", nargs="?", type=Path, metavar="DIR", help=f"directory of the runs (default: {default})"
    )
    parser.add_argument("--telemetry-dir", type=Path, metavar="DIR", help="the same, as in the other commands")
    parser.add_argument(
        "--filter",
        metavar="TERMS",
        help="list only runs that match all terms, such as 'task=recall ppo.entropy-coef<0.05 tag:baseline state:live'",
    )
    parser.add_argument(
        "--sort",
        metavar="KEY",
        help=f"{', '.join(sort_keys())}, or a configuration key (default: {DEFAULT_SORT_KEY})",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of runs")
    parser.add_argument("--no-tui", action="store_true", help="print the runs on a terminal, too")
    add_display_options(parser)
    return parser


def _table(infos: Sequence[RunInfo], sort_key: str) -> PrintedTable[RunInfo]:
    """Return the table of runs. Its measures are those of all lists, and that of the sort order."""
    now = time.time()
    measures = [
        PrintedColumn[RunInfo](
            measure.short,
            lambda info, measure=measure: measure.text(measure.of(info), info.score_scale),
            is_right=True,
            priority=0 if key == sort_key else measure.column_priority or 0,
        )
        for key, measure in listed_measures().items()
        if measure.column_priority is not None or key == sort_key
    ]
    columns: list[PrintedColumn[RunInfo]] = [
        PrintedColumn("run", lambda info: info.run),
        PrintedColumn("name", lambda info: info.name or ""),
        PrintedColumn("state", lambda info: info.health or info.state),
        PrintedColumn("task", lambda info: info.task or NOT_MEASURED, priority=5),
        PrintedColumn("policy", lambda info: info.policy or NOT_MEASURED, priority=6),
        PrintedColumn("round", _rounds, is_right=True),
        *measures,
        PrintedColumn("size", _size, is_right=True, priority=13),
        PrintedColumn("written", lambda info: format_age(now - info.written), is_right=True, priority=4),
        PrintedColumn("study", _study, priority=7),
        PrintedColumn("tags", lambda info: " ".join(info.tags), priority=8),
    ]
    # Runs without names, studies or tags need no columns for them.
    return PrintedTable([column for column in columns if any(map(column.text_of, infos))], infos)


def _rounds(info: RunInfo) -> str:
    total = "" if info.rounds is None else f"/{info.rounds}"
    return f"{info.round}{total}" if info.round is not None else NOT_MEASURED


def _size(info: RunInfo) -> str:
    return NOT_MEASURED if info.bytes is None else format_bytes(info.bytes)


def _study(info: RunInfo) -> str:
    return f"{info.study} {info.trial}" if info.study and info.trial is not None else info.study or ""


def _future(infos: Sequence[RunInfo]) -> list[str]:
    """Return the warning that the order of the runs may be wrong; none if no ended run was written in the future."""
    now = time.time()
    ahead = [info.run for info in infos if is_in_future(info.written, now) and info.state not in LIVE_STATES]
    if not ahead or len(infos) == 1:
        return []
    return [f"the clock was set back: {', '.join(ahead)} may be older than runs that are listed below"]


def _problem(info: RunInfo) -> str:
    return f"{info.run}{' is unreadable' if info.state == UNREADABLE_STATE else ''}: {info.problem}"
