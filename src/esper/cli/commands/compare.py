"""`compare RUN RUN…`: prints runs, or groups of runs, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from esper.cli.commands.show import load_summary
from esper.cli.options import EXIT_OK, Parser, add_run_argument, print_warnings
from esper.cli.streams import print_json, print_text
from esper.common.configuration.config import ConfigError
from esper.common.formatting import NOT_MEASURED, format_config_value, strip_control, suggest_nearest
from esper.common.intervals import CONFIDENCE_LEVEL
from esper.common.plots.chart import Quantity, score_quantity
from esper.common.printed_table import PrintedTable
from esper.common.score_scale import common_scale
from esper.recordings.events.codec import encode_json
from esper.recordings.events.sentences import format_lanes
from esper.recordings.files.notes import read_notes
from esper.recordings.files.segments import ReadError
from esper.recordings.history.group_summary import ComparedRun, mean_result, round_curve, summarise_group
from esper.recordings.history.measures import LAST_RETURN, LAST_SCORE, MEASURES, Measure
from esper.recordings.history.run_groups import SEED_KEY, RunGroup, differing_keys, group_runs
from esper.recordings.history.summary import RunSummary, flat_config

_AFTER_RUNS = "give --group-by without a key after the runs"
"""Advice for --group-by before the first RUN, which argparse takes as its value."""
_MAX_NAME_COLS = 40
"""Maximum length of the name of a group, or of a display name, in the table."""
_MAX_LISTED = 4
"""Maximum number of different values that a cell lists."""


_TEXT_ROWS: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    ("state", lambda run: run.state),
    ("policy", lambda run: run.policy),
    ("task", lambda run: run.task),
    ("random seed", lambda run: str(run.seed)),
    ("envs", lambda run: format_lanes(run.lanes)),
    ("rounds finished", lambda run: f"{len(run.finished)}" + ("" if run.search else f" of {run.rounds}")),
)
_LISTED_ABOVE = "finished_rounds"
"""Measure that is part of a row of text."""
_CURVES = (("{score}", "median", LAST_SCORE), ("return", "mean", LAST_RETURN))
"""Quantity of each plot, its statistic, and the measure of a round."""


def run(arguments: Sequence[str]) -> int:
    """Print runs or groups of runs side by side."""
    parser = Parser(
        prog="esper-sanctum compare",
        description="Compare runs: results, differing settings, and curves on common axes",
    )
    add_run_argument(parser, "RUN", several=True)
    parser.add_argument(
        "--group-by",
        nargs="?",
        const="",
        metavar="KEY,KEY",
        help="group the runs by configuration keys, with intervals over the runs of each group; without KEY, runs that "
        "differ only in the random seed are one group",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with the output of show --json per run, or of groups"
    )
    options = parser.parse_args(arguments)
    if len(options.runs) < 2:
        hint = _AFTER_RUNS if options.group_by else "use `esper-sanctum show RUN` for one"
        raise ConfigError(f"compare needs at least two runs; {hint}")
    runs = [_load_run(text, options.telemetry_dir) for text in options.runs]
    is_grouped = options.group_by is not None
    if is_grouped:
        groups = group_runs(runs, _parse_keys(options.group_by, runs))
    else:
        groups = [RunGroup(run.title, {}, (run,)) for run in runs]
    if options.json:
        output = [summarise_group(group) for group in groups] if is_grouped else [run.summary for run in runs]
        print_json(encode_json(output))
        return EXIT_OK
    _print_comparison(groups, is_grouped=is_grouped)
    return EXIT_OK


def _load_run(text: str, telemetry_dir: Path) -> ComparedRun:
    """Read a run and the notes on it. Raises as `load_summary` does."""
    summary = load_summary(text, telemetry_dir)
    title = summary.run
    if Path(summary.path).is_dir():
        try:
            title = read_notes(Path(summary.path)).name or title
        except ReadError as error:
            print_warnings([str(error)])
    return ComparedRun(summary, title, flat_config(summary.config))


def _parse_keys(text: str, runs: Sequence[ComparedRun]) -> list[str] | None:
    """Return the configuration keys in the value of --group-by; None without any.

    A key may be given without its table if no other key ends like it.

    Raises:
        ConfigError: A key is in the configuration of no run.
    """
    known = dict.fromkeys(chain.from_iterable(run.config for run in runs))
    keys: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        matches = [word] if word in known else [key for key in known if key.rpartition(".")[2] == word]
        if len(matches) != 1:
            hint = f"use {' or '.join(matches)}" if matches else suggest_nearest(word, known)
            if not hint:  # no key is near, so that it may be a run
                hint = f"valid: {', '.join(differing_keys(runs) or known)}; or {_AFTER_RUNS}"
            raise ConfigError(f"--group-by: {word!r} is not a configuration key of these runs; {hint}")
        keys += matches
    return keys or None


def _print_comparison(groups: Sequence[RunGroup[ComparedRun]], *, is_grouped: bool) -> None:
    """Print the table and the plots, one column and one curve per group."""
    from esper.cli.overlay_plot import LabelledCurve, curve_mark, overlay_lines  # numpy, which --help does not need

    width = shutil.get_terminal_size().columns
    score_names = {run.summary.score_name for group in groups for run in group.runs}
    score = score_names.pop() if len(score_names) == 1 else "score"
    scale = common_scale(run.summary.score_scale for group in groups for run in group.runs)
    marks = "curve", *(curve_mark(index) for index in range(len(groups)))
    rows = [*_name_rows(groups, is_grouped=is_grouped), marks, *_table_rows(groups, score)]
    print_text("\n".join(PrintedTable.from_cells([""] * len(rows[0]), rows).lines(width)))
    if any(len(group.runs) > 1 for group in groups):
        print_text(f"\n[low, high]: t interval of level {CONFIDENCE_LEVEL:.0%} of a cell, over the runs of its group")
    of_groups = "; mean over the runs of each group" if is_grouped else ""
    for name, statistic, measure in _CURVES:
        quantity = score_quantity(name.format(score=score), scale) if measure.unit == "score" else Quantity(name)
        curves = [
            LabelledCurve(strip_control(group.label), curve.xs.tolist(), curve.mean)
            for group in groups
            for curve in [round_curve(group.runs, measure)]
        ]
        print_text(f"\n{quantity.label}, {statistic} over the envs, by round{of_groups}")
        print_text("\n".join(overlay_lines(quantity, curves, width)))


def _name_rows(groups: Sequence[RunGroup[ComparedRun]], *, is_grouped: bool) -> Iterator[tuple[str, ...]]:
    """Yield heading and cells of the rows that name the columns."""
    if is_grouped:
        yield "group", *(_shorten(group.label) for group in groups)
        yield "runs", *(str(len(group.runs)) for group in groups)
        return
    runs = [group.runs[0] for group in groups]
    yield "run", *(run.summary.run for run in runs)
    if any(run.title != run.summary.run for run in runs):
        yield "name", *(_shorten(run.title) if run.title != run.summary.run else "" for run in runs)


def _shorten(text: str) -> str:
    """Return a text with an ellipsis if it is longer than a column should be. The legend of the plots has all of it."""
    return text if len(text) <= _MAX_NAME_COLS else f"{text[: _MAX_NAME_COLS - 1]}…"


def _table_rows(groups: Sequence[RunGroup[ComparedRun]], score: str) -> Iterator[tuple[str, ...]]:
    """Yield heading and cells of the other rows."""
    for heading, read in _TEXT_ROWS:
        yield heading, *(_join([read(run.summary) for run in group.runs]) for group in groups)
    for name, measure in MEASURES.items():
        if name != _LISTED_ABOVE:
            headings = dict.fromkeys(measure.heading_in(run.summary, score) for group in groups for run in group.runs)
            yield "; ".join(headings), *(_number_cell(measure, group.runs) for group in groups)
    for key in differing_keys([run for group in groups for run in group.runs]):
        if key != SEED_KEY:  # which has a row already
            cells = (_join([format_config_value(run.config.get(key)) for run in group.runs]) for group in groups)
            yield f"config: {key}", *cells


def _join(values: Sequence[str]) -> str:
    """Return the different values of the runs of a group, in their order."""
    found = list(dict.fromkeys(values))
    if len(found) > _MAX_LISTED:
        return f"{', '.join(found[: _MAX_LISTED - 1])} … ({len(found)} values)"
    return ", ".join(found)


def _number_cell(measure: Measure, runs: Sequence[ComparedRun]) -> str:
    """Return the number of a run, or the mean over runs with its interval and the number of runs if some lack it."""
    result = mean_result(measure, runs)
    if result is None:
        return NOT_MEASURED
    scale = common_scale(run.summary.score_scale for run in runs)
    text = measure.text(result.mean, scale)
    if result.low is not None and result.low != result.high:
        text += f" [{measure.text(result.low, scale)}, {measure.text(result.high, scale)}]"
    return text if result.runs == len(runs) else f"{text} (n={result.runs})"
