"""Chart of the population's accuracy by round; before the second round has ended, by step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.symbols import percent_cell
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.series import min_median_max
from esper.telemetry.state import RunState
from esper.text_plot import round_axis_length

_PERCENT_TICKS = ((0.0, "0"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100"))


def percent_ticks(height: int) -> Sequence[tuple[float, str]]:
    """Return ticks of an axis from 0 to 100 %: two, three or five, depending on its height in lines."""
    return _PERCENT_TICKS if height >= 10 else _PERCENT_TICKS[::2] if height >= 5 else _PERCENT_TICKS[::4]


class PopulationAccuracy(Panel):
    """Median over the envs as a curve, minimum to maximum as a band, and the median of a ghost run."""

    METRICS = ("accuracy",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with each round, with the ghost run, and, in a chart by step, with each event."""
        state = self.state
        ghost = self.view.ghost
        return len(state.accuracy), state.round, (state.seq if len(state.accuracy) < 2 else 0), ghost and ghost.seq

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the chart, or a hint if there are fewer than two points."""
        by_round = len(self.state.accuracy) >= 2
        points = self.state.accuracy if by_round else accuracy_by_step(self.state)
        x_axis = "round" if by_round else f"step of round {self.state.round}"
        self.panel_title = f"validation {strip_control(self.state.score)} % ─ by {x_axis}"
        if len(points) < 2 or self.state.started is None:
            self.panel_subtitle = None
            return [self.line().append(" a curve needs two points", "dim")] if self.state.started else []
        lows, medians, highs = (list(column) for column in zip(*points, strict=True))
        self.panel_subtitle = (
            f"median {percent_cell(medians[-1]).text.strip()}  min {percent_cell(lows[-1]).text.strip()}"
            f"  max {percent_cell(highs[-1]).text.strip()}"
        )
        first = max(_rounds_finished(self.state) - len(points), 0) + 1 if by_round else 1
        ghost = self._ghost(first, len(points), by_round=by_round)
        if self.view.source.ghost_run and ghost:
            self.panel_subtitle += f"  ghost {percent_cell(ghost[-1]).text.strip()}"
        rounds, steps = self.state.started.rounds, self.state.started.steps
        chart = Chart(
            values=medians,
            band=(lows, highs),
            x_length=round_axis_length(len(points), rounds) if by_round else steps,
            low=0.0,
            high=1.0,
            ticks=percent_ticks(size.height),
            first=first,
            extra_curves=[(ghost, "dim")],
        )
        return chart.lines(self.view.palette, *size)

    def _ghost(self, first: int, count: int, *, by_round: bool) -> list[float | None]:
        """Return the ghost run's medians at the same rounds or steps; None where it has no value."""
        ghost = self.view.ghost
        if ghost is None:
            return []
        if not by_round:
            medians: list[float | None] = [middle for _, middle, _ in accuracy_by_step(ghost)]
            return medians[: self.state.started.steps] if self.state.started and ghost.round == self.state.round else []
        start = first - 1 - (_rounds_finished(ghost) - len(ghost.accuracy))
        indices = range(start, start + count)
        return [ghost.accuracy[index][1] if 0 <= index < len(ghost.accuracy) else None for index in indices]


def accuracy_by_step(state: RunState) -> list[tuple[float, float, float]]:
    """Return minimum, median and maximum accuracy of each step that every env has finished, in the current round."""
    accuracies_by_env = [env.accuracy for env in state.envs]
    return [min_median_max(step) for step in zip(*accuracies_by_env, strict=False)]


def _rounds_finished(state: RunState) -> int:
    """Return the number of rounds in which every env has finished its episode."""
    return state.round if state.finals and len(state.finals) == len(state.envs) else state.round - 1
