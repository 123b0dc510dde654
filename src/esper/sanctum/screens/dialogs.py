"""Base class of dialogs, the dialog of choices, and its question before a run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.common.control import RequestKind
from esper.common.domain import PauseCause
from esper.common.formatting import strip_control
from esper.recordings.events import CallOverdue
from esper.recordings.events.sentences import name_call
from esper.sanctum.keys import bindings_of
from esper.sanctum.requests import pause_cause

ResultT = TypeVar("ResultT")


class Dialog(ModalScreen[ResultT]):
    """Screen over another one. Escape and the key to quit close it without a result."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss"), *bindings_of("dismiss", "view.quit")]


@dataclass(frozen=True)
class Choice(Generic[ResultT]):
    """Answer that a dialog offers."""

    key: str
    """Key that chooses it, as the dialog shows it."""
    text: str
    result: ResultT
    """Result of the dialog."""
    action_id: str = ""
    """Id of the action of the table of keys that has this key, which the user may change; empty for no action."""


class ChoiceDialog(Dialog[ResultT]):
    """Dialog that offers choices, each with its key. Returns the result of the chosen one, or None to cancel.

    Args:
        question: Text above the choices.
        choices: The choices, from top to bottom.
        cancel: Text of the answer that does nothing.
        is_destructive: Put that answer first, so that Enter does nothing.
        bindings: Further keys.
        classes: Classes for the style sheet.
    """

    def __init__(
        self,
        question: str,
        choices: Sequence[Choice[ResultT]],
        cancel: str = "cancel",
        *,
        is_destructive: bool = False,
        bindings: Sequence[BindingType] = (),
        classes: str | None = None,
    ) -> None:
        super().__init__(classes=classes)
        self._question, self._choices, self._cancel = question, choices, cancel
        self._is_destructive = is_destructive
        keys = [*bindings]
        for number, choice in enumerate(choices):
            action = f"choose({number})"
            keys += bindings_of(action, choice.action_id) if choice.action_id else [Binding(choice.key, action)]
        self._bindings.key_to_bindings |= BindingsMap(keys).key_to_bindings

    def compose(self) -> ComposeResult:
        """Yield the question and the choices."""
        options = [
            Option(f"{choice.key:<4} {choice.text}", id=str(number)) for number, choice in enumerate(self._choices)
        ]
        options.insert(0 if self._is_destructive else len(options), Option(f"Esc  {self._cancel}"))
        with Vertical(id="dialog"):
            yield Static(self._question, id="question", markup=False)
            yield OptionList(*options, markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the answer chosen with Enter or a click."""
        if event.option_id is None:
            self.dismiss(None)
        else:
            self.action_choose(int(event.option_id))

    def action_highlight(self, number: int) -> None:
        """Highlight a choice, which Enter then takes."""
        options = self.query_one(OptionList)
        options.highlighted = options.get_option_index(str(number))

    def action_choose(self, number: int) -> None:
        """Close with the result of a choice."""
        self.dismiss(self._choices[number].result)


def stop_dialog(
    key_names: Mapping[str, str],
    *,
    attached: bool,
    paused: bool,
    cause: str | None,
    overdue: CallOverdue | None = None,
    run: str = "",
) -> ChoiceDialog[RequestKind]:
    """Return the dialog that asks whether to end a run. Its first choice ends the run, with a checkpoint if possible.

    Args:
        key_names: Names of the user's keys, keyed by the id of the action.
        attached: True if the run is in another process, which continues when the dashboard closes.
        paused: True if the run is paused.
        cause: Cause of the pause, as in `Paused.cause`; None if no fault holds the run.
        overdue: Call that does not return; None without one.
        run: Name of the run, if the screen shows several.
    """
    cannot_save = cause is not None and RequestKind.CHECKPOINT in pause_cause(cause).refused_requests
    if overdue is not None:
        end = f"once the call has taken {overdue.max_seconds:.0f} s, with its last checkpoint"
        status = f"Your code has not returned: {strip_control(name_call(overdue))}.\nA stop ends the run {end}."
    elif cause is None:
        status = f"{run or 'The run'} is {'paused' if paused else 'live'}."
    elif cause == PauseCause.LOST:
        status = "The run directory was deleted; nothing can be saved."
    elif cannot_save:
        status = "The run cannot continue; the start of this round is saved."
    else:
        status = "The run is held."
    detach = f"\nCancel and press {key_names['view.quit']} to detach." if attached else ""
    question = f"{status} End the run?{detach}"
    effect = "the run stays held" if cause else "the run stays paused" if paused else "the run continues"
    choices = [Choice("w", "quit" if cannot_save else "quit without a checkpoint", RequestKind.ABANDON)]
    if not cannot_save:
        choices.insert(0, Choice("c", "checkpoint and quit", RequestKind.STOP))
    return ChoiceDialog(question, choices, f"cancel: {effect}", classes="small")
