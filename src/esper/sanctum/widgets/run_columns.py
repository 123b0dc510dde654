"""Columns of the list of runs: their cells, and the choice of those that fit into a width."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from esper.formatting import format_age, format_config_value, strip_control
from esper.history.run_info import RunInfo
from esper.recording.notes import BASELINE_TAG
from esper.sanctum.symbols import RUN_STATES, Cell, compact_cell, percent_cell
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.env_columns import PIN_GLYPH
from esper.sanctum.widgets.panel import Line
from esper.text_plot import finite_range, sample_to_width, sparkline

_MARK_COLS = 5
"""Columns before the title: mark, baseline and state, with their gaps."""
_MIN_TITLE_COLS, _MAX_TITLE_COLS = 16, 40
_GOOD_TITLE_COLS, _COLUMNS_BEFORE_TITLE = 26, 4
"""Width that the title gets before further columns than the first ones."""
_MIN_SPARK_COLS, _MAX_SPARK_COLS = 8, 20
_MAX_SORT_COLS = 14
"""Maximum width of the column of a sort key that has no other column."""


@dataclass(frozen=True)
class Column:
    """A column after the title."""

    key: str
    """Sort key, which is also its heading if there is no other."""
    heading: str
    max_cols: int
    cell: Callable[[RunInfo], Cell]
    is_text: bool = field(default=True, kw_only=True)
    """True to align to the left, and to shorten texts that do not fit."""


class PlacedColumn(NamedTuple):
    """A column with the width that it has in a layout."""

    column: Column
    width: int


class RunLayout(NamedTuple):
    """Columns that fit into a width."""

    title_cols: int
    columns: tuple[PlacedColumn, ...]
    spark_ranges: Mapping[str | None, tuple[float, float]]
    """Minimum and maximum of the sparklines, keyed by task."""


def _text(value: str | None) -> Cell:
    return Cell(strip_control(value), "dim") if value else Cell("")


def _tags(run: RunInfo) -> Cell:
    return _text(" ".join(tag for tag in run.tags if tag != BASELINE_TAG))


def age_text(run: RunInfo, now: float) -> str:
    """Return the time since the last write to a run, short."""
    return format_age(now - run.written).removesuffix(" ago").replace("just now", "now").removeprefix("in the ")


_SPARK = Column("smoothed", "by round", _MAX_SPARK_COLS, lambda _: Cell(""))
_COLUMNS = (
    Column("last", "last", 5, lambda run: percent_cell(run.last_score), is_text=False),
    _SPARK,
    Column("best", "best", 5, lambda run: percent_cell(run.best_score), is_text=False),
    Column("written", "age", 6, lambda run: Cell(age_text(run, time.time()), "dim"), is_text=False),
    Column("task", "task", 18, lambda run: _text(run.task)),
    Column("policy", "policy", 10, lambda run: _text(run.policy)),
    Column("study", "study", 16, lambda run: _text(run.study)),
    Column("tags", "tags", 20, _tags),
    Column("return", "return", 6, lambda run: compact_cell(run.last_return), is_text=False),
    Column("parameters", "×host", 5, lambda run: compact_cell(run.parameter_ratio), is_text=False),
    Column("anomalies", "anom", 4, lambda run: Cell(str(run.anomalies or ""), "warning"), is_text=False),
)
"""Columns in the order in which they get room."""
_ORDER = ("last", "best", "smoothed", "written", "task", "policy", "return", "parameters", "anomalies", "study", "tags")
"""Columns from left to right; that of another sort key comes first."""
_SORTED_ELSEWHERE = {"name", "state", "started", "age", *_ORDER}
"""Sort keys without a column of their own."""


def sort_value(run: RunInfo, key: str) -> Cell:
    """Return the value of a configuration key."""
    return Cell(strip_control(format_config_value(run.config[key]))) if key in run.config else Cell("–", "absent")


def choose_layout(width: int, runs: Sequence[RunInfo], sort_key: str) -> RunLayout:
    """Return the columns for runs: as many as fit, first those whose values differ.

    Args:
        width: Width of a row.
        runs: All runs of the list.
        sort_key: Key by which they are sorted; a configuration key gets a column.
    """
    columns = list(_COLUMNS)
    if sort_key not in _SORTED_ELSEWHERE:
        heading = sort_key.rpartition(".")[2]
        columns.insert(0, Column(sort_key, heading, _MAX_SORT_COLS, lambda run: sort_value(run, sort_key)))
    texts = {column.key: {column.cell(run).text for run in runs} for column in columns}
    # A text that all runs share, such as the only task, is the first to be left out.
    columns.sort(key=lambda column: column.is_text and column is not _SPARK and len(texts[column.key]) == 1)
    longest = max((len(run.title) for run in runs), default=0)
    title_cols, room = _MIN_TITLE_COLS, width - _MARK_COLS - _MIN_TITLE_COLS
    chosen: dict[str, PlacedColumn] = {}
    for place, column in enumerate(columns):
        if place == _COLUMNS_BEFORE_TITLE:  # the others only get room that a title of a good width leaves
            wider = max(min(longest, _GOOD_TITLE_COLS, title_cols + room) - title_cols, 0)
            title_cols, room = title_cols + wider, room - wider
        found = max(map(len, texts[column.key]), default=0)
        wanted = _MIN_SPARK_COLS if column is _SPARK else min(max(found, len(column.heading) + 1), column.max_cols)
        is_blank = column is not _SPARK and not any(text.strip(" –") for text in texts[column.key])
        if not is_blank and wanted + 1 <= room:
            chosen[column.key] = PlacedColumn(column, wanted)
            room -= wanted + 1
    wider = min(max(longest - title_cols, 0), _MAX_TITLE_COLS - title_cols, room)
    title_cols, room = title_cols + wider, room - wider
    if _SPARK.key in chosen:
        longest_run = max((len(run.scores) for run in runs), default=0)
        spark_cols = min(_MIN_SPARK_COLS + room, max(longest_run, _MIN_SPARK_COLS), _MAX_SPARK_COLS)
        chosen[_SPARK.key] = PlacedColumn(_SPARK, spark_cols)
    order = [sort_key, *_ORDER] if sort_key not in _SORTED_ELSEWHERE else list(_ORDER)
    placed = tuple(chosen[key] for key in order if key in chosen)
    return RunLayout(title_cols, placed, _spark_ranges(runs))


def _spark_ranges(runs: Sequence[RunInfo]) -> dict[str | None, tuple[float, float]]:
    scores: dict[str | None, list[float]] = {}
    for run in runs:
        scores.setdefault(run.task, []).extend(run.scores)
    ranges = {task: finite_range(values) for task, values in scores.items()}
    return {task: found for task, found in ranges.items() if found is not None}


def header_row(palette: Palette, layout: RunLayout, sort_key: str, arrow: str) -> tuple[Line, list[tuple[range, str]]]:
    """Return the line of headings, and the columns of the terminal that each occupies."""
    line = Line(palette).pad_to(_MARK_COLS)
    ranges = [(range(line.width, line.width + layout.title_cols), "name")]
    title = f"run {arrow}" if sort_key == "name" else "run"
    line.append_fitted(title, layout.title_cols, "bright" if sort_key == "name" else "head")
    for column, width in layout.columns:
        line.append(" ")
        is_sorted = column.key == sort_key or (column.key, sort_key) == ("written", "age")
        text = f"{column.heading}{arrow}" if is_sorted else column.heading
        ranges.append((range(line.width, line.width + width), column.key))
        padded = text if column.is_text else text.rjust(width)
        line.append_fitted(padded, width, "bright" if is_sorted else "head")
    return line, ranges


def draw_row(
    palette: Palette, layout: RunLayout, run: RunInfo, *, letter: str, letter_role: str, highlighted: bool
) -> Line:
    """Return the row of a run.

    Args:
        palette: Styles of the theme.
        layout: The columns.
        run: The run.
        letter: Letter of its mark; empty if it is not selected.
        letter_role: Style role of its mark and of its sparkline; empty if it is not selected.
        highlighted: Draw the row under the cursor.
    """
    line = Line(palette, selected=highlighted)
    line.append(letter or " ", letter_role or "normal")
    line.append(PIN_GLYPH if BASELINE_TAG in run.tags else " ", "key").append(" ")
    symbol, role = RUN_STATES.get(run.state, RUN_STATES["unreadable"])
    line.append(symbol.glyph, role).append(" ")
    title_role = "dim" if run.archived else "bright" if highlighted or letter else "normal"
    # Names of directories begin with the task, and differ in the time at their end.
    line.append_fitted(strip_control(run.title), layout.title_cols, title_role, keep_end=not run.name)
    for column, width in layout.columns:
        line.append(" ")
        if column is _SPARK:
            low, high = layout.spark_ranges.get(run.task, (0.0, 1.0))
            line.append(_sparkline(run, width, low, high).ljust(width), letter_role or "spark")
            continue
        text, role = column.cell(run)
        if column.is_text:
            line.append_fitted(text, width, role)
        else:
            line.append_cell(Cell(text.strip().rjust(width) if column.key != "last" else text.rjust(width), role))
    return line


def _sparkline(run: RunInfo, width: int, low: float, high: float) -> str:
    """Return the median score by round, as long as the run is: a run with few rounds leaves room at the right."""
    if not run.scores:
        return ""
    if len(run.scores) <= width:
        return sparkline(run.scores, low, high)
    return sparkline(sample_to_width(run.scores, len(run.scores), width), low, high)
