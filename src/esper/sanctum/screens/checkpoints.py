"""Which checkpoint to go back to."""

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

from esper.formatting import plain, time_of_day
from esper.sanctum.symbols import number, percent, shorten
from esper.telemetry.events import CheckpointSaved


def still_there(told: Iterable[CheckpointSaved], run: Path | None) -> list[CheckpointSaved]:
    """The checkpoints that a run has told of and still keeps, the newest last; one that was written again is one.

    Args:
        told: in the order in which they were written.
        run: its directory, which may be another for who is attached from elsewhere.
    """
    latest: dict[str, CheckpointSaved] = {}
    for saved in told:
        latest.pop(saved.path, None)
        latest[saved.path] = saved
    return [saved for path, saved in latest.items() if (run or Path()).joinpath(*Path(path).parts[-2:]).is_dir()]


class CheckpointPicker(ModalScreen[str | None]):
    """Gives the directory of the chosen checkpoint, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,r", "cancel", "cancel")]

    def __init__(self, checkpoints: list[CheckpointSaved]) -> None:
        super().__init__()
        self._checkpoints = checkpoints[::-1]

    def compose(self) -> ComposeResult:
        """The list, the newest first."""
        with Vertical(id="dialog"):
            yield Static("Go back to a checkpoint, and go on from it", id="question")
            table: DataTable[Text] = DataTable(cursor_type="row")
            for heading in ("round", "step", "at", "acc %", "   MiB", "asked by"):
                table.add_column(heading)
            for saved in self._checkpoints:
                table.add_row(
                    Text(str(saved.round), justify="right"),
                    Text(str(saved.step), justify="right"),
                    Text(time_of_day(saved.written or saved.time)),
                    Text(percent(saved.accuracy).text),
                    Text(number(saved.bytes / 2**20, 4, 2).text),
                    Text(shorten(plain(saved.origin), 12)),
                )
            yield table
            yield Static("Enter restore   Esc cancel", id="hint")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter, or a click."""
        self.dismiss(self._checkpoints[event.cursor_row].path)

    def action_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)
