"""Dialog that goes to a moment, and waits for it while a long recording is read."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from esper.recordings.files.segments import ReadError
from esper.recordings.history.address import MOMENT_FORMATS, Moment, MomentError, find_moment
from esper.recordings.history.history import History
from esper.sanctum.screens.dialogs import Dialog

WAIT_INTERVAL_S = 0.1
"""Seconds between two attempts to find the moment in the part that was read."""
_BAR_COLS = 30


class GoToDialog(Dialog[Moment]):
    """Dialog that reads a moment. Returns it, or None. An invalid moment is explained below the input.

    A moment that was not read yet is waited for.

    Args:
        history: History of the recording; its owner continues to read it.
        moment: Moment to go to at once; empty to let the user type one.
    """

    def __init__(self, history: History, moment: str = "") -> None:
        super().__init__()
        self._history = history
        self._moment = moment
        """Moment that is waited for; empty if none is."""

    def compose(self) -> ComposeResult:
        """Yield the input, and a line for hints, progress and errors."""
        with Vertical(id="dialog"):
            yield Static("Go to", id="question")
            yield Input(self._moment)
            yield Static(f"{MOMENT_FORMATS}\nEnter go   Esc cancel", id="hint", markup=False)

    def on_mount(self) -> None:
        """Go to the initial moment."""
        self.set_interval(WAIT_INTERVAL_S, self._find)
        self._find()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the typed moment."""
        self._moment = event.value or " "
        self._find()

    def _find(self) -> None:
        """Close with the moment; show the progress, or why there is no such moment."""
        if not self._moment:
            return
        try:
            moment = find_moment(self._moment, self._history)
        except (MomentError, ReadError) as error:
            self._moment, hint = "", str(error)
        else:
            if moment is not None:
                self._moment = ""
                self.dismiss(moment)
                return
            fraction = self._history.fraction_read
            filled = int(fraction * _BAR_COLS)
            bar = "━" * filled + "─" * (_BAR_COLS - filled)
            hint = f"{bar} reading the recording: {100 * fraction:.0f} %\nEsc cancel"
        self.query_one("#hint", Static).update(hint)
