"""List of the runs of the workspace with one row each, and the input line of its filter."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.widgets import Input, Static

from esper.history.run_filter import FilterError, IncompleteFilterError, complete_filter
from esper.history.run_info import RunInfo
from esper.sanctum.view import ViewState
from esper.sanctum.widgets import run_columns
from esper.sanctum.widgets.env_table import FilterBox
from esper.sanctum.widgets.panel import Line, Row
from esper.sanctum.widgets.workspace_panel import RunKeysPanel
from esper.sanctum.workspace import Workspace

AGE_INTERVAL_S = 60.0
"""Seconds between two drawings of the ages of the runs."""
MAX_COMPLETIONS = 6
"""Maximum number of completions beside the filter."""


class RunList(RunKeysPanel):
    """Heading and rows of the listed runs; only rows that changed are drawn again.

    Args:
        view: State that the panels share.
        workspace: The runs.
    """

    METRICS = ("runs",)

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view, workspace)
        self._top = 0
        """Index of the first visible run."""
        self._num_visible = 0
        self._layout: tuple[Hashable, run_columns.RunLayout] | None = None
        """Layout of the columns, with everything that it depends on."""
        self._column_ranges: list[tuple[range, str]] = []
        """Columns of the terminal that each heading occupies, for clicks."""
        self._row_cache: dict[str, tuple[RunInfo, Hashable, Row]] = {}
        """Cached rows, each with its run and everything else that it depends on. Keyed by run."""

    def cache_key(self) -> Hashable:
        """Return the version of the workspace, the minute, and whether the list has the focus."""
        return self.workspace.version, int(time.time() / AGE_INTERVAL_S), self.has_focus

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        workspace, (width, height) = self.workspace, size
        runs = workspace.listed
        self._write_titles()
        if not runs:
            return [self.line(f" {self._empty_message()}", "dim")]
        layout = self._choose_layout(width - 1)
        room = max(height - 1, 1)
        names = [run.run for run in runs]
        highlighted = workspace.highlighted
        place = names.index(highlighted.run) if highlighted is not None else 0
        self._top = min(max(self._top, place - room + 1), place, max(len(runs) - room, 0))
        visible = runs[self._top : self._top + room]
        self._num_visible = len(visible)
        arrow = "↓" if workspace.is_descending else "↑"
        heading, self._column_ranges = run_columns.header_row(self.view.palette, layout, workspace.sort_key, arrow)
        rows = [heading.row(width), *(self._row(run, layout, width, is_at=run is highlighted) for run in visible)]
        self._draw_scroll_arrows(rows, width)
        return rows

    def _row(self, run: RunInfo, layout: run_columns.RunLayout, width: int, *, is_at: bool) -> Row:
        group = self.workspace.group_of(run.run)
        letter, role = (group.letter, group.role) if group is not None else ("", "")
        palette = self.view.palette
        age = run_columns.age_text(run, time.time())
        key = id(layout), width, palette.name, self.view.state_version, letter, role, is_at, age
        cached = self._row_cache.get(run.run)
        if cached is None or cached[0] is not run or cached[1] != key:
            line = run_columns.draw_row(palette, layout, run, letter=letter, letter_role=role, highlighted=is_at)
            cached = self._row_cache[run.run] = run, key, line.row(width)
        return cached[2]

    def _choose_layout(self, width: int) -> run_columns.RunLayout:
        """Return the layout of the columns; the same object while all that it depends on is the same."""
        workspace = self.workspace
        key = width, workspace.sort_key, [id(run) for run in workspace.listed]
        if self._layout is None or self._layout[0] != key:
            self._layout = key, run_columns.choose_layout(width, workspace.listed, workspace.sort_key)
        return self._layout[1]

    def _draw_scroll_arrows(self, rows: list[Row], width: int) -> None:
        if self._top > 0:
            rows[1] = self._with_arrow(rows[1], "↑", width)
        if self._top + self._num_visible < len(self.workspace.listed):
            rows[-1] = self._with_arrow(rows[-1], "↓", width)

    def _with_arrow(self, row: Row, arrow: str, width: int) -> Row:
        return [*Segment.adjust_line_length(row, width - 1), *self.line(arrow, "dim").row(1)]

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
        arrow = "↓" if workspace.is_descending else "↑"
        self.panel_title = f"{focus}runs ─ by {workspace.sort_key} {arrow}"
        count, total = len(workspace.listed), len(workspace.runs)
        self.panel_subtitle = f"{count} of {total}" if count != total else f"{total}"

    @property
    def num_rows(self) -> int:
        """Number of listed runs."""
        return len(self.workspace.listed)

    @property
    def rows_per_page(self) -> int:
        """Number of visible runs."""
        return self._num_visible

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        self.workspace.move(rows)
        self.update_screen()

    def on_click(self, event: Click) -> None:
        """Sort by the clicked heading, or highlight the clicked row; open its run on a double click."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            for columns, key in self._column_ranges:
                if offset.x in columns:
                    is_same = key == self.workspace.sort_key
                    self.workspace.reverse() if is_same else self.workspace.sort_by(key)
        elif offset.y <= self._num_visible:
            self.workspace.highlight(self.workspace.listed[self._top + offset.y - 1].run)
            if event.chain == 2:
                self.action_open()
        self.update_screen()


class RunFilterBox(FilterBox):
    """Input line of the filter of the runs. Tab completes the last term.

    Args:
        workspace: The runs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "complete", priority=True)]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace

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
        hint = "  ".join(completions)
        try:
            workspace.filter_by(text)
        except FilterError as error:
            workspace.filter_by(self.previous_text)
            is_incomplete = isinstance(error, IncompleteFilterError)
            message = f"Tab: {hint}" if hint and is_incomplete else str(error)
            self.set_message(message, accepted=False, invalid=not is_incomplete)
        else:
            count = f"{len(workspace.listed)} of {len(workspace.runs)}"
            self.set_message(f"{count}   Tab: {hint}" if hint else count)

    def show_count(self) -> None:
        """Show the number of matches of the applied filter."""
        workspace = self._workspace
        self.set_message(f"{len(workspace.listed)} of {len(workspace.runs)}")


def complete_term(term: str, completions: list[str]) -> str | None:
    """Return a term completed as far as all completions agree, or else by the first one; None without a completion."""
    if not completions:
        return None
    common = completions[0]
    for completion in completions[1:]:
        while not completion.startswith(common):
            common = common[:-1]
    return common if len(common) > len(term) else completions[0]
