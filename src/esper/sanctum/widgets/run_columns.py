"""Columns of the list of runs after the title."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from esper.common.formatting import NOT_MEASURED, format_age, format_config_value, strip_control
from esper.common.plots.axis import finite_range
from esper.common.plots.sparkline import sample_to_width, sparkline
from esper.common.score_scale import ScoreScale
from esper.recordings.files.notes import BASELINE_TAG
from esper.recordings.history.measures import Measure, listed_measures
from esper.recordings.history.run_info import RunInfo
from esper.sanctum.symbols import Cell, score_cell
from esper.sanctum.widgets.row_list import Column

_MAX_SORT_COLS = 14
"""Maximum width of the column of a sort key that has no other column."""
_LAST = 100
"""Added to the priority of columns that are the first to be left out."""


def _text(value: str | None) -> Cell:
    return Cell(strip_control(value), "dim") if value else Cell("")


def _tags(run: RunInfo) -> Cell:
    return _text(" ".join(tag for tag in run.tags if tag != BASELINE_TAG))


def age_text(run: RunInfo, now: float) -> str:
    """Return the time since the last write to a run, short."""
    return format_age(now - run.written).removesuffix(" ago").replace("just now", "now").removeprefix("in the ")


def measure_cell(measure: Measure, value: float | None, scale: ScoreScale) -> Cell:
    """Format a measure; a percentage without its sign, which is beside the number."""
    if value is None:
        return Cell(NOT_MEASURED, "absent")
    if measure.unit == "score":
        return score_cell(value, scale)
    is_problem = measure.unit == "count" and measure.is_less_better
    role = "dim" if measure.unit == "count" and value == 0 else "warning" if is_problem else "normal"
    return Cell(measure.text(value).replace("-", "−"), role)


def _measure_columns(sort_key: str) -> list[Column[RunInfo]]:
    """Return the columns of the measures. The sorted column gets room first."""
    return [
        Column(
            key,
            measure.short,
            len(measure.short) + 1,  # room for the arrow of the sort order
            _MAX_MEASURE_COLS,
            lambda run, _, measure=measure: measure_cell(measure, measure.of(run), run.score_scale),
            0 if key == sort_key else measure.column_priority or 0,
            is_right=True,
        )
        for key, measure in listed_measures().items()
        if key not in _SORTED_ELSEWHERE and (measure.column_priority is not None or key == sort_key)
    ]


_COLUMNS: tuple[Column[RunInfo], ...] = (
    Column("written", "age", 4, 6, lambda run, _: Cell(age_text(run, time.time()), "dim"), 4, is_right=True),
    Column("task", "task", 5, 18, lambda run, _: _text(run.task), 5),
    Column("policy", "policy", 7, 10, lambda run, _: _text(run.policy), 6),
    Column("study", "study", 6, 16, lambda run, _: _text(run.study), 7),
    Column("tags", "tags", 5, 20, lambda run, _: _tags(run), 8),
)
"""Columns that are no measures, from left to right."""
SPARK_PRIORITY = 2
"""Priority of the column with the scores by round."""
_SORTED_ELSEWHERE = {"name", "state", "started", "age", *(column.key for column in _COLUMNS)}
"""Sort keys without a column of their own."""
_MAX_MEASURE_COLS = 12
"""Maximum width of the column of a measure."""


def sort_value(run: RunInfo, key: str) -> Cell:
    """Return the value of a configuration key."""
    return Cell(strip_control(format_config_value(run.config[key]))) if key in run.config else Cell("–", "absent")


def result_columns(runs: Sequence[RunInfo], sort_key: str) -> list[Column[RunInfo]]:
    """Return the columns for runs in the widths that they need, without those whose cells are all blank.

    A text that all runs share, such as the only task, is the first to be left out.

    Args:
        runs: All runs of the list.
        sort_key: Key by which they are sorted; a configuration key gets a column.
    """
    columns = [*_measure_columns(sort_key), *_COLUMNS]
    if sort_key not in _SORTED_ELSEWHERE and sort_key not in listed_measures():
        heading = sort_key.rpartition(".")[2]
        cols = min(len(heading) + 1, _MAX_SORT_COLS)
        columns.insert(0, Column(sort_key, heading, cols, _MAX_SORT_COLS, lambda run, _: sort_value(run, sort_key), 0))
    shown: list[Column[RunInfo]] = []
    for column in columns:
        texts = {column.cell(run, column.max_cols).text for run in runs}
        if any(text.strip(f" {NOT_MEASURED}") for text in texts):
            cols = min(max(column.min_cols, *map(len, texts)), column.max_cols)
            is_shared = not column.is_right and len(texts) == 1
            priority = column.priority + _LAST * is_shared
            shown.append(replace(column, min_cols=cols, max_cols=cols, priority=priority))
    return shown


def spark_ranges(runs: Sequence[RunInfo]) -> dict[str | None, tuple[float, float]]:
    """Return minimum and maximum of the scores by round, keyed by task."""
    scores: dict[str | None, list[float]] = {}
    for run in runs:
        scores.setdefault(run.task, []).extend(run.scores)
    ranges = {task: finite_range(values) for task, values in scores.items()}
    return {task: found for task, found in ranges.items() if found is not None}


def draw_sparkline(run: RunInfo, width: int, low: float, high: float) -> str:
    """Return the median score by round, as long as the run is: a run with few rounds leaves room at the right."""
    if not run.scores:
        return ""
    if len(run.scores) <= width:
        return sparkline(run.scores, low, high)
    return sparkline(sample_to_width(run.scores, len(run.scores), width), low, high)
