"""Two lists over a screen, of moments to go to: what is wrong now or was, and why an env is in trouble."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.formatting import format_time_of_day, strip_control
from esper.health.root_cause import ChainEntry, find_root_cause
from esper.sanctum.symbols import SEVERITIES, compact_cell
from esper.sanctum.theme import Palette
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.problems import anomaly_target
from esper.telemetry.state import Anomaly, RunState

_WIDTH, _FRAME = 96, 8
"""Columns of the dialog, as in sanctum.tcss, and of these what border, padding and scrollbar take."""

_STAMP = 11
"""Columns of round, step and glyph before a moment."""


class MomentList(ModalScreen[GoToMoment | None]):
    """Gives where to go, or None.

    Args:
        question: the heading.
        choices: texts, and where each leads.
        indent: columns that stand before every line of a text; what is wrapped begins behind them too.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,a,W", "cancel", "back")]

    def __init__(self, question: str, choices: list[tuple[Text, GoToMoment]], *, indent: int = 0) -> None:
        super().__init__()
        self._question = question
        self._choices = choices
        self._indent = indent

    def compose(self) -> ComposeResult:
        """A heading, the list, and what its keys do."""
        with Vertical(id="dialog"):
            yield Static(self._question, id="question", markup=False)
            if self._choices:
                width = min(_WIDTH, self.app.size.width * 9 // 10) - _FRAME
                texts = (_hanging_indent(text, self._indent, width, self.app.console) for text, _ in self._choices)
                yield OptionList(*(Option(text) for text in texts))
            yield Static("Enter go there   Esc back" if self._choices else "Esc back", id="hint")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.dismiss(self._choices[event.option_index][1])

    def action_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


def _hanging_indent(text: Text, indent: int, width: int, console: Console) -> Text:
    """The text wrapped to `width`, each line of it behind the first `indent` columns."""
    lines: list[Text] = []
    for line in text.split("\n"):
        wrapped = line[indent:].wrap(console, width - indent)
        lines += [Text.assemble(" " * indent if number else line[:indent], part) for number, part in enumerate(wrapped)]
    return Text("\n").join(lines)


def _style(palette: Palette, role: str) -> Style:
    """That of a role, without its ground: the row under the cursor has one of its own."""
    style = palette[role]
    return Style(color=style.color, bold=style.bold, reverse=style.reverse)


def anomaly_list(palette: Palette, state: RunState) -> MomentList:
    """All anomalies that are kept, those that go on first: what, where, since when, the value and what is allowed."""
    active = state.active_anomalies()
    over = [anomaly for anomaly in state.anomalies.values() if anomaly.ended is not None][::-1]
    choices = [(_entry(palette, anomaly), anomaly_target(anomaly)) for anomaly in (*active, *over)]
    return MomentList(f"Anomalies: {len(active)} now, {len(over)} over", choices, indent=2)


def _entry(palette: Palette, anomaly: Anomaly) -> Text:
    found = anomaly.found
    going = anomaly.ended is None
    text = Text()
    text.append(SEVERITIES[found.severity].glyph, _style(palette, found.severity if going else "dim"))
    text.append(f" {strip_control(found.text)}", _style(palette, "bright" if going else "dim"))
    limit = "" if found.threshold is None else f", limit {_exact(found.threshold)}"
    since = f"\n  {found.rule}: {_exact(found.value)}{limit}; since {format_time_of_day(found.time)}"
    ended = "" if anomaly.ended is None else f", over at {format_time_of_day(anomaly.ended)}"
    times = f", {anomaly.count} times" if anomaly.count > 1 else ""
    return text.append(f"{since}{ended}{times}", _style(palette, "dim"))


def _exact(value: float) -> str:
    """A count whole, anything else in three digits."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else compact_cell(value).text.strip()


def root_cause_list(palette: Palette, state: RunState, env: int) -> MomentList:
    """The trace-back of an env as a time line."""
    symptom, chain = find_root_cause(state, env)
    if symptom is None:
        return MomentList(f"Why, env {env:02d}: nothing is wrong with it in the steps that are known", [])
    heading = f"Why, env {env:02d}: " + ("what led to it" if chain else "no cause found")
    choices = [(_moment(palette, moment), GoToMoment(moment.seq, env=env)) for moment in (*chain, symptom)]
    return MomentList(heading, choices, indent=_STAMP)


def _moment(palette: Palette, moment: ChainEntry) -> Text:
    text = Text().append(f"{f'{moment.round:>4}.{moment.step}':<{_STAMP - 2}}", _style(palette, "dim"))
    glyph = " " if moment.severity == "info" else SEVERITIES[moment.severity].glyph
    text.append(glyph, _style(palette, moment.severity))
    return text.append(
        f" {strip_control(moment.text)}", _style(palette, "normal" if moment.severity == "info" else "bright")
    )
