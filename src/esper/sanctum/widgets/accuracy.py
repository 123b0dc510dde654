"""The population's accuracy: over the rounds of the run, or over the steps of the first round."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual.geometry import Size

from esper.sanctum.symbols import percent_cell
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.series import min_median_max
from esper.telemetry.state import RunState
from esper.text_plot import round_axis_length

PERCENT = ((0.0, "0"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100"))


def percent_ticks(height: int) -> Sequence[tuple[float, str]]:
    """Labels of an axis of per cent, as many as look calm."""
    return PERCENT if height >= 10 else PERCENT[::2] if height >= 5 else PERCENT[::4]


class PopulationAccuracy(Panel):
    """Median over the envs as a curve, from the least to the greatest as a band; that of another run as a ghost."""

    METRICS = ("accuracy",)

    def cache_key(self) -> Hashable:
        """Changes with each round, and with each step of the first."""
        state = self.state
        ghost = self.view.ghost
        return len(state.accuracy), state.round, (state.seq if len(state.accuracy) < 2 else 0), ghost and ghost.seq

    def draw_lines(self, size: Size) -> list[Line]:
        """The chart, once there are two points."""
        by_round = len(self.state.accuracy) >= 2
        points = self.state.accuracy if by_round else accuracy_by_step(self.state)
        by = "round" if by_round else f"step of round {self.state.round}"
        self.panel_title = f"validation accuracy % ─ by {by}"
        if len(points) < 2 or self.state.started is None:
            self.panel_subtitle = None
            return [self.line().append(" a curve needs two points", "dim")] if self.state.started else []
        lows, middles, highs = (list(column) for column in zip(*points, strict=True))
        self.panel_subtitle = (
            f"median {percent_cell(middles[-1]).text.strip()}  min {percent_cell(lows[-1]).text.strip()}"
            f"  max {percent_cell(highs[-1]).text.strip()}"
        )
        first = max(rounds_finished(self.state) - len(points), 0) + 1 if by_round else 1
        ghost = self._ghost(first, len(points), by_round=by_round)
        if self.view.source.ghost_run and ghost:
            self.panel_subtitle += f"  ghost {percent_cell(ghost[-1]).text.strip()}"
        rounds, steps = self.state.started.rounds, self.state.started.steps
        chart = Chart(
            values=middles,
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
        """The medians of the run that goes along, at the same rounds or steps; None where it has none."""
        ghost = self.view.ghost
        if ghost is None:
            return []
        if not by_round:
            return [middle for _, middle, _ in accuracy_by_step(ghost)] if ghost.round == self.state.round else []
        behind = first - 1 - (rounds_finished(ghost) - len(ghost.accuracy))
        indices = range(behind, behind + count)
        return [ghost.accuracy[index][1] if 0 <= index < len(ghost.accuracy) else None for index in indices]


def rounds_finished(state: RunState) -> int:
    """Rounds of which every env has finished its episode."""
    return state.round if state.finals and len(state.finals) == len(state.envs) else state.round - 1


def accuracy_by_step(state: RunState) -> list[tuple[float, float, float]]:
    """Least, median and greatest accuracy of each step that every env has done."""
    courses = [env.accuracy for env in state.envs]
    return [min_median_max(step) for step in zip(*courses, strict=False)]
