"""Asks before a live run is ended."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.control import Kind
from esper.sanctum.holds import hold_of

_SAVED = "cannot go on, and where it can go on from is saved"


class QuitDialog(ModalScreen[Kind | None]):
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
        self._saved = cause is not None and Kind.CHECKPOINT in hold_of(cause).vain
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
        self.dismiss(None if answer == "cancel" else Kind(answer))

    def confirm(self) -> None:
        """Close with the first answer: end the run, with a checkpoint if one can be written."""
        self.action_choose("abandon" if self._saved else "stop")
