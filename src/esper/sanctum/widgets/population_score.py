"""Chart of the population's score by round; before the second round has ended, by step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.symbols import percent_cell
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.env_panel import step_axis
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.series import min_median_max
from esper.telemetry.state import RunState
from esper.text_plot import round_axis_length

_PERCENT_TICKS = ((0.0, "0"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100"))


def percent_ticks(height: int) -> Sequence[tuple[float, str]]:
    """Return ticks of an axis from 0 to 100 %: two, three or five, depending on its height in lines."""
    return _PERCENT_TICKS if height >= 10 else _PERCENT_TICKS[::2] if height >= 5 else _PERCENT_TICKS[::4]


class PopulationScore(Panel):
    """Median over the envs as a curve, minimum to maximum as a band, and the median of a ghost run."""

    METRICS = ("score",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with each round, with the ghost run, and, in a chart by step, with each event."""
        state = self.state
        ghost = self.view.ghost
        num_rounds = len(state.scores_by_round)  # limited, so that it does not change with each round of a long run
        by_step = state.seq if num_rounds < 2 else 0
        return num_rounds, state.round, len(state.finals), by_step, ghost and ghost.seq

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the chart, or a hint if there are fewer than two points."""
        by_round = len(self.state.scores_by_round) >= 2
        points_by_step = {} if by_round else score_by_step(self.state)
        points = self.state.scores_by_round if by_round else [*points_by_step.values()]
        x_axis = "round" if by_round else f"step of round {self.state.round}"
        self.panel_title = f"validation {strip_control(self.state.score_name)} % ─ by {x_axis}"
        if len(points) < 2 or self.state.started is None:
            self.panel_subtitle = None
            return self.message("a curve needs two points")
        lows, medians, highs = (list(column) for column in zip(*points, strict=True))
        self.panel_subtitle = (
            f"median {percent_cell(medians[-1]).text.strip()}  min {percent_cell(lows[-1]).text.strip()}"
            f"  max {percent_cell(highs[-1]).text.strip()}"
        )
        first = max(_rounds_finished(self.state) - len(points), 0) + 1 if by_round else min(points_by_step)
        ghost = self._ghost(first, len(points), by_round=by_round)
        if self.view.source.ghost_run and ghost:
            self.panel_subtitle += f"  ghost {percent_cell(ghost[-1]).text.strip()}"
        rounds, steps = self.state.started.rounds, self.state.started.steps
        x_length = round_axis_length(len(points), rounds) if by_round else step_axis(steps, max(points_by_step))[0]
        chart = Chart(
            values=medians,
            band=(lows, highs),
            x_length=x_length,
            low=0.0,
            high=1.0,
            ticks=percent_ticks(size.height),
            first=first,
            extra_curves=[(ghost[:x_length], "dim")],
        )
        return chart.lines(self.view.palette, *size)

    def _ghost(self, first: int, count: int, *, by_round: bool) -> list[float | None]:
        """Return the ghost run's medians at the same rounds or steps; None where it has no value."""
        ghost = self.view.ghost
        if ghost is None:
            return []
        if not by_round:
            points = score_by_step(ghost) if ghost.round == self.state.round else {}
            steps = range(first, max(points, default=0) + 1)
            return [points[step][1] if step in points else None for step in steps]
        start = first - 1 - (_rounds_finished(ghost) - len(ghost.scores_by_round))
        indices = range(start, start + count)
        return [
            ghost.scores_by_round[index][1] if 0 <= index < len(ghost.scores_by_round) else None for index in indices
        ]


def score_by_step(state: RunState) -> dict[int, tuple[float, float, float]]:
    """Return minimum, median and maximum score of each kept step that every env has finished in the current round.

    Keyed by step number.
    """
    ends = [env.stepped.step if env.stepped else 0 for env in state.envs]
    first = max((end - len(env.scores) + 1 for end, env in zip(ends, state.envs, strict=True)), default=1)
    return {
        step: min_median_max([env.scores[step - end - 1] for end, env in zip(ends, state.envs, strict=True)])
        for step in range(first, min(ends, default=0) + 1)
    }


def _rounds_finished(state: RunState) -> int:
    """Return the number of rounds in which every env has finished its episode."""
    return state.round if state.finals and len(state.finals) == len(state.envs) else state.round - 1
