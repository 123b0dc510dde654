"""Dialogs that list moments to go to: all anomalies, and the possible causes of an env's symptom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, cast

import msgspec
from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from esper.common.formatting import APPROXIMATE, format_time_of_day, strip_control
from esper.recordings.effects.verdict import judge_cause
from esper.recordings.health.causes import PossibleCause
from esper.recordings.health.incidents import Incident, group_incidents
from esper.recordings.health.root_cause import Finding, RootCause, find_root_cause
from esper.recordings.state.anomalies import Anomaly
from esper.sanctum.keys import bindings_of
from esper.sanctum.screens.dialogs import Dialog
from esper.sanctum.symbols import SEVERITIES, compact_cell
from esper.sanctum.theme import Palette
from esper.sanctum.view import EffectNeeded, GoToMoment, ViewState
from esper.sanctum.widgets.problems import anomaly_target

_DIALOG_COLS = 96
"""Width of the dialog, as in sanctum.tcss."""
_DIALOG_FRAME_COLS = 8
"""Columns that border, padding and scrollbar take from the dialog."""
_FINDING_INDENT = 12
"""Columns of step and glyph before the text of a finding or a candidate."""
_SYMPTOM_PREFIX = "└ "
"""Stands before an anomaly that another one of its incident led to."""
_STATUS_INTERVAL_S = 1.0
"""Seconds between two updates of the status of the run."""
_TEST_INTERVAL_S = 0.2
"""Seconds between two updates of the tests of causes."""


class Choice(NamedTuple):
    """Line of a list of moments."""

    text: Text
    target: GoToMoment
    indent: int = 0
    """Width of the prefix of the text; wrapped lines are indented by it."""


class _Test(NamedTuple):
    """Result of the simulation without a possible cause."""

    text: str
    is_confirmed: bool | None
    """None without a verdict."""


class MomentList(Dialog[GoToMoment]):
    """Dialog that lists moments. Returns the chosen one, or None."""

    BINDINGS = bindings_of("dismiss", "view.anomalies", "view.why")

    def __init__(self, heading: str, choices: list[Choice]) -> None:
        super().__init__()
        self._heading = heading
        self._choices = choices

    def compose(self) -> ComposeResult:
        """Yield the heading, the list, and a hint on the keys."""
        with Vertical(id="dialog"):
            yield Static(self._heading, id="question", markup=False)
            if self._choices:
                yield OptionList(*(Option(self._wrap(choice.text, choice.indent)) for choice in self._choices))
            yield Static(f"{self._hint()}Esc back" if self._choices else "Esc back", id="hint", markup=False)

    def _hint(self) -> str:
        """Return the keys for the selected line."""
        return "Enter go   "

    def _wrap(self, text: Text, indent: int) -> Text:
        app = cast("App[object]", self.app)  # pyright: ignore[reportUnknownMemberType] (App without its parameter)
        width = min(_DIALOG_COLS, app.size.width * 9 // 10) - _DIALOG_FRAME_COLS
        return _wrap_with_indent(text, indent, width, app.console)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the moment chosen with Enter or a click."""
        self.dismiss(self._choices[event.option_index].target)

    def _replace(self, choices: list[Choice]) -> None:
        """Show other lines. The selected moment stays selected."""
        options = self.query_one(OptionList)
        selected = None if options.highlighted is None else self._choices[options.highlighted].target
        self._choices = choices
        options.set_options(Option(self._wrap(choice.text, choice.indent)) for choice in choices)
        options.highlighted = next((row for row, choice in enumerate(choices) if choice.target == selected), 0)


class _RuleRow(NamedTuple):
    """Row of `AnomalyList`."""

    rule: str
    anomaly: Anomaly | None = None
    """None for a silent or crashed run, which no event reports, and for a muted rule without a stored anomaly."""
    incident: Incident | None = None
    """Incident of the anomaly."""

    @property
    def prefix(self) -> str:
        """Return the mark of a symptom, which follows its cause."""
        return _SYMPTOM_PREFIX if self.incident is not None and self.anomaly is not self.incident.cause else ""


