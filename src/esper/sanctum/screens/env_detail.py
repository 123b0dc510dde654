"""The env screen: score, reward, slots, last step and lifecycle of the selected env."""

from __future__ import annotations

import math

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size

from esper.formatting import short_score_name, strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import (
    SCALE_TOO_SMALL,
    STAGES,
    Cell,
    is_scale_too_small,
    norm_cell,
    number_cell,
    percent_cell,
    points_cell,
    scale_cell,
    slot_labels,
)
from esper.sanctum.view import EffectNeeded, ExplanationNeeded
from esper.sanctum.widgets.chart import Chart, Curve, Quantity, XAxis, percent
from esper.sanctum.widgets.env_decision import EnvDecision
from esper.sanctum.widgets.env_lifecycle import EffectPanel, EnvEffect, EnvLifecycle
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line, Row
from esper.telemetry.events import EnvStepped, SlotReading
from esper.telemetry.sentences import describe_context
from esper.telemetry.state import EnvState

_ALPHA_BAR_COLS = 8
_SLOT_NAME_COLS = 7
"""Width of the name of a slot."""
_ALPHA_BAR_MIN_COLS = 96
"""Minimum width of the slots panel for a bar of alpha."""
_VALUE_NAME_COLS = 12
_VALUE_COLS = 8


class EnvDetailScreen(RunScreen):
    """The selected env: score and reward by step, slots, last step, lifecycle, and why the policy decided so."""

    CATEGORIES = (KeyCategory.DETAIL,)
    BINDINGS = bindings(KeyCategory.DETAIL)

    def body(self) -> ComposeResult:
        """Yield the charts, the slots, and the last step beside the lifecycle."""
        with Horizontal(id="env-charts"):
            yield EnvScoreChart(self.view)
            yield EnvRewardChart(self.view)
        yield EnvEffect(self.view)
        yield EnvSlots(self.view)
        with Horizontal(id="env-details"):
            yield EnvStep(self.view)
            yield RewardComponents(self.view)
            yield EnvLifecycle(self.view)
        yield EnvDecision(self.view)

    def update(self) -> None:
        """Update all panels. While the decision is shown, request an explanation of the last one."""
        has_effect = self.view.selected_step is not None or self.view.what_if.is_running
        self.set_class(has_effect, "-effect")
        super().update()
        if self.has_class("-decision"):
            self.post_message(ExplanationNeeded())

    def action_decision(self) -> None:
        """Show the explanation of the last decision in place of the details, or hide it."""
        self.toggle_class("-decision")
        if self.view.source.requests:
            self.view.source.requests.explanation_refusal = None
        self.update()

    def action_select_decision(self, decisions: int) -> None:
        """Move the selection by some decisions of the shown episode."""
        self.query_one(EnvLifecycle).move_selection(decisions)
        self.update()

    def action_without(self) -> None:
        """Compute the effect of the selected decision, by default of the last one, unless it is known."""
        lifecycle = self.query_one(EnvLifecycle)
        if self.view.selected_step not in lifecycle.decisions():
            lifecycle.move_selection(0)
        step, known = self.view.selected_step, lifecycle.known
        if step is None:
            self.notify("This episode has no decision yet.", severity="warning")
        elif known is None or known.without(step) is None:
            self._request_effect(step)
        self.update()

    def action_effects(self) -> None:
        """Compute the effects of all decisions of the episode."""
        self._request_effect(None)

    def _request_effect(self, step: int | None) -> None:
        self.post_message(EffectNeeded(self.view.source.state.round, self.view.selected_env, step))

    def action_back(self) -> None:
        """Cancel the computation of effects, else close the screen."""
        if self.view.what_if.is_running:
            self.view.what_if.cancel()
            self.update()
        else:
            self.dismiss()


