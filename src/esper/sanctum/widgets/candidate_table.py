"""Table of the candidates of a growth, and details of the selected one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from textual.geometry import Size

from esper.common.formatting import NOT_MEASURED, pluralise, strip_control
from esper.recordings.candidates.candidates import BARE_HOST, describe_candidate
from esper.recordings.candidates.report import (
    MARK_COLS,
    NAME,
    OUTCOME,
    Standing,
    describe_reason,
    fit_label,
    format_return,
    format_test,
    format_with_unit,
    label_of,
    result_columns,
)
from esper.recordings.candidates.report import Column as ReportColumn
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.symbols import Cell, wrap_cells
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.sanctum.widgets.row_list import Column, PlacedColumn, RowList, append_cells, fit_columns

_CURSOR_COLS = 1
_GOOD_NAME_COLS = 28
"""Width of a candidate's name for which less important columns are left out."""
_MAX_COLS = 200
"""Maximum width of a column, more than any text needs."""
_TRAINS_GLYPH = "▶"
"""Marks a candidate that trains now, before the env that trains it."""
_OUTCOME_ROLES = {"chosen": "key", "pruned": "dim", "broke down": "warning", "failed": "warning"}
"""Role of an outcome, keyed by it; ordinary text for others."""
_DETAIL_ROWS, _SHORT_DETAIL_ROWS = 3, 2
"""Height of the detail, and in a low terminal."""


class CandidateTable(RowList[str]):
    """One row per candidate, the best first; `view.selected_candidate` is the cursor."""

    BINDINGS = bindings(KeyCategory.CANDIDATES)
    METRICS = ("candidates",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with the search, and with the cursor."""
        search = self.state.search
        return search and search.revision, self.view.selected_candidate, self.state.started is None

    @property
    def selected(self) -> str | None:
        """Name of the selected candidate."""
        return self.view.selected_candidate

    def select(self, key: str) -> None:
        """Select a candidate."""
        self.view.selected_candidate = key
        self.update_screen()

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        found, search = self.view.standings, self.state.search
        if search is None:
            return self.message("this run is not a growth: it has no candidates")
        if not found:
            return self.message("no trial has started yet")
        columns = self.fitted((size.width, search.revision), lambda: self._fit_columns(size.width, found))
        self.panel_title = f"candidates ─ by {search.info.objective} ↓"
        self.scroll_to_cursor([one.name for one in found], max(size.height - 1, 1))
        self.panel_subtitle = self.position_text
        rows = [self.draw_heading(self.line(" " * (_CURSOR_COLS + MARK_COLS + 1), "head"), columns).row(size.width)]
        envs = self._training_envs()
        selected = self.view.selected_standing
        for one in found[self._top : self._top + self.num_visible]:
            cells = [column.cell(one, width) for column, width in columns]
            if one.name in envs:
                cells = [
                    Cell(f"{_TRAINS_GLYPH} {envs[one.name]}", "key") if column.heading == OUTCOME else cell
                    for (column, _), cell in zip(columns, cells, strict=True)
                ]
            draw = partial(self._row, one, columns, cells, selected=one is selected)
            rows.append(self.cached_row(one.name, size.width, draw, columns, cells, one.label, one is selected))
        self.draw_scroll_arrows(rows, size.width)
        return rows

    def _fit_columns(self, width: int, found: Sequence[Standing]) -> tuple[PlacedColumn[Standing], ...]:
        """Return the columns that fit into a width."""
        longest = max(len(NAME), *(len(label_of(one.candidate)) for one in found))
        name = Column(NAME, NAME, len(NAME), longest, _name_cell, -1, is_elastic=True, good_cols=_GOOD_NAME_COLS)
        columns = [name, *map(_column_of, result_columns(found, self.state.score_name))]
        return fit_columns(columns, found, width - _CURSOR_COLS - MARK_COLS - 2, last_first=0)

    def _training_envs(self) -> dict[str, str]:
        """Return the envs that train a candidate now in words, keyed by candidate."""
        envs: dict[str, list[int]] = {}
        for env, training in self.state.search.training.items() if self.state.search else ():
            if training.outcome is None:
                envs.setdefault(training.candidate, []).append(env)
        return {name: f"env {of[0]:02d}" if len(of) == 1 else f"{len(of)} envs" for name, of in envs.items()}

    def _row(
        self, one: Standing, columns: Sequence[PlacedColumn[Standing]], cells: Sequence[Cell], *, selected: bool
    ) -> Line:
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append_fitted(one.label, MARK_COLS, "curve" if one.is_on_front else "dim").append(" ")
        if selected:
            cells = [cells[0]._replace(role="bright"), *cells[1:]]
        return append_cells(line, columns, cells)

    async def action_open(self) -> None:
        """Open the env that trains the selected candidate now, or trained it in this round."""
        selected, search = self.view.selected_standing, self.state.search
        if selected is None or search is None:
            return
        envs = [env for env, training in search.training.items() if training.candidate == selected.name]
        if not envs:
            self.notify("No env trains this candidate in this round.", timeout=3)
            return
        self.view.select(min(envs, key=lambda env: search.training[env].outcome is not None))
        await self.run_action("app.open_env")


def _column_of(column: ReportColumn) -> Column[Standing]:
    """Return a column of the printed report as one of the list."""
    heading = column.heading

    def cell(one: Standing, _: int) -> Cell:
        text = column.text_of(one)
        role = _OUTCOME_ROLES.get(one.outcome, "normal") if heading == OUTCOME else "normal"
        return Cell(
            text.replace("-", "−") if column.is_right else text, "absent" if text.strip() == NOT_MEASURED else role
        )

    return Column(heading, heading, len(heading), _MAX_COLS, cell, column.priority, is_right=column.is_right)


def _name_cell(one: Standing, width: int) -> Cell:
    return Cell(fit_label(one.candidate, width), "bright" if one.name == BARE_HOST else "normal")


class CandidateDetail(Panel):
    """The selected candidate: its whole name, origin, outcome, reason, seeds, and each training on a fresh host."""

    METRICS = ("candidates",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with the search, and with the cursor."""
        search = self.state.search
        return search and search.revision, self.view.selected_candidate

    def preferred_height(self) -> int:
        """Return the number of lines, which no candidate changes, so that the table does not move."""
        return _SHORT_DETAIL_ROWS if self.screen.has_class("-short") else _DETAIL_ROWS

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the lines that fit."""
        one = self.view.selected_standing
        if one is None:
            return []
        candidate = one.candidate
        lines = [self.line(f" {text}", "bright") for text in wrap_cells(describe_candidate(one.name), size.width - 1)]
        texts = [describe_reason(one)]
        if candidate.seeds:
            texts.append(f"network of the best score: {', '.join(map(strip_control, candidate.seeds))}")
        if candidate.fresh_scores:
            scores = ", ".join(candidate.scale.text(score) for score in candidate.fresh_scores)
            trainings = pluralise(len(candidate.fresh_scores), "fresh host")
            texts.append(f"{format_with_unit(candidate)}, return {format_return(candidate)} on {trainings}: {scores}")
        if (tested := format_test(candidate)) != NOT_MEASURED:
            texts[0] += f"; {candidate.scale.with_unit(tested)} on the test split"
        lines += [self.line(f" {row}") for text in texts for row in wrap_cells(text, size.width - 1)]
        return lines[: size.height]
