"""Charts of the population's score: of all rounds, and of the steps of the present round."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from rich.cells import cell_len

from esper.common.formatting import strip_control
from esper.common.plots.axis import round_axis_length
from esper.common.plots.chart import Chart, ChartMark, Curve, XAxis, score_quantity
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
_POINT_GLYPH = "•"
"""Mark of a median that has no neighbour, which a line of dots would hardly show."""


class PopulationChart(ChartPanel):
    """Median over the envs, band of the quartiles, minimum and maximum dotted, and the median of a ghost run."""

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
        """Return the values of the last point; beside a ghost run, or beside the title without room, medians only."""
        readout = super().summary(chart)
        room = self.outer_size.width - 6 - cell_len(self.changes + self.name_in_title())
        if self.view.ghost is None and (self.styles.border_bottom[0] or cell_len(readout) <= room):
            return readout
        return replace(chart, curves=[curve for curve in chart.curves if curve.role != "dim"], band=None).readout()

    def draw_points(
        self, x_axis: XAxis, points: Mapping[int, FiveNumbers], ghost: Mapping[int, FiveNumbers] | None
    ) -> Chart:
        """Return the chart of points, keyed by their position.

        Args:
            points: Scores of this run.
            ghost: Scores of the ghost run; None without one.
        """
        xs = list(points)
        columns: list[list[float]] = [list(column) for column in zip(*points.values(), strict=True)] or [[]] * 5
        lows, lower, medians, upper, highs = columns
        curves = [Curve("median", xs, medians)]
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
            marks=[ChartMark(xs[0], medians[0], _POINT_GLYPH, "curve")] if len(xs) == 1 else [],
        )


class RoundScores(PopulationChart):
    """Scores at the end of each round."""

    def cache_key(self) -> Hashable:
        """Return a key that changes with each round and with each finished episode, and with the ghost run."""
        ghost = self.view.ghost
        return self.state.round, len(self.state.finals), ghost and ghost.seq, self.chart_key

    def chart(self) -> Chart | None:
        """Return the chart; None before the run has started."""
        state = self.state
        if state.started is None:
            return None
        points, ghost = score_by_round(state), self.view.ghost
        first = min(points, default=1)
        last = first + round_axis_length(max(len(points), 1), state.started.rounds) - 1
        return self.draw_points(XAxis("round", first, last), points, score_by_round(ghost) if ghost else None)

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
        return self.paced((kept_steps(state), state.step, ghost and ghost.seq)), self.chart_key

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
        return self.draw_points(x_axis, points, self._ghost_points.of(ghost) if ghost and has_ghost else None)

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


def score_by_round(state: RunState) -> dict[int, FiveNumbers]:
    """Return the scores of each round that has ended and is kept, keyed by round."""
    first = max(state.rounds_ended - len(state.scores_by_round), 0) + 1
    return dict(enumerate(state.scores_by_round, start=first))


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
