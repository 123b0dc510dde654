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


class QuitDialog(ModalScreen[Kind | None]):
    """Gives STOP, ABANDON, or None to go on.

    Args:
        attached: whether the run is in another process, which a dashboard may leave without ending it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "choose('cancel')", "go on"),
        Binding("c", "choose('stop')", "checkpoint and quit"),
        Binding("w", "choose('abandon')", "quit without"),
    ]

    def __init__(self, *, attached: bool) -> None:
        super().__init__()
        self._question = "End the run? q only detaches." if attached else "The run is live. End it?"

    def compose(self) -> ComposeResult:
        """A question and three answers."""
        with Vertical(id="dialog"):
            yield Static(self._question, id="question")
            yield OptionList(
                Option("c    checkpoint and quit", id="stop"),
                Option("w    quit without a checkpoint", id="abandon"),
                Option("Esc  cancel: the run goes on", id="cancel"),
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.action_choose(event.option_id or "cancel")

    def action_choose(self, answer: str) -> None:
        """Close with an answer."""
        self.dismiss(None if answer == "cancel" else Kind(answer))
