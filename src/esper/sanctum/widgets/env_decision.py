"""Panel about the decisions of an episode: the selected one with its effect, and the list of all."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size

from esper.common.decisions import WAIT, Decision, describe_decision, label_decision
from esper.common.formatting import APPROXIMATE, strip_control
from esper.recordings.effects.results import Effect, Simulation
from esper.recordings.events import GateCheck, GateRefused
from esper.recordings.events.sentences import describe_transition
from esper.recordings.state.series import StepTrace
from esper.recordings.state.state import EnvState
from esper.sanctum.symbols import (
    SEVERITIES,
    STAGES,
    Cell,
    compact_cell,
    ellipsise,
    gain_cell,
    head_label,
    percent_cell,
    return_cell,
    score_text,
    wrap_cells,
)
from esper.sanctum.view import ViewState
from esper.sanctum.what_if import KnownEffects
from esper.sanctum.widgets.env_panel import EnvPanel, op_mark
from esper.sanctum.widgets.panel import Line

_HEAD_COLS, _SHORT_HEAD_COLS = 13, 10
"""Width of the name of a head, in a wide and in a narrow panel."""
_PROBABILITY_COLS = 8
"""Width of a probability in %, with the space before it."""
_MIN_LIST_ROWS = 3
"""Minimum number of rows for the list with its heading."""
_INDENT = 7
"""Columns before the text of a decision in the list."""
_WIDE_COLS = 42
"""Minimum width for long names of heads, and for effects on the return."""
_POINTS_COLS, _RETURN_COLS = 8, 8


class _Text(NamedTuple):
    """A text that may need several lines."""

    glyph: str
    glyph_role: str
    text: str
    role: str = "normal"


class EnvDecision(EnvPanel):
    """The decision of the selected step, by default the last one, and below it the list of all decisions.

    The first part has the choices, the effect, the transitions and the gates.
    """

    METRICS = ("decision", "effect")

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._step_by_line: dict[int, int] = {}
        """Step of the decision on each line of the list."""

    def cache_key(self) -> Hashable:
        """Return the shown step, the decisions, transitions and gates, and the known effects."""
        env, step = self.env, self._step()
        if env is None:
            return None
        is_recorded = step is not None and bool(env.trace) and env.trace[-1].step >= step
        gates, what_if = tuple(refusal.seq for refusal in env.refusals.values()), self.view.what_if
        shown = env.env, self.view.selected_decision, self.state.round, step, is_recorded, tuple(self.decisions())
        return *shown, len(env.moves), gates, what_if.version, what_if.progress_text

    def _step(self) -> int | None:
        """Return the shown step: the selected one, else that of the last decision, else the last; None without one."""
        if self.view.selected_step is not None:
            return self.view.selected_step
        return max(self.decisions() or [step.step for step in self.trace()], default=None)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw the decision, as far as it fits, and the list if there is room for a part of it."""
        lines, rows = self._content(env, size), self._list(size.width)
        room = size.height - len(lines)
        self._step_by_line = {}
        if room < 0:
            return [*lines[: size.height - 1], self.line("   …", "dim")]
        if room < _MIN_LIST_ROWS or not rows:
            return lines
        lines += [self.line()] * (room > len(rows) + 1)
        lines.append(self._heading(size.width))
        room = size.height - len(lines)
        steps, selected = list(rows), self.view.selected_step
        first = 0 if self._effects else max(len(steps) - room, 0)
        if selected in rows:
            first = min(first, max(steps.index(selected) - room // 2, 0))
        visible = steps[first : first + room]
        self._step_by_line = {len(lines) + index: step for index, step in enumerate(visible)}
        return [*lines, *(rows[step] for step in visible)]

    def _content(self, env: EnvState, size: Size) -> list[Line]:
        """Return the lines about the decision; if they do not all fit, its choices are the last ones."""
        width = size.width
        selected, trace, decisions = self.view.selected_step, self.trace(), self.decisions()
        progress: list[_Text] = []
        if text := self.view.what_if.progress_text:
            progress = [_Text(" ", "normal", f"{text}   {self.view.key_names['detail.back']} cancel", "key")]
        step = self._step()
        self.panel_title = "decision"
        if step is None:
            return [*self.wrapped_message("no step yet in this round", width), *self._wrapped(progress, width)]
        if step in decisions:
            self.panel_title = f"{'decision' if selected is not None else 'last decision'} ─ step {step}"
        else:
            self.panel_title = f"step {step}"
        found = next((recorded for recorded in trace if recorded.step == step), None)
        if found is None:
            lines = self.wrapped_message("this step is after this moment, or was not recorded", width)
            return [*lines, *self._wrapped(progress, width)]
        decision = decisions.get(step)
        glyph, role = op_mark(decision.op) if decision is not None else (" ", "normal")
        words = strip_control(describe_decision(decision)) if decision is not None else WAIT
        lines, choices = [*self._wrapped([_Text(glyph, role, words, "bright")], width)], [*self._choices(found, width)]
        effect = self._effect(step, self.known) if decision is not None else ()
        texts = [*(_Text(" ", "normal", text, role) for text, role in effect), *progress]
        further = [*self._wrapped([*texts, *self._events(env, step, decision or Decision(WAIT))], width)]
        fits = len(lines) + len(choices) + len(further) <= size.height
        return [*lines, *choices, *further] if fits else [*lines, *further, *choices]

    def _choices(self, trace: StepTrace, width: int) -> Iterator[Line]:
        """Yield the choice of each head, with its probability if the policy reports one."""
        rows = [("op", trace.op, trace.probability)]
        rows += [(head, choice.choice, choice.probability) for head, choice in trace.decision.items()]
        if trace.probability is None and not trace.decision:  # the op is in the line above
            return
        head_cols = _HEAD_COLS if width >= _WIDE_COLS else _SHORT_HEAD_COLS
        for head, choice, probability in rows:
            label = head_label(head, short=len(head_label(head)) >= head_cols)
            line = self.line("   ").append_fitted(label, head_cols, "dim")
            room = max(width - line.width - _PROBABILITY_COLS, 0)
            line.append_fitted(strip_control(choice), room).append(" ")
            if probability is not None:
                line.append_cell(percent_cell(probability)).append(" %", "dim")
            yield line

    def _events(self, env: EnvState, step: int, decision: Decision) -> Iterator[_Text]:
        """Yield the transitions of the step that the decision did not make itself, and the gates that refuse a seed."""
        for move in env.moves:
            if move.step == step and (decision.slot, decision.op) != (move.slot, move.reason):
                yield _Text(STAGES[move.after].glyph, move.after, strip_control(describe_transition(move)))
        for refusal in env.refusals.values():
            if self.view.selected_step is None or refusal.step <= step:
                yield _Text(SEVERITIES["warning"].glyph, "warning", _describe_refusal(refusal))

    def _wrapped(self, texts: list[_Text], width: int) -> Iterator[Line]:
        for text in texts:
            for index, row in enumerate(wrap_cells(text.text, max(width - 3, 1))):
                glyph, role = (text.glyph, text.glyph_role) if index == 0 else (" ", "normal")
                yield self.line(" ").append(glyph, role).append(" ").append(row, text.role)

    def _effect(self, step: int, known: KnownEffects | None) -> Iterator[tuple[str, str]]:
        """Yield the end of the episode without the decision, or the keys that compute it."""
        changed = known.without(step) if known is not None else None
        if known is None or known.unchanged is None or changed is None:
            keys = self.view.key_names
            if not self.view.what_if.is_running:
                yield f"press {keys['detail.without']} for its effect, {keys['detail.effects']} for all effects", "dim"
            return
        unchanged, without = known.unchanged.trajectory, changed.trajectory
        scores = (score_text(play.final_score, self.state.score_scale) for play in (without, unchanged))
        returns = (return_cell(play.net_return).text.strip() for play in (without, unchanged))
        text = f"without it: {' instead of '.join(scores)}, return {' instead of '.join(returns)}"
        if without.broke_down:
            text += f"; breakdown in step {without.num_steps}"
        if _is_partial(self, known.unchanged):
            text += f"; up to step {known.unchanged.steps}"
        yield text, "bright"
        if not known.unchanged.is_exact:
            yield f"{APPROXIMATE} {known.unchanged.reproduction}", "warning"

    def _list(self, width: int) -> dict[int, Line]:
        """Return the row of each decision, keyed by step: the best first if effects are known, else by step.

        The border has what limits the effects.
        """
        known, decisions, effects = self.known, self.decisions(), self._effects
        if effects:
            gain = self.state.score_scale.gain
            order = sorted(decisions, key=lambda step: -gain(effects[step].score) if step in effects else math.inf)
            decisions = {step: decisions[step] for step in order}
        notes: list[str] = []
        if known is not None and known.effects and known.unchanged is not None:
            notes = [] if known.unchanged.is_exact else [f"{APPROXIMATE} approximate"]
            if _is_partial(self, known.unchanged):
                notes.append(f"up to step {known.unchanged.steps}")
        self.panel_subtitle = "  ".join(notes) or None
        return {step: self._row(step, decision, known, width) for step, decision in decisions.items()}

    @property
    def _effects(self) -> Mapping[int, Effect]:
        """Known effects of the decisions, keyed by step."""
        return self.known.effects if self.known is not None else {}

    def _heading(self, width: int) -> Line:
        if not self._effects:
            return self.line(" decisions", "head")
        unit = self.state.score_scale.difference_unit or "score"
        columns = unit.rjust(_POINTS_COLS) + ("return".rjust(_RETURN_COLS) if width >= _WIDE_COLS else "")
        return self.line().append_fitted(" decisions by effect", width - len(columns), "head").append(columns, "head")

    def _row(self, step: int, decision: Decision, known: KnownEffects | None, width: int) -> Line:
        is_wide, is_selected = width >= _WIDE_COLS, step == self.view.selected_step
        effects = known.effects if known is not None else {}
        line = Line(self.view.palette, selected=is_selected).append("▸" if is_selected else " ", "key")
        glyph, role = op_mark(decision.op)
        line.append(f"{step:>3} ", "dim").append(glyph, role).append(" ")
        # The glyph says that the seed is planted.
        text = strip_control(label_decision(decision))
        if not effects or known is None:
            return line.append(ellipsise(text, width - _INDENT), "bright")
        text_cols = width - line.width - _POINTS_COLS - (_RETURN_COLS if is_wide else 0)
        line.append_fitted(text, text_cols, "bright")
        effect = effects.get(step)
        mark = "" if known.unchanged and known.unchanged.is_exact else APPROXIMATE
        cells = [(gain_cell(effect.score if effect else None, self.state.score_scale), _POINTS_COLS)]
        if is_wide:
            cells.append((return_cell(effect.net_return if effect else None), _RETURN_COLS))
        for cell, columns in cells:
            line.append_cell(Cell(f"{mark if effect else ''}{cell.text.strip()}".rjust(columns), cell.role))
        return line

    def on_click(self, event: Click) -> None:
        """Select the clicked decision."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y in self._step_by_line:
            self.select_step(self._step_by_line[offset.y])


def _describe_refusal(refusal: GateRefused) -> str:
    failed = "; ".join(_describe_check(check) for check in refusal.checks if not check.passed)
    gate = refusal.gate.removeprefix("G")
    return f"gate {gate} refuses {strip_control(refusal.slot)} since step {refusal.step}: {failed}"


def _describe_check(check: GateCheck) -> str:
    """Return name, value and threshold of a failed check."""
    threshold = "" if check.threshold is None else f", needs {compact_cell(check.threshold).text}"
    return strip_control(f"{check.name} {compact_cell(check.value).text}{threshold}")


def _is_partial(panel: EnvPanel, unchanged: Simulation) -> bool:
    """Return True if an episode was simulated before it had ended."""
    return panel.state.started is not None and unchanged.steps < panel.state.started.steps
