"""Charts of the population's score: of all rounds, and of the steps of the present round."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from rich.cells import cell_len

from esper.common.formatting import APPROXIMATE, strip_control
from esper.common.plots.axis import round_axis_length
from esper.common.plots.chart import Chart, ChartMark, Curve, XAxis, score_quantity
from esper.recordings.effects.references import scores_by_step, summarise_references
from esper.recordings.state.series import FiveNumbers, five_numbers
from esper.recordings.state.state import RunState
from esper.sanctum.symbols import score_heading
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_panel import step_axis

_FIRST_STEPS = 2
"""Number of steps of a round for which the chart of its steps says that the networks are new."""
_MIN_LINES_FOR_BOUNDS = 6
"""Minimum height of a chart from which it has minimum and maximum, which the axis of a lower one has no room for."""
_MEDIAN_COLS = 11
"""Columns of the last median beside a title."""
REFERENCE = "series2"
"""Role of the curve of scores without growth."""
_REFERENCE_GLYPH = "○"
WITHOUT_GROWTH = f"{_REFERENCE_GLYPH} without growth"
"""Name of that curve."""
_POINT_GLYPH = "•"
"""Mark of a median that has no neighbour, which a line of dots would hardly show."""


class PopulationChart(ChartPanel):
    """Median over the envs, with and without growth, band of the quartiles, minimum and maximum dotted, and the median
    of a ghost run."""

    METRICS = ("score",)

    @property
    def quantity_name(self) -> str:
        """Name of the task's score."""
        return f"validation {strip_control(self.state.score_name)}"

    def fitting(self, *titles: str) -> str:
        """Return the first of the titles that fits into the border, beside the last median if there is any."""
        room = self.outer_size.width - 6 - cell_len(self.changes)
        beside = room - (0 if self.styles.border_bottom[0] else _MEDIAN_COLS)
        return next(
            (title for available in (beside, room) for title in titles if cell_len(title) <= available), titles[-1]
        )

    def summary(self, chart: Chart) -> str:
        """Return the values of the last point; beside a ghost run, and without room, medians only."""
        readout = super().summary(chart)
        is_below = bool(self.styles.border_bottom[0])
        room = self.outer_size.width - 6 - (0 if is_below else cell_len(self.changes + self.name_in_title()))
        has_reference = any(curve.name.startswith(WITHOUT_GROWTH) for curve in chart.curves)
        if self.view.ghost is None and (cell_len(readout) <= room or (is_below and not has_reference)):
            return readout
        medians = [curve for curve in chart.curves if curve.role != "dim"]
        readout = replace(chart, curves=medians, band=None).readout()
        if has_reference and cell_len(readout) > room:
            return replace(chart, curves=[curve for curve in medians if curve.role != REFERENCE], band=None).readout()
        return readout

    def draw_points(
        self,
        x_axis: XAxis,
        points: Mapping[int, FiveNumbers],
        reference: Mapping[int, float],
        ghost: Mapping[int, FiveNumbers] | None,
        *,
        is_exact: bool,
    ) -> Chart:
        """Return the chart of points, keyed by their position.

        Args:
            points: Scores of this run.
            reference: Median scores without growth, as far as they are known.
            ghost: Scores of the ghost run; None without one.
            is_exact: False if a score without growth is approximate.
        """
        xs = list(points)
        columns: list[list[float]] = [list(column) for column in zip(*points.values(), strict=True)] or [[]] * 5
        lows, lower, medians, upper, highs = columns
        without = {x: reference[x] for x in xs if x in reference}
        is_last = bool(xs) and xs[-1] in without
        curves = [Curve("median", xs, medians), *reference_curves(without, is_exact=is_exact, is_last=is_last)]
        if self.size.height >= _MIN_LINES_FOR_BOUNDS:
            curves += [Curve("min", xs, lows, "dim", dotted=True), Curve("max", xs, highs, "dim", dotted=True)]
        if ghost is not None:
            values = [ghost[x].median if x in ghost else None for x in xs]
            curves.append(Curve("ghost", xs, values, "series1"))
        return Chart(
            quantity=score_quantity(self.quantity_name, self.state.score_scale),
            x_axis=x_axis,
            curves=curves,
            band=(Curve("lower quartile", xs, lower), Curve("upper quartile", xs, upper)),
            marks=[
                *([ChartMark(xs[0], medians[0], _POINT_GLYPH, "curve")] if len(xs) == 1 else []),
                *reference_marks(without),
            ],
        )


def reference_curves(scores: Mapping[int, float], *, is_exact: bool, is_last: bool = True) -> list[Curve]:
    """Return the curve of scores without growth, keyed by position; none without any.

    Args:
        is_exact: False if a score is approximate.
        is_last: True if the last position of the chart has a score; else, the readout has none.
    """
    name = f"{WITHOUT_GROWTH}{'' if is_exact else f' {APPROXIMATE}'}" if is_last else ""
    return [Curve(name, list(scores), list(scores.values()), REFERENCE)] if scores else []


def reference_marks(scores: Mapping[int, float]) -> list[ChartMark]:
    """Return the marks at both ends of the curve of scores without growth, which tell it from others without colour."""
    return [ChartMark(x, scores[x], _REFERENCE_GLYPH, REFERENCE) for x in {min(scores), max(scores)}] if scores else []


