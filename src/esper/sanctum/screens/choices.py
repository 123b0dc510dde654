"""Dialogs that list moments to go to: all anomalies, and the causal chain of an env's symptom."""

from __future__ import annotations

from typing import ClassVar, cast

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.formatting import format_time_of_day, strip_control
from esper.health.root_cause import ChainEntry, find_root_cause
from esper.sanctum.bindings import bindings_of
from esper.sanctum.symbols import SEVERITIES, compact_cell
from esper.sanctum.theme import Palette
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.problems import anomaly_target
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.state import RunState

_DIALOG_COLS = 96
"""Width of the dialog, as in sanctum.tcss."""
_DIALOG_FRAME_COLS = 8
"""Columns that border, padding and scrollbar take from the dialog."""
_CHAIN_INDENT = 11
"""Columns of round, step and glyph before the text of a chain entry."""


class MomentList(ModalScreen[GoToMoment | None]):
    """Dialog that lists moments. Returns the chosen one, or None.

    Args:
        heading: Heading of the dialog.
        choices: Text and target of each moment.
        indent: Width of the prefix of every line; wrapped lines are indented by it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "cancel", "back"),
        *bindings_of("cancel", "view.anomalies", "view.why"),
    ]

    def __init__(self, heading: str, choices: list[tuple[Text, GoToMoment]], *, indent: int = 0) -> None:
        super().__init__()
        self._heading = heading
        self._choices = choices
        self._indent = indent

    def compose(self) -> ComposeResult:
        """Yield the heading, the list, and a hint on the keys."""
        with Vertical(id="dialog"):
            yield Static(self._heading, id="question", markup=False)
            if self._choices:
                app = cast("App[object]", self.app)  # pyright: ignore[reportUnknownMemberType] (App without its parameter)
                width = min(_DIALOG_COLS, app.size.width * 9 // 10) - _DIALOG_FRAME_COLS
                texts = (_wrap_with_indent(text, self._indent, width, app.console) for text, _ in self._choices)
                yield OptionList(*(Option(text) for text in texts))
            yield Static("Enter go   Esc back" if self._choices else "Esc back", id="hint")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the moment chosen with Enter or a click."""
        self.dismiss(self._choices[event.option_index][1])

    def action_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


def anomaly_list(palette: Palette, state: RunState) -> MomentList:
    """Return a dialog with all stored anomalies: first the active ones, then the ended ones, latest first."""
    active = state.active_anomalies()
    ended = [anomaly for anomaly in state.anomalies.values() if anomaly.ended is not None][::-1]
    choices = [(_describe_anomaly(palette, anomaly), anomaly_target(anomaly)) for anomaly in (*active, *ended)]
    return MomentList(f"Anomalies: {len(active)} active, {len(ended)} ended", choices, indent=2)


def root_cause_list(palette: Palette, state: RunState, env: int) -> MomentList:
    """Return a dialog with the causal chain of an env's latest symptom, in order of time."""
    symptom, chain = find_root_cause(state, env)
    if symptom is None:
        return MomentList(f"Root cause, env {env:02d}: no symptom in the recorded steps", [])
    heading = f"Root cause, env {env:02d}" + ("" if chain else ": not found")
    choices = [(_describe_entry(palette, entry), GoToMoment(entry.seq, env=env)) for entry in (*chain, symptom)]
    return MomentList(heading, choices, indent=_CHAIN_INDENT)


def _describe_anomaly(palette: Palette, anomaly: Anomaly) -> Text:
    """Severity, text, rule, value, threshold and time of an anomaly."""
    found = anomaly.found
    is_active = anomaly.ended is None
    text = Text()
    text.append(SEVERITIES[found.severity].glyph, _style(palette, found.severity if is_active else "dim"))
    text.append(f" {strip_control(found.text)}", _style(palette, "bright" if is_active else "dim"))
    limit = "" if found.threshold is None else f", limit {_format_value(found.threshold)}"
    since = f"\n  {found.rule}: {_format_value(found.value)}{limit}; since {format_time_of_day(found.time)}"
    ended = "" if anomaly.ended is None else f", ended at {format_time_of_day(anomaly.ended)}"
    times = f", {anomaly.count} times" if anomaly.count > 1 else ""
    times += f", in {len(anomaly.envs)} envs" if len(anomaly.envs) > 1 else ""
    return text.append(f"{since}{ended}{times}", _style(palette, "dim"))


def _format_value(value: float) -> str:
    """Format a count as an integer, and any other value with three digits."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else compact_cell(value).text.strip()


def _describe_entry(palette: Palette, entry: ChainEntry) -> Text:
    """Round, step, severity and text of an entry of a causal chain."""
    text = Text().append(f"{f'{entry.round:>4}.{entry.step}':<{_CHAIN_INDENT - 2}}", _style(palette, "dim"))
    glyph = " " if entry.severity == "info" else SEVERITIES[entry.severity].glyph
    text.append(glyph, _style(palette, entry.severity))
    return text.append(
        f" {strip_control(entry.text)}", _style(palette, "normal" if entry.severity == "info" else "bright")
    )


def _style(palette: Palette, role: str) -> Style:
    """Style of a role without its background, because the selected row has its own."""
    style = palette[role]
    return Style(color=style.color, bold=style.bold, reverse=style.reverse)


def _wrap_with_indent(text: Text, indent: int, width: int, console: Console) -> Text:
    """Wrap a text to `width` columns, with further rows indented by `indent` columns."""
    rows: list[Text] = []
    for line in text.split("\n"):
        wrapped = line[indent:].wrap(console, width - indent)
        rows += [Text.assemble(" " * indent if index else line[:indent], part) for index, part in enumerate(wrapped)]
    return Text("\n").join(rows)
