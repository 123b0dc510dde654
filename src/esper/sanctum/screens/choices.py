"""Two lists over a screen, of moments to go to: what is wrong now or was, and why an env is in trouble."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.sanctum.symbols import SEVERITIES, brief, plain, time_of_day
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.anomalies import destination
from esper.sanctum.widgets.panel import Visit
from esper.telemetry.state import Anomaly, RunState
from esper.telemetry.why import Moment, trace_back


class Choices(ModalScreen[Visit | None]):
    """Gives where to go, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,a,W", "cancel", "back")]

    def __init__(self, palette: Palette, question: str, choices: list[tuple[Text, Visit]]) -> None:
        super().__init__()
        self._palette = palette
        self._question = question
        self._choices = choices

    def compose(self) -> ComposeResult:
        """A heading, the list, and what its keys do."""
        with Vertical(id="dialog"):
            yield Static(self._question, id="question", markup=False)
            if self._choices:
                yield OptionList(*(Option(text, id=str(i)) for i, (text, _) in enumerate(self._choices)))
            yield Static("↵ go there   Esc back" if self._choices else "Esc back", id="hint")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter, or a click."""
        self.dismiss(self._choices[event.option_index][1])

    def action_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


def anomaly_list(palette: Palette, state: RunState) -> Choices:
    """All anomalies that are kept, those that go on first: what, where, since when, the value and what is allowed."""
    active = state.active_anomalies()
    over = [anomaly for anomaly in state.anomalies.values() if anomaly.ended is not None][::-1]
    choices = [(_entry(palette, anomaly), destination(anomaly)) for anomaly in (*active, *over)]
    return Choices(palette, f"Anomalies: {len(active)} now, {len(over)} over", choices)


def _entry(palette: Palette, anomaly: Anomaly) -> Text:
    found = anomaly.found
    going = anomaly.ended is None
    text = Text()
    text.append(f"{SEVERITIES[found.severity].glyph} ", palette[found.severity if going else "dim"])
    text.append(plain(found.text), palette["bright" if going else "dim"])
    limit = "" if found.threshold is None else f", limit {brief(found.threshold).text.strip()}"
    since = f"\n  {found.rule}: {brief(found.value).text.strip()}{limit}; since {time_of_day(found.time)}"
    ended = "" if anomaly.ended is None else f", over at {time_of_day(anomaly.ended)}"
    times = f", {anomaly.count} times" if anomaly.count > 1 else ""
    return text.append(f"{since}{ended}{times}", palette["dim"])


def why(palette: Palette, state: RunState, env: int) -> Choices:
    """The trace-back of an env as a time line."""
    symptom, chain = trace_back(state, env)
    if symptom is None:
        return Choices(palette, f"Why, env {env:02d}: nothing is wrong with it in the steps that are known", [])
    heading = f"Why, env {env:02d}: " + ("what led to it" if chain else "no cause found")
    choices = [(_moment(palette, moment), Visit(moment.seq, env=env)) for moment in (*chain, symptom)]
    return Choices(palette, heading, choices)


def _moment(palette: Palette, moment: Moment) -> Text:
    text = Text(f"{moment.round:>4}.{moment.step:<4}", palette["dim"])
    glyph = " " if moment.severity == "info" else SEVERITIES[moment.severity].glyph
    text.append(f"{glyph} ", palette[moment.severity])
    return text.append(plain(moment.text), palette["normal" if moment.severity == "info" else "bright"])
