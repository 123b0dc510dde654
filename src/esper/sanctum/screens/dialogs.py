"""Base class of dialogs, and those that ask before the run ends, after its end, and before a network is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.control import RequestKind
from esper.domain import PauseCause
from esper.formatting import strip_control
from esper.sanctum.bindings import bindings_of
from esper.sanctum.requests import pause_cause
from esper.telemetry.events import CallOverdue
from esper.telemetry.sentences import name_call

ResultT = TypeVar("ResultT")
NextStep: TypeAlias = Literal["resume", "replay", "harvest", "what-if", "evaluate"]


class Dialog(ModalScreen[ResultT]):
    """Screen over another one. Escape and the key to quit close it without a result."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss"), *bindings_of("dismiss", "view.quit")]


class QuitDialog(Dialog[RequestKind]):
    """Dialog that ends the run. Returns STOP or ABANDON, or None to continue.

    Args:
        key_names: Names of the user's keys, keyed by the id of the action.
        attached: True if the run is in another process, which continues when the dashboard closes.
        paused: True if the run is paused.
        cause: Cause of the pause, as in `Paused.cause`; None if no fault holds the run.
        overdue: Call that does not return; None without one.
        run: Name of the run, if the screen shows several.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "choose('stop')", "checkpoint and quit"),
        Binding("w", "choose('abandon')", "quit without checkpoint"),
    ]

    def __init__(
        self,
        key_names: Mapping[str, str],
        *,
        attached: bool,
        paused: bool,
        cause: str | None,
        overdue: CallOverdue | None = None,
        run: str = "",
    ) -> None:
        super().__init__()
        self._cannot_save = cause is not None and RequestKind.CHECKPOINT in pause_cause(cause).refused_requests
        if overdue is not None:
            end = f"once the call has taken {overdue.max_seconds:.0f} s, with its last checkpoint"
            status = f"Your code has not returned: {strip_control(name_call(overdue))}.\nA stop ends the run {end}."
        elif cause is None:
            status = f"{run or 'The run'} is {'paused' if paused else 'live'}."
        elif cause == PauseCause.LOST:
            status = "The run directory was deleted; nothing can be saved."
        elif self._cannot_save:
            status = "The run cannot continue; the start of this round is saved."
        else:
            status = "The run is held."
        detach = f"\nCancel and press {key_names['view.quit']} to detach." if attached else ""
        self._question = f"{status} End the run?{detach}"
        self._cancel_effect = (
            "the run stays held" if cause else "the run stays paused" if paused else "the run continues"
        )

    def compose(self) -> ComposeResult:
        """Yield the question and its answers."""
        with Vertical(id="dialog"):
            yield Static(self._question, id="question", markup=False)
            yield OptionList(
                *([] if self._cannot_save else [Option("c    checkpoint and quit", id="stop")]),
                Option("w    quit" if self._cannot_save else "w    quit without a checkpoint", id="abandon"),
                Option(f"Esc  cancel: {self._cancel_effect}", id="cancel"),
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the answer chosen with Enter or a click."""
        self.action_choose(event.option_id or "cancel")

    def action_choose(self, answer: str) -> None:
        """Close with an answer."""
        self.dismiss(None if answer == "cancel" else RequestKind(answer))

    def confirm(self) -> None:
        """Close with the first answer, which ends the run, with a checkpoint if one can be written."""
        self.action_choose("abandon" if self._cannot_save else "stop")


class ConfirmDialog(Dialog[bool]):
    """Dialog that asks whether to do something. Returns True to do so.

    Args:
        question: Text that names the thing.
        verb: Text of the answer that does it.
        is_destructive: Highlight the other answer first.
    """

    def __init__(self, question: str, verb: str, *, is_destructive: bool = False) -> None:
        super().__init__()
        self._question, self._verb, self._is_destructive = question, verb, is_destructive

    def compose(self) -> ComposeResult:
        """Yield the question and its answers."""
        with Vertical(id="dialog"):
            yield Static(self._question, id="question", markup=False)
            label = "       " if self._is_destructive else "Enter  "
            answers = [Option(f"{label}{self._verb}", id="yes"), Option("Esc    cancel", id="cancel")]
            yield OptionList(*(reversed(answers) if self._is_destructive else answers))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the answer chosen with Enter or a click."""
        self.dismiss(event.option_id == "yes")


class HarvestDialog(ConfirmDialog):
    """Dialog that asks whether to harvest a network. Returns True to do so.

    Args:
        question: Text that names the network and the directory of its files.
    """

    BINDINGS = bindings_of("dismiss", "view.harvest")

    def __init__(self, question: str) -> None:
        super().__init__(question, "harvest")


class NextStepsDialog(Dialog[NextStep]):
    """Dialog that offers what to do with a run that has ended. Returns the choice, or None.

    Args:
        heading: Text that names the result of the run.
        env: Index of the best env.
        steps: The steps that this run allows.
        resume_key: Name of the key that resumes a run.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of("dismiss", "view.next-steps"),
        *bindings_of("app.quit", "view.quit"),
        *bindings_of("choose('resume')", "run.pause"),
        Binding("r", "choose('replay')", "replay"),
        Binding("h", "choose('harvest')", "harvest"),
        Binding("w", "choose('what-if')", "what if"),
        Binding("e", "choose('evaluate')", "evaluate"),
    ]

    def __init__(self, heading: str, env: int, steps: Sequence[NextStep], resume_key: str) -> None:
        super().__init__()
        self._heading = heading
        self._texts: dict[NextStep, str] = {
            "resume": f"{resume_key:<4} resume: train on from the newest checkpoint, in a background process",
            "replay": "r    replay: watch the run from its start",
            "harvest": f"h    harvest: write the network of env {env:02d} as files",
            "what-if": f"w    what if: compute the effects of env {env:02d}'s decisions",
            "evaluate": "e    evaluate: copy the command that tests the policy",
        }
        self._steps = steps

    def compose(self) -> ComposeResult:
        """Yield the heading and the choices."""
        with Vertical(id="dialog"):
            yield Static(self._heading, id="question", markup=False)
            yield OptionList(
                *(Option(self._texts[step], id=step) for step in self._steps),
                Option("Esc  stay on this screen", id="cancel"),
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the step chosen with Enter or a click."""
        self.dismiss(None if event.option_id == "cancel" else cast("NextStep", event.option_id))

    def action_choose(self, step: NextStep) -> None:
        """Close with a step, unless it is not offered."""
        if step in self._steps:
            self.dismiss(step)
