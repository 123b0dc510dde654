"""Asks for a moment of the recording."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from esper.history.address import FORMS, MomentError, find_moment
from esper.history.history import History


class GoTo(ModalScreen[int | None]):
    """Gives a position, or None to stay. What cannot be meant is refused below the line, which stays open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def compose(self) -> ComposeResult:
        """A line to write in."""
        with Vertical(id="dialog"):
            yield Static("Go to", id="question")
            yield Input(placeholder=FORMS)
            yield Static("Enter go   Esc cancel", id="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        try:
            self.dismiss(find_moment(event.value, self._history))
        except MomentError as error:
            self.query_one("#hint", Static).update(str(error))

    def action_cancel(self) -> None:
        """Stay."""
        self.dismiss(None)