class EnvScoreChart(EffectPanel):
    """Validation score by step of this episode, that of the ghost run, and that without the selected decision."""

    METRICS = ("score",)

    def draw_env(self, env: EnvState, size: Size) -> list[Line] | list[Row]:
        """Draw the chart; the border shows the env, its lane, and the best score."""
        self.panel_title = f"env {env.env:02d} on {strip_control(env.lane)} ─ {strip_control(self.state.score_name)} %"
        if env.context is not None:
            self.panel_title += f" ─ {strip_control(describe_context(env.context))}"
        best, run_best = max(filter(math.isfinite, env.scores), default=None), env.best_score
        self.panel_subtitle = f"best {percent_cell(best).text.strip()}"
        if run_best != best:
            self.panel_subtitle += f"  run best {percent_cell(run_best).text.strip()}"
        x_length, first = self.axis(env.scores)
        xs = range(first, first + len(env.scores))
        curves = [Curve(self.state.score_name, xs, env.scores)]
        ghost = self.ghost
        if ghost is not None and ghost.scores:
            self.panel_subtitle += f"  ghost {percent_cell(ghost.scores[-1]).text.strip()}"
            curves.append(Curve("ghost", range(first, first + len(ghost.scores)), ghost.scores, "dim"))
        known, step = self.known, self.view.selected_step
        without = known.without(step) if known is not None and step is not None else None
        if without is not None:
            scores = without.trajectory.scores
            curves.append(Curve("without", range(1, len(scores) + 1), scores, "series1"))
            self.panel_subtitle += f"  without {percent_cell(without.trajectory.final_score).text.strip()}"
        x_axis = XAxis("step", first, first + x_length - 1)
        chart = Chart(quantity=percent(self.state.score_name), x_axis=x_axis, curves=curves)
        return chart.lines(self.view.palette, *size)


class EnvRewardChart(EnvPanel):
    """Reward by step of this episode."""

    METRICS = ("reward",)

    PANEL_TITLE = "reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line] | list[Row]:
        """Draw the chart with an axis around zero; the border shows the return so far."""
        total = number_cell(env.episode_return, 3, 3, signed=True).text.strip()
        self.panel_subtitle = f"return {total}" if env.rewards else None
        x_length, first = self.axis(env.rewards)
        chart = Chart(
            quantity=Quantity("reward"),
            x_axis=XAxis("step", first, first + x_length - 1),
            curves=[Curve("reward", range(first, first + len(env.rewards)), env.rewards)],
            include=0.0,
        )
        return chart.lines(self.view.palette, *size)