class AnomalyList(MomentList):
    """Dialog with all anomalies: first the active ones, then the ended ones, latest first, then other muted rules.

    The anomalies of one incident count as one. The symptoms stand below their cause.

    Args:
        view: State that all panels share. The dialog changes the muted rules and the seen anomalies.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("mute", "view.mute"), Binding("space", "mark_seen", "seen")]

    def __init__(self, view: ViewState) -> None:
        state = view.source.state
        ended = [anomaly for anomaly in state.anomalies.values() if anomaly.ended is not None][::-1]
        incidents = group_incidents([*state.active_anomalies(), *ended])
        self._incidents = sorted(incidents, key=lambda incident: not incident.active)
        self._rows = [_RuleRow(found.rule)] if (found := view.status.anomaly) else []
        self._rows += [
            _RuleRow(anomaly.found.rule, anomaly, incident)
            for incident in self._incidents
            for anomaly in incident.anomalies
        ]
        self._rows += [_RuleRow(rule) for rule in sorted(view.muted_rules - {row.rule for row in self._rows})]
        self._view = view
        choices = [
            Choice(
                self._describe(row),
                GoToMoment() if row.anomaly is None else anomaly_target(row.anomaly),
                len(row.prefix) + 2,
            )
            for row in self._rows
        ]
        super().__init__(self._count(), choices)

    def on_mount(self) -> None:
        """Update the duration of a silent run."""
        self.set_interval(_STATUS_INTERVAL_S, self._update)

    def _hint(self) -> str:
        return f"Enter go   {self._view.key_names['view.mute']} mute its rule   Space seen   "

    def action_mute(self) -> None:
        """Mute the rule of the selected row, or no longer."""
        if (row := self._selected) is not None:
            self._view.toggle_muted(row.rule)
            self._update()

    def action_mark_seen(self) -> None:
        """Mark the incident of the selected anomaly as seen, or as new."""
        if (row := self._selected) is not None and row.incident is not None:
            self._view.toggle_seen(row.incident)
            self._update()

    @property
    def _selected(self) -> _RuleRow | None:
        """Selected row; None if the list is empty."""
        index = self.query_one(OptionList).highlighted if self._rows else None
        return self._rows[index] if index is not None else None

    def _count(self) -> str:
        """Return the heading."""
        active = [incident for incident in self._incidents if incident.active]
        num_seen = sum(map(self._view.is_seen, active))
        seen = f" ({num_seen} seen)" if num_seen else ""
        num_active = len(active) + (self._view.status.anomaly is not None)
        heading = f"Anomalies: {num_active} active{seen}, {len(self._incidents) - len(active)} ended"
        return ", ".join(filter(None, (heading, self._view.muted_note)))

    def _update(self) -> None:
        """Draw the heading and all lines again."""
        self.query_one("#question", Static).update(self._count())
        if not self._rows:
            return
        options = self.query_one(OptionList)
        for index, row in enumerate(self._rows):
            prompt = self._wrap(self._describe(row), self._choices[index].indent)
            options.replace_option_prompt_at_index(index, prompt)

    def _describe(self, row: _RuleRow) -> Text:
        if row.anomaly is not None:
            return _describe_anomaly(self._view, row.anomaly, row.prefix)
        palette, is_muted = self._view.palette, row.rule in self._view.muted_rules
        if (found := self._view.status.anomaly) is not None and found.rule == row.rule:
            text = Text(SEVERITIES[found.severity].glyph, _style(palette, "dim" if is_muted else found.severity))
            text.append(f" {found.text}", _style(palette, "dim" if is_muted else "bright"))
        else:
            text = Text("  no anomaly of this rule", _style(palette, "dim"))
        return text.append(f"\n  {row.rule}{', muted' if is_muted else ''}", _style(palette, "dim"))


class RootCauseList(MomentList):
    """Dialog with the possible causes of the selected env's symptom, its signals, and the earlier anomalies.

    If the symptom is a drop of the score, a key tests the causes, by simulations of the episode without each of them. A
    confirmed cause stands first.

    Args:
        view: State that all panels share.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("test", "detail.without"), Binding("escape", "back")]

    def __init__(self, view: ViewState) -> None:
        state, env = view.source.state, view.selected_env
        self._view = view
        self._cause = find_root_cause(state, env)
        self._scale = state.score_scale
        # A copy, because a live run continues.
        self._env = msgspec.structs.replace(state.envs[env], trace=list(state.envs[env].trace))
        self._tests: dict[int, _Test] = {}
        """Finished tests, keyed by the step of the decision."""
        self._progress = ""
        super().__init__(_root_cause_heading(self._cause, env, self._tests), self._list())

    def on_mount(self) -> None:
        """Show the tests, and update them while the dialog is open."""
        if self._can_test:
            self._update()
            self.set_interval(_TEST_INTERVAL_S, self._update)

    @property
    def _can_test(self) -> bool:
        return self._cause.is_drop and bool(self._cause.candidates)

    @property
    def _candidates(self) -> list[PossibleCause]:
        """Possible causes, the confirmed ones first, the refuted ones last."""

        def rank(cause: PossibleCause) -> int:
            test = self._tests.get(cause.decision_step)
            return {True: 0, None: 1, False: 2}[test.is_confirmed if test is not None else None]

        return sorted(self._cause.candidates, key=rank)

    def _hint(self) -> str:
        key = self._view.key_names["detail.without"]
        return f"Enter go   {key} test   " if self._can_test else super()._hint()

    def action_test(self) -> None:
        """Compute the episode without each possible cause that was not tested; select the first in the env detail."""
        if not self._can_test:
            return
        first = self._candidates[0]
        self._view.selected_decision = first.round, first.env, first.decision_step
        untested = [step for cause in self._candidates if (step := cause.decision_step) not in self._tests]
        if untested:
            self.post_message(EffectNeeded(first.round, first.env, untested))

    def action_back(self) -> None:
        """Cancel the tests, else close the dialog."""
        if self._view.what_if.is_running:
            self._view.what_if.cancel()
        else:
            self.dismiss(None)

    def _update(self) -> None:
        """Draw the dialog again if there are new tests, or if their progress has changed."""
        tests, progress = self._find_tests(), self._view.what_if.progress_text
        if tests != self._tests:
            self._tests = tests
            self._replace(self._list())
        elif progress == self._progress:
            return
        self._progress = progress
        heading = _root_cause_heading(self._cause, self._env.env, tests)
        self.query_one("#question", Static).update("\n".join(filter(None, (heading, progress))))

    def _find_tests(self) -> dict[int, _Test]:
        symptom = self._cause.symptom
        known = self._view.what_if.known_effects(self._env, symptom.round) if symptom is not None else None
        tests: dict[int, _Test] = {}
        if symptom is None or known is None or known.unchanged is None:
            return tests
        mark = "" if known.unchanged.is_exact else APPROXIMATE
        for cause in self._cause.candidates:
            changed = known.without(cause.decision_step)
            if changed is None:
                continue
            verdict = judge_cause(known.unchanged.trajectory, changed.trajectory, symptom.step, self._scale)
            unknown = f"no verdict: without it, step {symptom.step} is not reached or has no such score"
            is_confirmed = None if verdict is None else verdict.is_confirmed
            tests[cause.decision_step] = _Test(f"{mark}{verdict or unknown}", is_confirmed)
        return tests

    def _list(self) -> list[Choice]:
        """Return the possible causes, the signals, the symptom, and the anomalies that are not the symptom.

        Signals before the first cause are no effect of it, so they are left out.
        """
        cause, palette, env, causes = self._cause, self._view.palette, self._env.env, self._candidates
        signals = [signal for signal in cause.signals if not causes or signal.step >= causes[0].decision_step]
        findings = [*signals, cause.symptom] if cause.symptom is not None else []
        choices = [
            Choice(self._describe_candidate(number, found), GoToMoment(found.seq, env=env), _FINDING_INDENT)
            for number, found in enumerate(causes, 1)
        ]
        choices += [
            Choice(_describe_finding(palette, finding), GoToMoment(finding.seq, env=env), _FINDING_INDENT)
            for finding in findings
        ]
        others = [("this episode", anomaly, "") for anomaly in cause.recent if cause.symptom is None]
        others += [("an earlier episode", anomaly, "; that network is gone") for anomaly in cause.earlier]
        for episode, anomaly, gone in others:
            ended = ", ended" if anomaly.ended is not None and not gone else ""
            text = f"{episode}: round {anomaly.last_round}, {strip_control(anomaly.found.rule)}{ended}{gone}"
            choices.append(Choice(Text(text, _style(palette, "dim")), anomaly_target(anomaly)))
        return choices

    def _describe_candidate(self, number: int, candidate: PossibleCause) -> Text:
        """Step of a decision, its place in the list, its text, and the result of its test."""
        palette = self._view.palette
        text = _step_column(palette, candidate.decision_step)
        text.append(f"{number} {strip_control(candidate.text)}", _style(palette, "bright" if number == 1 else "normal"))
        if test := self._tests.get(candidate.decision_step):
            text.append(f"\n{' ' * _FINDING_INDENT}{test.text}", _style(palette, "key" if test.is_confirmed else "dim"))
        return text


