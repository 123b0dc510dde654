"""Dialog that restores a checkpoint."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.widgets import Static

from esper.common.domain import StepNumber
from esper.common.formatting import format_bytes, format_time_of_day, pluralise, short_score_name, strip_control
from esper.recordings.events import CheckpointSaved
from esper.sanctum.keys import bindings_of
from esper.sanctum.screens.dialogs import Dialog
from esper.sanctum.symbols import Cell, score_cell, score_heading
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Row
from esper.sanctum.widgets.row_list import Column, RowList, append_cells, fit_columns

_CURSOR_COLS = 1
_MAX_ORIGIN_COLS = 12
_MAX_ROWS = 15
"""Maximum number of visible checkpoints."""


class CheckpointList(RowList[str]):
    """One row per checkpoint, keyed by its path.

    Args:
        checkpoints: The checkpoints, newest first.
    """

    def __init__(self, view: ViewState, checkpoints: Sequence[CheckpointSaved]) -> None:
        super().__init__(view)
        self._checkpoints = {saved.path: saved for saved in checkpoints}
        self.highlighted = checkpoints[0]
        """The checkpoint under the cursor."""

    class Moved(Message):
        """The cursor is on another checkpoint."""

    class Chosen(Message):
        """The user has chosen the checkpoint under the cursor."""

    @property
    def selected(self) -> str:
        """Path of the checkpoint under the cursor."""
        return self.highlighted.path

    def select(self, key: str) -> None:
        """Move the cursor to a checkpoint."""
        self.highlighted = self._checkpoints[key]
        self.update()
        self.post_message(self.Moved())

    async def action_open(self) -> None:
        """Choose the checkpoint under the cursor."""
        self.post_message(self.Chosen())

    def preferred_height(self) -> int:
        """Return the number of lines of the heading and of all rows, up to the maximum."""
        return self.HEADING_ROWS + min(len(self._checkpoints), _MAX_ROWS)

    def cache_key(self) -> Hashable:
        """Return the path under the cursor."""
        return self.selected

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        width, found = size.width, [*self._checkpoints.values()]
        columns = self.fitted(width, lambda: fit_columns(self._columns(), found, width - _CURSOR_COLS - 1, 0))
        rows = [self.draw_heading(self.line(" " * _CURSOR_COLS), columns).row(width)]
        for path in self.scroll_to_cursor([*self._checkpoints], max(size.height - self.HEADING_ROWS, 1)):
            saved, is_selected = self._checkpoints[path], path == self.selected
            line = Line(self.view.palette, selected=is_selected).append("▸" if is_selected else " ", "key")
            rows.append(append_cells(line, columns, (column.cell(saved, cols) for column, cols in columns)).row(width))
        self.draw_scroll_arrows(rows, width)
        return rows

    def _columns(self) -> list[Column[CheckpointSaved]]:
        state = self.view.source.live_state
        score = score_heading(short_score_name(state.score_name), state.score_scale)
        return [
            Column("round", "round", 5, 8, lambda saved, _: Cell(str(saved.round)), 0, is_right=True),
            Column("step", "step", 4, 8, lambda saved, _: Cell(str(saved.step)), 0, is_right=True),
            Column("time", "time", 8, 8, lambda saved, _: Cell(format_time_of_day(saved.written or saved.time)), 1),
            Column(
                "score",
                score,
                len(score),
                8,
                lambda saved, _: score_cell(saved.score, state.score_scale),
                2,
                is_right=True,
            ),
            Column("size", "size", 4, 9, lambda saved, _: Cell(format_bytes(saved.bytes)), 3, is_right=True),
            Column("origin", "origin", 6, _MAX_ORIGIN_COLS, lambda saved, _: Cell(strip_control(saved.origin)), 4),
        ]


class CheckpointPicker(Dialog[str]):
    """Dialog that lists checkpoints. Returns the path of the chosen one, or None.

    Args:
        checkpoints: The checkpoints, newest last.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose"),
        *bindings_of("dismiss", "run.restore"),
    ]

    def __init__(self, view: ViewState, checkpoints: Sequence[CheckpointSaved]) -> None:
        super().__init__()
        self._view, self._checkpoints = view, checkpoints[::-1]

    def compose(self) -> ComposeResult:
        """Yield the list, newest first, and what the restore of the checkpoint under the cursor discards."""
        with Vertical(id="dialog"):
            yield Static("Restore a checkpoint", id="question")
            yield CheckpointList(self._view, self._checkpoints)
            yield Static(self._loss(self._checkpoints[0]), id="loss")
            yield Static("Enter restore   Esc cancel", id="hint")

    def _loss(self, saved: CheckpointSaved) -> str:
        """Return a sentence on the steps that restoring a checkpoint discards."""
        state = self._view.source.live_state
        steps_per_round = state.started.steps if state.started else 1
        lost = max(state.steps_done - StepNumber(saved.round, saved.step).steps_done(steps_per_round), 0)
        rounds, steps = divmod(lost, steps_per_round)
        parts = [pluralise(rounds, "round")] if rounds else []
        parts += [pluralise(steps, "step")] if steps or not rounds else []
        later = sum((other.round, other.step) > (saved.round, saved.step) for other in self._checkpoints)
        kept = f"; {pluralise(later, 'later checkpoint')} kept in undone/" if later else ""
        return f"Discards {' '.join(parts)}{kept}."

    def on_checkpoint_list_moved(self) -> None:
        """Show what restoring the checkpoint under the cursor discards."""
        self.query_one("#loss", Static).update(self._loss(self.query_one(CheckpointList).highlighted))

    def on_checkpoint_list_chosen(self) -> None:
        """Return the checkpoint that was double-clicked."""
        self.action_choose()

    def action_choose(self) -> None:
        """Return the checkpoint under the cursor."""
        self.dismiss(self.query_one(CheckpointList).selected)


def existing_checkpoints(events: Iterable[CheckpointSaved], run: Path | None) -> list[CheckpointSaved]:
    """Return the recorded checkpoints that still exist, newest last. A checkpoint that was overwritten is listed once.

    Args:
        events: Events of the checkpoints, in the order of writing.
        run: Run directory as seen by this process, which can differ from the recorded path; None for the recorded path
            relative to the working directory.
    """
    latest: dict[str, CheckpointSaved] = {}
    for saved in events:
        latest.pop(saved.path, None)
        latest[saved.path] = saved
    return [saved for saved in latest.values() if local_path(saved, run).is_dir()]


def local_path(saved: CheckpointSaved, run: Path | None) -> Path:
    """Return the path of a recorded checkpoint as seen by this process; `run` as for `existing_checkpoints`."""
    return (run or Path()).joinpath(*Path(saved.path).parts[-2:])
