"""The story of an episode: its score with the decisions as marks, its slots as lanes below, and its rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from textual.events import Click, Leave
from textual.geometry import Size

from esper.common.decisions import WAIT, Decision
from esper.common.formatting import format_return, strip_control
from esper.common.plots.chart import Chart, ChartMark, Curve, Quantity, XAxis, score_quantity
from esper.common.plots.grid import Y_AXIS_COLUMNS
from esper.common.plots.sparkline import LEVEL_CHARS
from esper.common.score_scale import ScoreScale
from esper.recordings.candidates.candidates import describe_candidate
from esper.recordings.events.sentences import describe_context
from esper.recordings.history.timeline import MarkKind
from esper.recordings.state.series import StepTrace
from esper.recordings.state.state import EnvState
from esper.sanctum.symbols import (
    MARK_SYMBOLS,
    STAGE_BY_LETTER,
    STAGES,
    Cell,
    ellipsise,
    gain_cell,
    lost_without,
    norm_cell,
    number_cell,
    return_cell,
    score_cell,
    score_heading,
    slot_labels,
)
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_panel import EnvPanel, EpisodePanel, ascending_steps, op_mark, step_axis
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.population_score import reference_curves, reference_marks

_AXIS_NAME = "step"
"""Name of the x axis of charts over an episode."""
_NO_ALPHA = "╌"
"""Character of a lane in a stage without alpha."""
_MAX_LANE_ROWS = 3
_ROWS_PER_LANE_ROW = 6
"""Rows of the screen for each line of all lanes together, where a lane may have several lines."""
_MAX_FRACTION = 0.4
"""Maximum height of all lanes, fraction of the screen."""


class StepChart(ChartPanel, EpisodePanel):
    """Base class of a chart over the steps of the episode, whose cursor is the selected step."""

    def cache_key(self) -> Hashable:
        """Return the key of the episode, and the choices of the user."""
        return EpisodePanel.cache_key(self), self.chart_key

    def cursor_on(self, x_axis: str) -> float | None:
        """Return the position of the pointer if it is on a chart, else the selected step."""
        pointer = super().cursor_on(x_axis)
        return pointer if pointer is not None else self.view.selected_step

    def place_cursor(self, x_axis: str, x: float | None) -> None:
        """Select a step: that of a decision if one is in the same column of the plot."""
        self.charts.set_cursor(x_axis, None)
        if x is None:
            self.select_step(None)
            return
        column = self.column_of(x)
        near = [step for step in self.decisions() if column is not None and self.column_of(step) == column]
        self.select_step(min(near, key=lambda step: abs(step - x), default=round(x)))

    def on_leave(self, event: Leave) -> None:
        """Return the cursor from the pointer to the selected step."""
        if event.node is self:
            self.charts.set_cursor(_AXIS_NAME, None)
            self.update()

    def cursor_column(self) -> int | None:
        """Return the column of the plot, from 0, with the cursor; None if it is not visible."""
        cursor = self._shown.look.cursor if self._shown is not None else None
        column = self.column_of(cursor) if cursor is not None else None
        return None if column is None else column - self.plot_columns().start

    def x_axis(self, trace: Sequence[StepTrace]) -> XAxis:
        """Return the x axis for these steps of the episode."""
        assert self.state.started is not None
        length, first = step_axis(self.state.started.steps, trace[-1].step if trace else 0)
        start, last = min([first, *(step.step for step in trace[:1])]), first + length - 1
        return XAxis(_AXIS_NAME, start, last, f"step of round {self.state.round}")


class EnvStory(StepChart):
    """Score by step with each decision as a mark, the ghost run, and the episode without the selected decision, and
    without growth."""

    METRICS = ("story", "score", "effect")

    is_enlarged = False
    """True on a screen without other panels, where Enter returns."""

    def chart(self) -> Chart | None:
        """Return the chart; None before the run has started."""
        env = self.env
        if env is None:
            return None
        trace = self.trace()
        name = strip_control(self.state.score_name)
        curves = [Curve(name, [step.step for step in trace], [step.score for step in trace])]
        if self.ghost is not None and self.ghost.trace:
            ghost = ascending_steps(self.ghost)
            curves.append(Curve("ghost", [step.step for step in ghost], [step.score for step in ghost], "dim", True))
        if without := self._scores_without():
            curves.append(Curve("without", range(1, len(without) + 1), without, "series1", True))
        marks = self._marks(env, trace)
        if (host := self.view.what_if.reference_of(env.env, self.state.round)) is not None:
            scores = dict(enumerate(host.scores, 1))
            curves += reference_curves(scores, is_exact=host.is_exact)
            marks += reference_marks(scores)
        quantity = score_quantity(name, self.state.score_scale)
        return Chart(quantity=quantity, x_axis=self.x_axis(trace), curves=curves, marks=marks)

    def name_in_title(self) -> str:
        """Return the env, its lane, the score, and the context or the candidate of a growth."""
        env = self.env
        if env is None:
            return ""
        score = score_heading(self.state.score_name, self.state.score_scale)
        title = f"env {env.env:02d} on {strip_control(env.lane)} ─ {score}"
        search = self.state.search
        if search is not None and (training := search.training.get(env.env)) is not None:
            idle = self.state.idle_reason(env)
            title += f" ─ {strip_control(describe_candidate(training.candidate))}" + (f", {idle}" if idle else "")
        return title if env.context is None else f"{title} ─ {strip_control(describe_context(env.context))}"

    def summary(self, chart: Chart) -> str:
        """Return the best score, and the last one of the ghost, without the selected decision, and without growth."""
        assert self.env is not None
        scale = self.state.score_scale
        best = scale.best_of(filter(math.isfinite, self.env.scores))
        texts = [f"best {score_cell(best, scale).text.strip()}"]
        if self.env.best_score != best:
            texts.append(f"env best {score_cell(self.env.best_score, scale).text.strip()}")
        texts += [f"{curve.name} {score_cell(curve.values[-1], scale).text.strip()}" for curve in chart.curves[1:]]
        if obstacle := self.view.what_if.reference_obstacle:
            texts.append(f"without growth: {obstacle}")
        return "  ".join(texts)

    def enlarged(self) -> ChartPanel:
        """Return another panel with the same chart, for the whole screen."""
        panel = EnvStory(self.view)
        panel.is_enlarged = True
        return panel

    def action_enlarge(self) -> None:
        """Go to the end of the selected step; without one, show the chart on the whole screen."""
        if self.view.selected_step is None or self.is_enlarged:
            super().action_enlarge()
        else:
            self.travel()

    def travel(self) -> None:
        """Go to the end of the selected step. In a live run, this opens the past."""
        step, trace = self.view.selected_step, self.trace()
        chosen = next((found for found in trace if found.step == step), None)
        if step is None:
            self.notify("Select a step first.", timeout=3)
        elif chosen is not None:
            self.post_message(GoToMoment(chosen.seq, over=chosen is not trace[-1]))
        else:
            self.notify(f"Step {step} is after this moment, or was not recorded.", severity="warning", timeout=3)

    def spans(self, trace: Sequence[StepTrace]) -> Iterator[tuple[range, StepTrace]]:
        """Yield the visible columns of the plot that belong to each step: up to the next step, if that is recorded."""
        frame = self._frame_of_plot
        if frame is None:
            return
        columns = [frame.column(step.step) for step in trace]
        for index, step in enumerate(trace):
            is_followed = index + 1 < len(trace) and trace[index + 1].step == step.step + 1
            end = columns[index + 1] if is_followed else columns[index] + 1
            visible = range(max(columns[index], 0), min(end, frame.width))
            if visible:
                yield visible, step

    def _scores_without(self) -> Sequence[float]:
        """Return the score after each step without the selected decision; empty if the scores are not known."""
        known, step = self.known, self.view.selected_step
        simulated = known.without(step) if known is not None and step is not None else None
        return simulated.trajectory.scores[1:] if simulated is not None else ()

    def _marks(self, env: EnvState, trace: Sequence[StepTrace]) -> list[ChartMark]:
        """Return the marks of the decisions and of a rollback; the selected one is drawn last."""
        scores = {step.step: step.score for step in trace if math.isfinite(step.score)}
        selected = self.view.selected_step
        marks: list[ChartMark] = []
        if env.rolled_back is not None:
            symbol, role = MARK_SYMBOLS[MarkKind.ROLLBACK]
            marks.append(ChartMark(env.rolled_back.step, scores.get(env.rolled_back.step), symbol.glyph, role))
        decisions = self.decisions()
        for step in sorted(decisions, key=lambda step: step == selected):
            glyph, role = op_mark(decisions[step].op)
            marks.append(ChartMark(step, scores.get(step), glyph, "key" if step == selected else role))
        return marks


class EnvRewardChart(StepChart):
    """Reward by step of this episode."""

    METRICS = ("reward",)

    PANEL_TITLE = "reward"

    def chart(self) -> Chart | None:
        """Return the chart, whose axis contains zero; None before the run has started."""
        env = self.env
        if env is None:
            return None
        trace, known = self.trace(), self.known
        earlier = [step.reward for step in known.episode.steps] if known is not None else []
        kept = min(len(trace), len(env.rewards))
        rewards = [*earlier[: len(trace) - kept], *env.rewards[len(env.rewards) - kept :]]
        curve = Curve("reward", [step.step for step in trace], rewards)
        quantity = Quantity("reward", text_of=format_return)
        return Chart(quantity=quantity, x_axis=self.x_axis(trace), curves=[curve], include=0.0)

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the sum is not in the chart)
        """Return the return so far."""
        assert self.env is not None
        return f"return {return_cell(self.env.episode_return).text.strip()}"


class _Figures(NamedTuple):
    """Values of a slot at the end of a step; None if not measured, or no longer known."""

    stage: str
    blueprint: str | None
    alpha: float | None
    dependence: float | None
    dependence_se: float | None = None
    grad_norm: float | None = None
    parameters: int | None = None
    age: int | None = None


@dataclass(frozen=True)
class _Column:
    """A column of figures beside the lanes."""

    heading: str
    width: int
    """Columns, including the space before."""
    priority: int
    """A column with a low number is shown in a narrower panel."""
    cell: Callable[[_Figures], Cell]


def _count_cell(value: int | None, width: int) -> Cell:
    return Cell("–".rjust(width), "absent") if value is None else Cell(f"{value:,}".rjust(width))


def _error_cell(figures: _Figures, scale: ScoreScale) -> Cell:
    if figures.dependence_se is None:
        return Cell(" " * 6)
    return Cell(f"± {gain_cell(figures.dependence_se, scale, is_error=True).text}", "dim")


def _all_columns(scale: ScoreScale) -> list[_Column]:
    """Return the columns from left to right, given the scale of the score."""
    return [
        _Column(" stage", 14, 7, lambda figures: Cell(figures.stage.ljust(13), figures.stage)),
        _Column(
            " blueprint", 12, 0, lambda figures: Cell(ellipsise(strip_control(figures.blueprint or ""), 11).ljust(11))
        ),
        _Column("alpha", 6, 1, lambda figures: number_cell(figures.alpha, 2, 2, fixed=True)),
        _Column(scale.difference_unit or "gain", 7, 2, lambda figures: gain_cell(figures.dependence, scale)),
        _Column("± se", 7, 5, lambda figures: _error_cell(figures, scale)),
        _Column("norm", 8, 6, lambda figures: norm_cell(figures.grad_norm)),
        _Column("params", 9, 3, lambda figures: _count_cell(figures.parameters, 8)),
        _Column("age", 5, 4, lambda figures: _count_cell(figures.age, 4)),
    ]


class SlotLanes(EnvPanel):
    """One lane per slot below the story: stage by letter and colour, alpha as height; figures of a step beside it."""

    METRICS = ("stage", "dependence", "gradient norm")

    @property
    def story(self) -> EnvStory:
        """The chart above, whose columns the lanes have."""
        return self.screen.query_one(EnvStory)

    def cache_key(self) -> Hashable:
        """Return the key of the env, and the columns and the cursor of the chart above."""
        story = self.story
        story.update()
        return super().cache_key(), story.plot_columns(), story.charts.version

    def preferred_height(self) -> int:
        """Return one line for the heading, and those of the lanes that fit."""
        return 1 + self._rows_per_lane * len(self._slots())

    @property
    def _rows_per_lane(self) -> int:
        slots = len(self.state.started.slot_names) if self.state.started else 1
        return min(max(self.screen.size.height // (_ROWS_PER_LANE_ROW * slots), 1), _MAX_LANE_ROWS)

    def _slots(self) -> Sequence[int]:
        """Return the slots with a lane: all, or those that fit, used ones first."""
        slots = range(len(self.state.started.slot_names) if self.state.started else 0)
        room = max(int(self.screen.size.height * _MAX_FRACTION) - 1, 1)
        if len(slots) <= room or self.env is None:
            return slots
        names = self.state.started.slot_names if self.state.started else ()
        used = {move.slot for move in self.env.moves}
        if self.env.stepped is not None:
            used |= {name for name, slot in zip(names, self.env.stepped.slots, strict=False) if slot.blueprint}
        chosen = self.decisions().get(self.view.selected_step or 0, Decision(WAIT)).slot
        return sorted(sorted(slots, key=lambda slot: (names[slot] != chosen, names[slot] not in used))[:room])

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw the heading and the lanes."""
        assert self.state.started is not None
        names, slots, plot = self.state.started.slot_names, self._slots(), self.story.plot_columns()
        trace = self.trace()
        shown = next((step for step in trace if step.step == self.view.selected_step), trace[-1] if trace else None)
        moment = "" if shown is None else f"at step {shown.step}, "  # beside it are the values of the last step
        self.panel_title = f"slots ─ {moment}dependence: {lost_without(self.state)}"
        self.panel_subtitle = None if len(slots) == len(names) else f"{len(slots)} of {len(names)} slots"
        start = (plot.stop if plot else Y_AXIS_COLUMNS + 2) + 1
        columns = _fitting(size.width - start - 2, self.state.score_scale)
        heading = self.line().pad_to(start + 2)
        for column in columns:
            align = str.ljust if column.heading.startswith(" ") else str.rjust
            heading.append(align(column.heading, column.width), "head")
        lines, spans = [heading], list(self.story.spans(trace))
        labels = slot_labels(names, Y_AXIS_COLUMNS + 1)
        for slot in slots:
            lane = self._lane(labels[slot], slot, spans, plot)
            if shown is not None:
                figures = self._figures(env, slot, names[slot], shown)
                lane[-1].pad_to(start).append(STAGES[figures.stage].glyph, figures.stage).append(" ")
                for column in columns if figures.blueprint else ():
                    lane[-1].append(" ").append_cell(column.cell(figures))
            lines += lane
        return lines

    def on_click(self, event: Click) -> None:
        """Select the clicked step."""
        offset = event.get_content_offset(self)
        x = self.story.position_at(offset.x) if offset is not None else None
        if x is not None:
            self.story.place_cursor(_AXIS_NAME, x)

    def _lane(self, label: str, slot: int, spans: Sequence[tuple[range, StepTrace]], plot: range) -> list[Line]:
        """Draw a lane from top to bottom: a letter where a stage begins, and alpha as height, on a baseline."""
        rows = [[" "] * len(plot) for _ in range(self._rows_per_lane)]
        runs: list[tuple[int, str]] = []
        for letter, group in groupby(spans, key=lambda span: span[1].stages[slot : slot + 1]):
            stage, end = STAGE_BY_LETTER.get(letter), 0
            if stage is None:
                continue
            first: int | None = None
            for columns, step in group:
                first, end = columns.start if first is None else first, columns.stop
                for row, character in zip(rows, _bar(stage, _at(step.alphas, slot), len(rows)), strict=True):
                    row[columns.start : end] = character * len(columns)
            rows[-1][first or 0] = STAGES[stage].glyph
            runs.append((end, stage))
        lines = [self.line().pad_to(Y_AXIS_COLUMNS + 2) for _ in rows[1:]]
        lines.append(self.line().append_fitted(label, Y_AXIS_COLUMNS + 1, "dim").append(" "))
        cursor = self.story.cursor_column()
        for line, row in zip(lines, rows, strict=True):
            start = 0
            for end, role in (*runs, (len(plot), "normal")):
                if cursor is not None and start <= cursor < end and row[cursor] == " ":
                    line.append("".join(row[start:cursor]), role).append("│", "key")
                    start = cursor + 1
                line.append("".join(row[start:end]), role)
                start = end
        return lines

    def _figures(self, env: EnvState, slot: int, name: str, shown: StepTrace) -> _Figures:
        """Return the values of a slot at the end of a step. Those of an earlier step than the last are fewer."""
        last = env.stepped.slot(slot) if env.stepped else None
        moves = [move for move in env.moves if move.slot == name]
        is_last = env.stepped is not None and env.stepped.step == shown.step
        if is_last and last is not None:
            empty = last.blueprint is None
            return _Figures(
                last.stage, last.blueprint, last.alpha, last.dependence, last.dependence_se, last.grad_norm,
                None if empty else last.parameters, None if empty else last.age,
            )  # fmt: skip
        stage = STAGE_BY_LETTER.get(shown.stages[slot : slot + 1], "dormant")
        blueprint = next((move.blueprint for move in reversed(moves) if move.step <= shown.step), None)
        planted_since = any(move.after == "germinated" and move.step > shown.step for move in moves)
        same = last if last is not None and last.blueprint == blueprint and not planted_since else None
        return _Figures(
            stage, blueprint, _at(shown.alphas, slot), _at(shown.dependences, slot),
            parameters=same.parameters if same else None,
            age=same.age - (env.stepped.step - shown.step) if same and env.stepped else None,
        )  # fmt: skip


def _at(values: Sequence[float | None], slot: int) -> float | None:
    """Return the value of a slot; None if the env does not have it."""
    return values[slot] if slot < len(values) else None


def _fitting(width: int, scale: ScoreScale) -> list[_Column]:
    """Return the columns that fit into a width, those of a low priority number first, in their order."""
    columns, chosen = _all_columns(scale), list[_Column]()
    for column in sorted(columns, key=lambda column: column.priority):
        if sum(other.width for other in (*chosen, column)) > width:
            break
        chosen.append(column)
    return sorted(chosen, key=columns.index)


def _bar(stage: str, alpha: float | None, rows: int) -> str:
    """Return one character per line of a lane, from top to bottom. Full alpha leaves a gap to the lane above."""
    if alpha is None:
        return " " * (rows - 1) + (" " if stage == "dormant" else _NO_ALPHA)
    eighths = max(round(min(max(alpha, 0.0), 1.0) * (rows * 8 - 1)), 1)
    return "".join(LEVEL_CHARS[min(max(eighths - 8 * row, 0), 8)] for row in reversed(range(rows)))