class RoundScores(PopulationChart):
    """Scores at the end of each round."""

    def cache_key(self) -> Hashable:
        """Return a key that changes with each round and with each finished episode, and with the ghost run."""
        ghost = self.view.ghost
        shown = self.state.round, len(self.state.finals), self.view.what_if.version
        return *shown, ghost and ghost.seq, self.chart_key

    def chart(self) -> Chart | None:
        """Return the chart; None before the run has started."""
        state = self.state
        if state.started is None:
            return None
        points, ghost = state.score_by_round(), self.view.ghost
        first = min(points, default=1)
        last = first + round_axis_length(max(len(points), 1), state.started.rounds) - 1
        known = self.view.what_if.references
        found = [reference for number in points if (reference := summarise_references(known.get(number, ())))]
        return self.draw_points(
            XAxis("round", first, last),
            points,
            {reference.round: reference.score for reference in found},
            ghost.score_by_round() if ghost else None,
            is_exact=all(reference.exact for reference in found),
        )

    def summary(self, chart: Chart) -> str:
        """Return the values of the last point, and why none without growth is computed."""
        readout, obstacle = super().summary(chart), self.view.what_if.reference_obstacle
        if not obstacle:
            return readout
        reason = f"without growth: {obstacle}"
        room = self.outer_size.width - 6
        return f"{readout}  {reason}" if cell_len(readout) + 2 + len(reason) <= room else reason

    def name_in_title(self) -> str:
        """Return the name of the quantity and "by round"."""
        name = super().name_in_title() + self.growth_note
        return self.fitting(name, name.removeprefix("validation "))


class StepScores(PopulationChart):
    """Scores after each step of the present round."""

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._points = _PointCache()
        self._ghost_points = _PointCache()

    def cache_key(self) -> Hashable:
        """Return a key that changes with finished steps, once per interval while the run goes on."""
        state, ghost = self.state, self.view.ghost
        steps = self.paced((kept_steps(state), state.step, ghost and ghost.seq))
        return steps, self.view.what_if.version, self.chart_key

    def chart(self) -> Chart | None:
        """Return the chart; None before the run has started."""
        state = self.state
        if state.started is None:
            return None
        points, ghost = self._points.of(state), self.view.ghost
        length, _ = step_axis(state.started.steps, max(points, default=0))
        first = min(points, default=1)
        x_axis = XAxis("step", first, first + length - 1, f"step of round {state.round}")
        has_ghost = ghost is not None and ghost.round == state.round
        hosts = self.view.what_if.references.get(state.round, [])
        return self.draw_points(
            x_axis,
            points,
            scores_by_step(hosts),
            self._ghost_points.of(ghost) if ghost and has_ghost else None,
            is_exact=all(host.is_exact for host in hosts),
        )

    def name_in_title(self) -> str:
        """Return the name of the quantity, its steps and the round; in the first steps, that all networks are new.

        While some envs are a step ahead, the table of the envs has their scores already, and the chart has not.
        """
        number, steps = self.state.round, kept_steps(self.state)
        if number and self.state.step < _FIRST_STEPS:
            return self.fitting(f"round {number}: every network began anew", f"round {number}: new networks")
        if not steps:
            return self.fitting(*(f"{name} ─ by step of round {number}" for name in self._names))
        drawn = f"steps {steps[0]}–{steps[-1]} of round {number}"
        return self.fitting(*(f"{name} ─ {drawn}" for name in self._names), drawn, drawn.replace(" of", ","))

    @property
    def _names(self) -> tuple[str, str]:
        """Name and unit of the quantity, and a shorter one."""
        name = score_heading(self.quantity_name, self.state.score_scale)
        return name, name.removeprefix("validation ")


class _PointCache:
    """Cache of the scores after each step of a round: only those of new steps are computed."""

    def __init__(self) -> None:
        self._round: tuple[RunState | None, int] = (None, 0)
        self._points: dict[int, FiveNumbers] = {}

    def of(self, state: RunState) -> dict[int, FiveNumbers]:
        """Return the scores after each of `kept_steps`, keyed by step."""
        if self._round[0] is not state or self._round[1] != state.round:
            self._round, self._points = (state, state.round), {}
        known = self._points
        self._points = {step: known.get(step) or scores_after_step(state, step) for step in kept_steps(state)}
        return self._points


def kept_steps(state: RunState) -> range:
    """Return the numbers of the steps of the present round that every active env has finished, and still holds."""
    active = [env for env in state.envs if env.rolled_back is None and state.idle_reason(env) is None] or state.envs
    ends = [env.stepped.step if env.stepped else 0 for env in active]
    first = max((end - len(env.scores) + 1 for end, env in zip(ends, active, strict=True)), default=1)
    return range(first, min(ends, default=0) + 1)


def scores_after_step(state: RunState, step: int) -> FiveNumbers:
    """Return the scores after a step of `kept_steps`. An env that is inactive counts up to its last step."""
    ends = ((env, env.stepped.step) for env in state.envs if env.stepped)
    return five_numbers([env.scores[step - end - 1] for env, end in ends if 0 <= end - step < len(env.scores)])
