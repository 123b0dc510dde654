"""List of the runs of the workspace with one row each, and the input line of its filter."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widgets import Input, Static

from esper.common.formatting import strip_control
from esper.recordings.files.notes import BASELINE_TAG
from esper.recordings.history.run_filter import FilterError, IncompleteFilterError, complete_filter
from esper.recordings.history.run_info import RunInfo
from esper.sanctum.symbols import RUN_STATES, Cell, ellipsise
from esper.sanctum.view import ViewState
from esper.sanctum.widgets import run_columns
from esper.sanctum.widgets.env_columns import PIN_GLYPH
from esper.sanctum.widgets.env_table import FilterBox
from esper.sanctum.widgets.panel import Line, Row
from esper.sanctum.widgets.row_list import Column, PlacedColumn, RowList, append_cells, fit_columns
from esper.sanctum.widgets.workspace_panel import RunKeysPanel
from esper.sanctum.workspace import Workspace

AGE_INTERVAL_S = 60.0
"""Seconds between two drawings of the ages of the runs."""
MAX_COMPLETIONS = 6
"""Maximum number of completions beside the filter."""
_MARK_COLS = 5
"""Columns before the title: cursor, mark, baseline, and state with a gap."""
_MIN_TITLE_COLS, _GOOD_TITLE_COLS, _MAX_TITLE_COLS = 16, 26, 40
_MIN_SPARK_COLS, _MAX_SPARK_COLS = 8, 20
_LAST_FIRST_PRIORITY = 4
"""Highest priority of the columns that get room before the title has its good width."""
_BY_ROUND = "by round"
"""Key of the column with the scores by round."""


class RunList(RunKeysPanel, RowList[str], can_focus=True):
    """Heading and rows of the listed runs."""

    METRICS = ("runs",)

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view, workspace)
        self._spark_ranges: Mapping[str | None, tuple[float, float]] = {}
        """Minimum and maximum of the sparklines, keyed by task."""

    def cache_key(self) -> Hashable:
        """Return the version of the workspace, the minute, and whether the list has the focus."""
        return self.workspace.version, int(time.time() / AGE_INTERVAL_S), self.has_focus

    @property
    def selected(self) -> str | None:
        """Name of the highlighted run."""
        return self.workspace.highlighted.run if self.workspace.highlighted is not None else None

    def select(self, key: str) -> None:
        """Highlight a run."""
        self.workspace.highlight(key)
        self.update_screen()

    def sort_by(self, key: str) -> None:
        """Sort by a column, or reverse the order. The curves by round are sorted by their smoothed ends."""
        key = "smoothed" if key == _BY_ROUND else key
        self.workspace.reverse() if key == self.workspace.sort_key else self.workspace.sort_by(key)
        self.update_screen()

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        workspace, (width, height) = self.workspace, size
        runs = workspace.listed
        self._write_titles()
        if not runs:
            return [self.line(f" {self._empty_message()}", "dim")]
        depends_on = width, workspace.sort_key, tuple(map(id, runs))
        columns = self.fitted(depends_on, lambda: self._fit_columns(width - 1))
        self.scroll_to_cursor([run.run for run in runs], max(height - 1, 1))
        sort_key = "written" if workspace.sort_key == "age" else workspace.sort_key
        heading = self.draw_heading(self.line(" " * _MARK_COLS), columns, sort_key, self._arrow)
        visible = runs[self._top : self._top + self.num_visible]
        rows = [heading.row(width), *(self._row(run, columns, width) for run in visible)]
        self.draw_scroll_arrows(rows, width)
        return rows

    def _row(self, run: RunInfo, columns: tuple[PlacedColumn[RunInfo], ...], width: int) -> Row:
        group = self.workspace.group_of(run.run)
        letter, role = (group.letter, group.role) if group is not None else ("", "")
        inputs = run, columns, self._spark_ranges, letter, role, run.run == self.selected
        draw = partial(self.draw_row, run, columns, letter, role)
        return self.cached_row(run.run, width, draw, *inputs, run_columns.age_text(run, time.time()))

    def draw_row(self, run: RunInfo, columns: Sequence[PlacedColumn[RunInfo]], letter: str, letter_role: str) -> Line:
        """Draw the row of a run with the letter of its mark, empty if it is not selected."""
        is_selected = run.run == self.selected
        line = Line(self.view.palette, selected=is_selected).append("▸" if is_selected else " ", "key")
        line.append(letter or " ", letter_role or "normal")
        line.append(PIN_GLYPH if BASELINE_TAG in run.tags else " ", "key")
        symbol, role = RUN_STATES.get(run.state, RUN_STATES["unreadable"])
        line.append(symbol.glyph, role).append(" ")
        return append_cells(line, columns, (column.cell(run, width) for column, width in columns))

    def _fit_columns(self, width: int) -> tuple[PlacedColumn[RunInfo], ...]:
        """Return the columns that fit into a width."""
        runs, sort_key = self.workspace.listed, self.workspace.sort_key
        self._spark_ranges = run_columns.spark_ranges(runs)
        title_cols = min(max(_MIN_TITLE_COLS, *(len(self.workspace.title_of(run)) for run in runs)), _MAX_TITLE_COLS)
        spark_cols = min(max(_MIN_SPARK_COLS, *(len(run.scores) for run in runs)), _MAX_SPARK_COLS)
        title, spark = (
            Column(
                "name", "run", _MIN_TITLE_COLS, title_cols, self._title_cell, -1,
                is_elastic=True, good_cols=_GOOD_TITLE_COLS,
            ),
            Column(
                _BY_ROUND, "by round", _MIN_SPARK_COLS, spark_cols, self._spark_cell, run_columns.SPARK_PRIORITY,
                is_elastic=True,
            ),
        )  # fmt: skip
        columns = run_columns.result_columns(runs, sort_key)
        place = next((place for place, column in enumerate(columns) if column.key == "written"), 0)
        columns = [title, *columns[:place], spark, *columns[place:]]
        return fit_columns(columns, runs, width - _MARK_COLS, _LAST_FIRST_PRIORITY)

    def _title_cell(self, run: RunInfo, width: int) -> Cell:
        is_bright = run.run == self.selected or self.workspace.group_of(run.run) is not None
        # Names of directories begin with the task, and differ in the time at their end.
        title = strip_control(self.workspace.title_of(run, width))
        title = ellipsise(title, width, keep_end=title == run.run)
        return Cell(title, "dim" if run.archived else "bright" if is_bright else "normal")

    def _spark_cell(self, run: RunInfo, width: int) -> Cell:
        low, high = self._spark_ranges.get(run.task, (0.0, 1.0))
        group = self.workspace.group_of(run.run)
        return Cell(run_columns.draw_sparkline(run, width, low, high), group.role if group is not None else "spark")

    def _empty_message(self) -> str:
        workspace = self.workspace
        if workspace.runs:
            return (
                "no run matches the filter" if workspace.filter.text else "all runs are archived; /archived lists them"
            )
        return f"no run in {workspace.telemetry_dir}" if workspace.was_read else "reading the runs"

    def _write_titles(self) -> None:
        workspace = self.workspace
        focus = "▸ " if self.has_focus else ""
        self.panel_title = f"{focus}runs ─ by {workspace.sort_key} {self._arrow}"
        count, total = len(workspace.listed), len(workspace.runs)
        self.panel_subtitle = f"{count} of {total}" if count != total else f"{total}"

    @property
    def _arrow(self) -> str:
        return "↓" if self.workspace.is_descending else "↑"


class RunFilterBox(FilterBox):
    """Input line of the filter of the runs. Tab completes the last term."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "complete", priority=True)]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace
        self._hint = ""
        """Completions of the text that is typed."""

    def compose(self) -> ComposeResult:
        """Yield the slash, the input, the message and the completions."""
        yield Static("/")
        yield Input(compact=True, placeholder="task=recall best>80% tag:sweep", disabled=True)
        yield Static(id="message", markup=False)

    def action_complete(self) -> None:
        """Complete the last term as far as all completions agree; if it is complete, with the first one."""
        field = self.query_one(Input)
        before, _, term = field.value.rpartition(" ")
        completed = complete_term(term, complete_filter(field.value, self._workspace.runs))
        if completed is not None:
            field.value = f"{before} {completed}".lstrip()
            field.cursor_position = len(field.value)

    def preview(self, text: str) -> None:
        """Apply a filter while it is typed, and show the number of matches or the error, and the completions."""
        workspace = self._workspace
        completions = complete_filter(text, workspace.runs)[:MAX_COMPLETIONS]
        self._hint = hint = "  ".join(completions)
        try:
            workspace.filter_by(text)
        except FilterError as error:
            workspace.filter_by(self.previous_text)
            is_incomplete = isinstance(error, IncompleteFilterError)
            message = f"Tab: {hint}" if hint and is_incomplete else str(error)
            self.set_message(message, accepted=False, invalid=not is_incomplete)
        else:
            self.show_count()

    def show_count(self) -> None:
        """Show the number of matches, and the completions while the filter is typed."""
        count = f"{len(self._workspace.listed)} of {len(self._workspace.runs)}"
        self.set_message(f"{count}   Tab: {self._hint}" if self._hint and self.typing else count)


def complete_term(term: str, completions: list[str]) -> str | None:
    """Return a term completed as far as all completions agree, or else by the first one; None without a completion."""
    if not completions:
        return None
    common = completions[0]
    for completion in completions[1:]:
        while not completion.startswith(common):
            common = common[:-1]
    return common if len(common) > len(term) else completions[0]
