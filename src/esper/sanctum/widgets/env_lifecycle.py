"""Panels about the decisions of an episode: the list of decisions and stage transitions, and the effect of one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from textwrap import wrap
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size

from esper.effects.change import describe_choices
from esper.effects.episode import GERMINATE, WAIT, choices_of
from esper.effects.report import APPROXIMATE
from esper.effects.results import Simulation
from esper.formatting import strip_control
from esper.sanctum.symbols import (
    SEVERITIES,
    STAGES,
    Cell,
    compact_cell,
    ellipsise,
    number_cell,
    percent_cell,
    points_cell,
    wrap_cells,
)
from esper.sanctum.view import ViewState
from esper.sanctum.what_if import KnownEffects
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import GateCheck, GateRefused, SeedMoved
from esper.telemetry.sentences import describe_transition
from esper.telemetry.state import EnvState

_INDENT = 7
"""Columns before the further rows of a refusal or transition."""
_WIDE_COLS = 52
"""Minimum width for whole decisions and for effects on the return."""
_MIN_ROWS = 4
"""Minimum number of rows for decisions while one is selected."""
_POINTS_COLS, _RETURN_COLS = 8, 8
_STAGE_OF_OP = {
    GERMINATE: "germinated",
    "advance": "blending",
    "set_alpha": "blending",
    "cull": "culled",
    "fossilize": "fossilized",
}
"""Stage whose glyph marks a decision, keyed by op."""


class _Row(NamedTuple):
    """A decision or a stage transition, with its lines."""

    step: int
    lines: list[Line]
    is_decision: bool = False


class EffectPanel(EnvPanel):
    """Base class of a panel about the selected env that depends on known effects."""

    def cache_key(self) -> Hashable:
        """Return the key of the env, and those of the known effects and of the selected decision."""
        return super().cache_key(), self.view.what_if.version, self.view.selected_decision

    @property
    def known(self) -> KnownEffects | None:
        """Known effects of the shown episode; None if it was not read."""
        return self.view.what_if.known_effects(self.env, self.state.round) if self.env is not None else None


class EnvLifecycle(EffectPanel):
    """The decisions and stage transitions of this episode, and below them the gates that refuse one now."""

    METRICS = ("lifecycle", "effect")

    PANEL_TITLE = "lifecycle"

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._steps_by_line: list[int | None] = []
        """Step of the decision on each visible line; None for other lines."""

    def decisions(self) -> dict[int, Mapping[str, str]]:
        """Return the decisions of the shown episode so far, except to wait, keyed by step."""
        env, known = self.env, self.known
        if env is None or not env.trace:
            return {}
        earlier = known.episode.steps[: env.trace[0].step - 1] if known is not None else []
        chosen = {step.step: choices_of(step) for step in (*earlier, *env.trace)}
        return {step: choices for step, choices in chosen.items() if choices["op"] != WAIT}

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw the rows that fit, and each refusing gate with its failed checks."""
        known = self.known
        effects = known.effects if known is not None else {}
        self._draw_border(known if effects else None, size)
        selected, lines = self.view.selected_step, list[Line]()
        refusals = [line for refusal in env.refusals.values() for line in self._refusal(refusal, size.width)]
        if selected is not None and size.height - len(refusals) < _MIN_ROWS:
            refusals = []  # the rows beside the selected decision are more important
        visible = max(size.height - len(refusals), 0)
        steps: list[int | None] = []
        for row in self._rows(env, known, size.width):
            lines += row.lines
            steps += [row.step if row.is_decision else None] * len(row.lines)
        if not lines and not refusals:
            return self.message("no seed in this episode")
        first = max(len(lines) - visible, 0)
        if selected is not None and selected in steps:
            first = min(first, max(steps.index(selected) - visible // 2, 0))
        self._steps_by_line = steps[first : first + visible]
        return lines[first : first + visible] + refusals

    def _draw_border(self, known: KnownEffects | None, size: Size) -> None:
        """Write the unit of the effects into the border, and what limits them."""
        self.panel_title, self.panel_subtitle = self.PANEL_TITLE, None
        if known is None or known.unchanged is None:
            return
        self.panel_title += " ─ effect: pp, return" if size.width >= _WIDE_COLS else " ─ effect, pp"
        notes = [] if known.unchanged.is_exact else [f"{APPROXIMATE} approximate"]
        if _is_partial(self, known.unchanged):
            notes.append(f"up to step {known.unchanged.steps}")
        self.panel_subtitle = "  ".join(notes) or None

    def _rows(self, env: EnvState, known: KnownEffects | None, width: int) -> Iterator[_Row]:
        """Yield each decision, followed by the transitions of its step that it did not make itself, in order."""
        decisions = self.decisions()
        moves: dict[int, list[SeedMoved]] = {}
        for move in env.moves:
            made = decisions.get(move.step, {})
            if (made.get("slot"), made.get("op")) != (move.slot, move.reason):
                moves.setdefault(move.step, []).append(move)
        for step in sorted({*decisions, *moves}):
            if step in decisions:
                yield _Row(step, [self._decision(step, decisions[step], known, width)], is_decision=True)
            for move in moves.get(step, ()):
                yield _Row(step, self._transition(move, width))

    def _decision(self, step: int, choices: Mapping[str, str], known: KnownEffects | None, width: int) -> Line:
        is_wide, is_selected = width >= _WIDE_COLS, step == self.view.selected_step
        effects = known.effects if known is not None else {}
        line = Line(self.view.palette, selected=is_selected).append("▸" if is_selected else " ", "key")
        stage = _STAGE_OF_OP.get(choices["op"])
        line.append(f"{step:>3} ", "dim").append(STAGES[stage].glyph if stage else " ", stage or "normal").append(" ")
        text = strip_control(describe_choices(choices))
        if not is_wide:  # the glyph says that the seed is planted
            text = text.removeprefix(f"{GERMINATE} ") if choices["op"] == GERMINATE else text.replace(" in ", " ", 1)
        if not effects or known is None:
            return line.append(ellipsise(text, width - _INDENT), "bright")
        text_cols = width - line.width - _POINTS_COLS - (_RETURN_COLS if is_wide else 0)
        line.append_fitted(text, text_cols, "bright")
        effect = effects.get(step)
        mark = "" if known.unchanged and known.unchanged.is_exact else APPROXIMATE
        cells = [(points_cell(effect.score if effect else None), _POINTS_COLS)]
        if is_wide:
            cells.append(
                (number_cell(effect.net_return if effect else None, 2, 3, signed=True, fixed=True), _RETURN_COLS)
            )
        for cell, columns in cells:
            shown = Cell(f"{mark if effect else ''}{cell.text.strip()}".rjust(columns), cell.role)
            line.append_cell(shown)
        return line

    def _transition(self, move: SeedMoved, width: int) -> list[Line]:
        """Draw a transition as a phrase, on several lines if it does not fit on one and no decision is selected."""
        text = strip_control(describe_transition(move))
        first, *further_rows = wrap(text, max(width - _INDENT, 1))
        line = self.line(f" {move.step:>3} ", "dim").append(STAGES[move.after].glyph, move.after)
        if self.view.selected_step is not None:  # leave room for decisions
            return [line.append(f" {ellipsise(text, width - _INDENT)}")]
        line.append(" ").append(first)
        return [line, *(self.line(" " * _INDENT + row, "dim") for row in further_rows)]

    def _refusal(self, refusal: GateRefused, width: int) -> list[Line]:
        subject = f"gate {refusal.gate.removeprefix('G')} refuses {strip_control(refusal.slot)}"
        failed = "; ".join(_describe_check(check) for check in refusal.checks if not check.passed)
        first, *further_rows = wrap(f"{subject}: {failed}", max(width - _INDENT, len(subject) + 1))
        line = self.line(f" {refusal.step:>3} ", "dim").append(f"{SEVERITIES['warning'].glyph} ", "warning")
        line.append(subject, "bright").append(first[len(subject) :])
        return [line, *(self.line(" " * _INDENT + text) for text in further_rows)]

    def on_click(self, event: Click) -> None:
        """Select the clicked decision."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._steps_by_line):
            self.select(self._steps_by_line[offset.y])

    def move_selection(self, decisions: int) -> None:
        """Select the decision that is so many decisions after the selected one; without one, the last decision."""
        steps = list(self.decisions())
        if not steps:
            return
        selected = self.view.selected_step
        index = steps.index(selected) + decisions if selected in steps else len(steps) - 1
        self.select(steps[min(max(index, 0), len(steps) - 1)])

    def select(self, step: int | None) -> None:
        """Select the decision of a step; None to change nothing."""
        if step is not None:
            self.view.selected_decision = self.state.round, self.view.selected_env, step


def _describe_check(check: GateCheck) -> str:
    """Name, value and threshold of a failed check."""
    threshold = "" if check.threshold is None else f", needs {compact_cell(check.threshold).text}"
    return strip_control(f"{check.name} {compact_cell(check.value).text}{threshold}")


def _is_partial(panel: EnvPanel, unchanged: Simulation) -> bool:
    """Return True if an episode was simulated before it had ended."""
    return panel.state.started is not None and unchanged.steps < panel.state.started.steps


class EnvEffect(EffectPanel):
    """The progress of the computation, and the end of the episode without the selected decision."""

    METRICS = ("effect",)

    def cache_key(self) -> Hashable:
        """Return the key of the known effects, and the progress."""
        return super().cache_key(), self.view.what_if.progress_text

    def preferred_height(self) -> int:
        """Return the number of rows of the sentences."""
        return len(self._sentences(self.screen.size.width - 2))

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:  # noqa: ARG002 (the sentences are about `self.env`)
        """Draw the sentences."""
        return [self.line(text, role) for text, role in self._sentences(size.width)]

    def _sentences(self, width: int) -> list[tuple[str, str]]:
        """Return the rows with their roles."""
        step, sentences = self.view.selected_step, list[tuple[str, str]]()
        if progress := self.view.what_if.progress_text:
            sentences.append((f"{progress}   {self.view.key_names['detail.back']} cancel", "key"))
        decision = self.screen.query_one(EnvLifecycle).decisions().get(step) if step is not None else None
        if step is not None and decision is not None:
            sentences += self._effect(step, strip_control(describe_choices(decision)), self.known)
        return [(row, role) for text, role in sentences for row in wrap_cells(text, width)]

    def _effect(self, step: int, decision: str, known: KnownEffects | None) -> list[tuple[str, str]]:
        changed = known.without(step) if known is not None else None
        if known is None or known.unchanged is None or changed is None:
            keys = self.view.key_names
            text = f"Step {step}, {decision}: press {keys['detail.without']} to compute the episode without it"
            return [(f"{text}, {keys['detail.effects']} for all decisions.", "dim")]
        unchanged, without = known.unchanged.trajectory, changed.trajectory
        scores = (f"{percent_cell(play.final_score).text.strip()} %" for play in (without, unchanged))
        returns = (
            number_cell(play.net_return, 2, 3, signed=True, fixed=True).text.strip() for play in (without, unchanged)
        )
        text = f"Step {step} without it: {' instead of '.join(scores)}, return {' instead of '.join(returns)}"
        if without.broke_down:
            text += f"; breakdown in step {len(without.rewards)}"
        if _is_partial(self, known.unchanged):
            text += f"; up to step {known.unchanged.steps}"
        sentences = [(text, "bright")]
        if not known.unchanged.is_exact:
            sentences.append((f"{APPROXIMATE} {known.unchanged.reproduction}", "warning"))
        return sentences
