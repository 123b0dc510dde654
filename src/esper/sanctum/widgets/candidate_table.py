"""Table of the candidates of a growth, and details of the selected one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rich.segment import Segment
from textual.events import Click
from textual.geometry import Size

from esper.candidates import BARE_HOST, describe_candidate
from esper.candidates_report import (
    MARK_COLS,
    NAME,
    OUTCOME,
    Column,
    Standing,
    describe_reason,
    fit_columns,
    fit_label,
    format_percent,
    format_return,
    format_test,
)
from esper.formatting import NOT_MEASURED, strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.symbols import wrap_cells
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.sentences import pluralise

_CURSOR_COLS = 1
_SCROLL_ROWS = 3
"""Rows per turn of the mouse wheel."""
_TRAINS_GLYPH = "▶"
"""Marks a candidate that trains now, before the env that trains it."""
_OUTCOME_ROLES = {"chosen": "key", "pruned": "dim", "broke down": "warning", "failed": "warning"}
"""Role of an outcome, keyed by it; ordinary text for others."""
_DETAIL_ROWS, _SHORT_DETAIL_ROWS = 3, 2
"""Height of the detail, and in a low terminal."""


class CandidateTable(Panel, can_focus=True):
    """One row per candidate, the best first; `view.selected_candidate` is the cursor, which follows its candidate."""

    BINDINGS = bindings(KeyCategory.ROWS, KeyCategory.CANDIDATES)
    METRICS = ("candidates",)

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._top = 0
        """Index of the first visible candidate."""
        self._visible: Sequence[Standing] = ()
        self._fitted: tuple[Hashable, list[tuple[Column, int]], int] | None = None
        """Columns with their widths and the width of the name, after everything that they depend on."""
        self._row_cache: dict[str, tuple[Hashable, Row]] = {}
        """Cached rows, each with the cells and styles that it shows. Keyed by candidate."""

    def cache_key(self) -> Hashable:
        """Return a key that changes with the search, and with the cursor."""
        search = self.state.search
        return search and search.revision, self.view.selected_candidate, self.state.started is None

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        found, search = self.view.standings, self.state.search
        if search is None:
            return self.message("this run is not a growth: it has no candidates")
        if not found:
            return self.message("no trial has started yet")
        columns, name_width = self._fit_columns(size.width, search.revision, found)
        self.panel_title = f"candidates ─ by {search.info.objective} ↓"
        room = max(size.height - 1, 1)
        place = self._place(found)
        self._top = min(max(self._top, place - room + 1), place, max(len(found) - room, 0))
        self._visible = found[self._top : self._top + room]
        self.panel_subtitle = f"{self._top + 1}–{self._top + len(self._visible)} of {len(found)}"
        rows = [self._heading(columns, name_width).row(size.width)]
        envs = self._training_envs()
        for index, one in enumerate(self._visible, self._top):
            rows.append(self._row(one, columns, name_width, size.width, envs.get(one.name), selected=index == place))
        if self._top > 0:
            rows[1] = self._with_arrow(rows[1], "↑", size.width)
        if self._top + len(self._visible) < len(found):
            rows[-1] = self._with_arrow(rows[-1], "↓", size.width)
        return rows

    def _fit_columns(
        self, width: int, revision: int, found: Sequence[Standing]
    ) -> tuple[list[tuple[Column, int]], int]:
        key = width, revision
        if self._fitted is None or self._fitted[0] != key:
            room = width - _CURSOR_COLS - MARK_COLS - 2
            self._fitted = key, *fit_columns(found, self.state.score_name, room, gap=1)
        return self._fitted[1], self._fitted[2]

    def _place(self, found: Sequence[Standing]) -> int:
        """Return the index of the selected candidate; 0 if none is selected."""
        name = self.view.selected_candidate
        return next((index for index, one in enumerate(found) if one.name == name), 0)

    def _training_envs(self) -> dict[str, str]:
        """Return the envs that train a candidate now in words, keyed by candidate."""
        envs: dict[str, list[int]] = {}
        for env, training in self.state.search.training.items() if self.state.search else ():
            if training.outcome is None:
                envs.setdefault(training.candidate, []).append(env)
        return {name: f"env {of[0]:02d}" if len(of) == 1 else f"{len(of)} envs" for name, of in envs.items()}

    def _heading(self, columns: Sequence[tuple[Column, int]], name_width: int) -> Line:
        line = self.line(" " * (_CURSOR_COLS + MARK_COLS + 1) + NAME.ljust(name_width), "head")
        for column, width in columns:
            heading = column.heading.rjust(width) if column.is_right else column.heading.ljust(width)
            line.append(f" {heading}", "head")
        return line

    def _row(
        self,
        one: Standing,
        columns: Sequence[tuple[Column, int]],
        name_width: int,
        width: int,
        env: str | None,
        *,
        selected: bool,
    ) -> Row:
        cells = [fit_label(one.candidate, name_width), *(column.text_of(one) for column, _ in columns)]
        widths = [name_width, *(cols for _, cols in columns)]
        key = cells, widths, one.label, env, width, self.view.palette.name, self.view.state_version, selected
        cached = self._row_cache.get(one.name)
        if cached is not None and cached[0] == key:
            return cached[1]
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append_fitted(one.label, MARK_COLS, "curve" if one.is_on_front else "dim").append(" ")
        name_role = "bright" if selected or one.name == BARE_HOST else "normal"
        line.append_fitted(cells[0], name_width, name_role)
        for (column, cols), text in zip(columns, cells[1:], strict=True):
            role = "absent" if text == "–" else "normal"
            if column.heading == OUTCOME:
                role = _OUTCOME_ROLES.get(one.outcome, "normal")
                if env is not None:
                    text, role = f"{_TRAINS_GLYPH} {env}", "key"
            text = text.replace("-", "−").rjust(cols) if column.is_right else text
            line.append(" ").append_fitted(text, cols, role)
        row = line.row(width)
        self._row_cache[one.name] = key, row
        return row

    def _with_arrow(self, row: Row, arrow: str, width: int) -> Row:
        return [*Segment.adjust_line_length(row, width - 1), *self.line(arrow, "dim").row(1)]

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        found = self.view.standings
        if found:
            place = min(max(self._place(found) + rows, 0), len(found) - 1)
            self.view.selected_candidate = found[place].name
            self.update_screen()

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(len(self._visible) - 1, 1))

    def action_first(self) -> None:
        """Move the cursor to the best candidate."""
        self.action_move(-len(self.view.standings))

    def action_last(self) -> None:
        """Move the cursor to the last candidate."""
        self.action_move(len(self.view.standings))

    async def action_open(self) -> None:
        """Open the env that trains the selected candidate now, or trained it in this round."""
        found, search = self.view.standings, self.state.search
        if not found or search is None:
            return
        name = found[self._place(found)].name
        envs = [env for env, training in search.training.items() if training.candidate == name]
        if not envs:
            self.notify("No env trains this candidate in this round.", timeout=3)
            return
        self.view.select(min(envs, key=lambda env: search.training[env].outcome is not None))
        await self.run_action("app.open_env")

    async def on_click(self, event: Click) -> None:
        """Select the clicked row; open its env on a double click."""
        offset = event.get_content_offset(self)
        if offset is not None and 1 <= offset.y <= len(self._visible):
            self.view.selected_candidate = self._visible[offset.y - 1].name
            self.update_screen()
            if event.chain == 2:
                await self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """Move the cursor a few rows down."""
        self.action_move(_SCROLL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Move the cursor a few rows up."""
        self.action_move(-_SCROLL_ROWS)


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
            scores = ", ".join(f"{score:.1%}" for score in candidate.fresh_scores)
            trainings = pluralise(len(candidate.fresh_scores), "fresh host")
            texts.append(f"{format_percent(candidate)}, return {format_return(candidate)} on {trainings}: {scores}")
        if (tested := format_test(candidate)) != NOT_MEASURED:
            texts[0] += f"; {tested} % on the test split"
        lines += [self.line(f" {row}") for text in texts for row in wrap_cells(text, size.width - 1)]
        return lines[: size.height]