class EnvSlots(EnvPanel):
    """One line per slot. The contribution is in percentage points, ± its standard error."""

    METRICS = ("stage", "contribution", "gradient norm")

    def preferred_height(self) -> int:
        """Return one line for the heading, and one per slot."""
        return 1 + (len(self.state.started.slot_names) if self.state.started else 0)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw the heading and the slots."""
        assert self.state.started is not None
        score = strip_control(self.state.score_name)
        self.panel_title = f"slots ─ contribution: {score} lost without it, pp"
        wide = size.width >= _ALPHA_BAR_MIN_COLS
        head = self.line(" slot    stage          blueprint  ", "head")
        head.append(" " * (_ALPHA_BAR_COLS + 1) if wide else "").append(
            "alpha  contribution ± norm   params  age", "head"
        )
        lines = [head]
        for index, label in enumerate(slot_labels(self.state.started.slot_names, _SLOT_NAME_COLS)):
            line = self.line(" ").append_fitted(label, _SLOT_NAME_COLS, "dim").append(" ")
            reading = env.stepped.slot(index) if env.stepped else None
            lines.append(line.append("–", "absent") if reading is None else _draw_slot(line, reading, wide=wide))
        return lines


def _draw_slot(line: Line, slot: SlotReading, *, wide: bool) -> Line:
    symbol = STAGES[slot.stage]
    line.append(symbol.glyph, slot.stage).append(" ").append_fitted(slot.stage, 13, slot.stage)
    if slot.blueprint is None:
        return line
    line.append_fitted(strip_control(slot.blueprint), 10, "normal").append(" ")
    if wide:
        line.append_bar(slot.alpha, _ALPHA_BAR_COLS, slot.stage).append(" ")
    line.append_cell(number_cell(slot.alpha, 2, 2, fixed=True)).append("  ")
    line.append_cell(points_cell(slot.contribution))
    if slot.contribution is None:
        line.append(" " * 8)
    else:
        line.append(" ± ", "dim").append_cell(points_cell(slot.contribution_se, is_error=True), "dim").append(" ")
    return line.append_cell(norm_cell(slot.grad_norm)).append(f"{slot.parameters:>9,}{slot.age:>5}")


class EnvStep(EnvPanel):
    """Op, losses, gradient norm and loss scale of the last step."""

    METRICS = ("score", "gradient norm", "loss scale")

    PANEL_TITLE = "last step"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw one line per value, in two columns if one does not fit."""
        step = env.stepped
        if step is None:
            return self.message("no step yet in this round")
        target = f" {strip_control(step.target)}" if step.target else ""
        lines = [self.line(" op ", "dim").append(f"{strip_control(step.op)}{target}", "bright")]
        values = _values(step, self.state.score_name)
        columns = 2 if len(values) >= size.height and size.width >= 2 * (_VALUE_NAME_COLS + _VALUE_COLS) else 1
        rows = -(-len(values) // columns)
        for row in range(rows):
            line = self.line()
            for name, cell in values[row::rows]:
                line.append(" ").append_fitted(name, _VALUE_NAME_COLS, "dim").append_cell(cell)
            lines.append(line)
        return lines


def _values(step: EnvStepped, score: str) -> list[tuple[str, Cell]]:
    """Name and value of each quantity of a step, most important first."""
    values = [
        ("loss", number_cell(step.loss, 3, 3)),
        ("train loss", number_cell(step.train_loss, 3, 3)),
        (f"train {strip_control(short_score_name(score))} %", percent_cell(step.train_score)),
        ("host norm", norm_cell(step.grad_norm)),
        ("op chance", number_cell(step.op_probability, 3, 3)),
        ("value", number_cell(step.value, 3, 3)),
        ("params ×", number_cell(step.parameter_ratio, 3, 3)),
        ("loss scale", scale_cell(step.loss_scale)),
    ]
    if is_scale_too_small(step.loss_scale):
        values.append(("", Cell(SCALE_TOO_SMALL, "error")))
    values += [(strip_control(name), number_cell(value, 3, 3)) for name, value in step.metrics.items()]
    return values + [
        (f"{strip_control(owner)} overflow", Cell(f"{count:>3}", "warning"))
        for owner, count in step.overflows_by_owner.items()
    ]


class RewardComponents(EnvPanel):
    """Components of the last reward, the largest ones if not all fit, and their sum."""

    METRICS = ("reward",)

    PANEL_TITLE = "reward components"

    def _name_of(self, part: str) -> str:
        """Return the name of a component, with that of the task's score in place of "score"."""
        return strip_control(self.state.score_name if part == "score" else part).replace("_", " ")

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw one line per component, and the sum."""
        step = env.stepped
        if step is None:
            return [self.line(" –", "absent")]
        name_width = max(size.width - 9, 4)
        largest = sorted(step.reward_parts, key=lambda part: -abs(step.reward_parts[part]))[: size.height - 1]
        lines = [
            self.line(" ")
            .append_fitted(self._name_of(part), name_width, "dim")
            .append_cell(number_cell(value, 3, 3, signed=True))
            for part, value in step.reward_parts.items()
            if part in largest
        ]
        total = self.line(" ").append_fitted("sum", name_width)
        return [*lines, total.append_cell(number_cell(step.reward, 3, 3, signed=True), "bright")]
