"""Dialog that restores a checkpoint. A separate module, because its table takes longest to import."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from esper.formatting import format_time_of_day, strip_control
from esper.sanctum.bindings import bindings_of
from esper.sanctum.symbols import ellipsise, number_cell, percent_cell
from esper.telemetry.events import CheckpointSaved


class CheckpointPicker(ModalScreen[str | None]):
    """Dialog that lists checkpoints. Returns the path of the chosen one, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "cancel", "cancel"),
        *bindings_of("cancel", "run.restore"),
    ]

    def __init__(self, checkpoints: list[CheckpointSaved]) -> None:
        super().__init__()
        self._checkpoints = checkpoints[::-1]

    def compose(self) -> ComposeResult:
        """Yield a table of the checkpoints, newest first."""
        with Vertical(id="dialog"):
            yield Static("Restore a checkpoint", id="question")
            table: DataTable[Text] = DataTable(cursor_type="row")
            for heading in ("round", "step", "time", "acc %", "   MiB", "origin"):
                table.add_column(heading)
            for saved in self._checkpoints:
                table.add_row(
                    Text(str(saved.round), justify="right"),
                    Text(str(saved.step), justify="right"),
                    Text(format_time_of_day(saved.written or saved.time)),
                    Text(percent_cell(saved.accuracy).text),
                    Text(number_cell(saved.bytes / 2**20, 4, 2).text),
                    Text(ellipsise(strip_control(saved.origin), 12)),
                )
            yield table
            yield Static("Enter restore   Esc cancel", id="hint")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Return the checkpoint chosen with Enter or a click."""
        self.dismiss(self._checkpoints[event.cursor_row].path)

    def action_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


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
    return [saved for path, saved in latest.items() if (run or Path()).joinpath(*Path(path).parts[-2:]).is_dir()]