def _root_cause_heading(cause: RootCause, env: int, tests: Mapping[int, _Test]) -> str:
    if cause.symptom is not None:
        is_found = cause.candidates or cause.signals
        note = cause.note or ("" if is_found else "not found")
        refuted = [test for test in tests.values() if test.is_confirmed is False]
        if refuted and len(refuted) == len(cause.candidates):
            note = "no decision alone is the cause"
        return f"Likely cause, env {env:02d}, round {cause.symptom.round}" + (f": {note}" if note else "")
    if cause.recent:
        return f"Env {env:02d}: no cause found of the anomalies of this episode"
    return f"Env {env:02d} is healthy: nothing wrong in this episode"


def _describe_anomaly(view: ViewState, anomaly: Anomaly, prefix: str) -> Text:
    """Severity, text, rule, value, threshold and time of an anomaly, and whether it is muted or seen."""
    palette, found = view.palette, anomaly.found
    is_muted, is_seen = found.rule in view.muted_rules, found.seq in view.seen_anomalies
    is_dim = anomaly.ended is not None or is_muted or is_seen
    text = Text(prefix, _style(palette, "dim"))
    text.append(SEVERITIES[found.severity].glyph, _style(palette, "dim" if is_dim else found.severity))
    text.append(f" {strip_control(found.text)}", _style(palette, "dim" if is_dim else "bright"))
    limit = "" if found.threshold is None else f", limit {_format_value(found.threshold)}"
    since = f"\n{' ' * len(prefix)}  {found.rule}: {_format_value(found.value)}{limit}"
    since += f"; since {format_time_of_day(found.time)}"
    ended = "" if anomaly.ended is None else f", ended at {format_time_of_day(anomaly.ended)}"
    times = f", {anomaly.count} times" if anomaly.count > 1 else ""
    times += f", in {len(anomaly.envs)} envs" if len(anomaly.envs) > 1 else ""
    marks = (", muted" if is_muted else "") + (", seen" if is_seen else "")
    return text.append(f"{since}{ended}{times}{marks}", _style(palette, "dim"))


def _format_value(value: float) -> str:
    """Format a count as an integer, and any other value with three digits."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else compact_cell(value).text.strip()


def _describe_finding(palette: Palette, finding: Finding) -> Text:
    """Step, severity and text of a symptom or signal."""
    text = _step_column(palette, finding.step)
    text.append(SEVERITIES[finding.severity].glyph, _style(palette, finding.severity))
    return text.append(f" {strip_control(finding.text)}", _style(palette, "bright"))


def _step_column(palette: Palette, step: int) -> Text:
    return Text().append(f"step {step}".ljust(_FINDING_INDENT - 2), _style(palette, "dim"))


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
