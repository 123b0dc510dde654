"""Dialogs: quit, choose a checkpoint, go to a moment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, OptionList, Static
from textual.widgets.option_list import Option

from esper.control import RequestKind
from esper.formatting import format_time_of_day, strip_control
from esper.history.address import MOMENT_FORMATS, MomentError, parse_moment
from esper.history.history import History
from esper.sanctum.requests import pause_cause
from esper.sanctum.symbols import ellipsise, number_cell, percent_cell
from esper.telemetry.events import CheckpointSaved

_SAVED = "cannot go on, and where it can go on from is saved"


class QuitDialog(ModalScreen[RequestKind | None]):
    """Gives STOP, ABANDON, or None to leave the run as it is.

    Args:
        attached: whether the run is in another process, which a dashboard may leave without ending it.
        cause: what holds the run, as in `Paused`; None for one that is well.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "choose('cancel')", "as it is"),
        Binding("c", "choose('stop')", "checkpoint and quit"),
        Binding("w", "choose('abandon')", "quit without"),
    ]

    def __init__(self, *, attached: bool, cause: str | None) -> None:
        super().__init__()
        self._saved = cause is not None and RequestKind.CHECKPOINT in pause_cause(cause).refused_requests
        state = "is live" if cause is None else _SAVED if self._saved else "is held"
        self._question = f"The run {state}. End it?" + ("\nq only detaches." if attached else "")
        self._cancel = "the run goes on" if cause is None else "the run stays held"

    def compose(self) -> ComposeResult:
        """A question and three answers."""
        with Vertical(id="dialog"):
            yield Static(self._question, id="question")
            yield OptionList(
                *([] if self._saved else [Option("c    checkpoint and quit", id="stop")]),
                Option("w    quit" if self._saved else "w    quit without a checkpoint", id="abandon"),
                Option(f"Esc  cancel: {self._cancel}", id="cancel"),
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.action_choose(event.option_id or "cancel")

    def action_choose(self, answer: str) -> None:
        """Close with an answer."""
        self.dismiss(None if answer == "cancel" else RequestKind(answer))

    def confirm(self) -> None:
        """Close with the first answer: end the run, with a checkpoint if one can be written."""
        self.action_choose("abandon" if self._saved else "stop")


def existing_checkpoints(told: Iterable[CheckpointSaved], run: Path | None) -> list[CheckpointSaved]:
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
                    Text(format_time_of_day(saved.written or saved.time)),
                    Text(percent_cell(saved.accuracy).text),
                    Text(number_cell(saved.bytes / 2**20, 4, 2).text),
                    Text(ellipsise(strip_control(saved.origin), 12)),
                )
            yield table
            yield Static("Enter restore   Esc cancel", id="hint")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter, or a click."""
        self.dismiss(self._checkpoints[event.cursor_row].path)

    def action_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


class GoToDialog(ModalScreen[int | None]):
    """Gives a position, or None to stay. What cannot be meant is refused below the line, which stays open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def compose(self) -> ComposeResult:
        """A line to write in."""
        with Vertical(id="dialog"):
            yield Static("Go to", id="question")
            yield Input(placeholder=MOMENT_FORMATS)
            yield Static("Enter go   Esc cancel", id="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        try:
            self.dismiss(parse_moment(event.value, self._history))
        except MomentError as error:
            self.query_one("#hint", Static).update(str(error))

    def action_cancel(self) -> None:
        """Stay."""
        self.dismiss(None)
