"""Chart of the population's score by round; before the second round has ended, by step."""

from __future__ import annotations

from collections.abc import Hashable

from esper.formatting import strip_control
from esper.sanctum.widgets.chart import Chart, Curve, XAxis, percent
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_panel import step_axis
from esper.telemetry.series import five_numbers
from esper.telemetry.state import RunState
from esper.text_plot import round_axis_length


class PopulationScore(ChartPanel):
    """Median over the envs as a curve, minimum and maximum dotted, and the median of a ghost run."""

    METRICS = ("score",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with each round, with the ghost run, and, in a chart by step, with each event."""
        state = self.state
        ghost = self.view.ghost
        num_rounds = len(state.scores_by_round)  # limited, so that it does not change with each round of a long run
        by_step = state.seq if num_rounds < 2 else 0
        return num_rounds, state.round, len(state.finals), by_step, ghost and ghost.seq, self.chart_key

    def chart(self) -> Chart | None:
        """Return the chart; None without a point."""
        state = self.state
        by_round = len(state.scores_by_round) >= 2
        points_by_step = {} if by_round else score_by_step(state)
        points = state.scores_by_round if by_round else [*points_by_step.values()]
        if not points or state.started is None:
            return None
        lows, medians, highs = (list(column) for column in zip(*points, strict=True))
        first = max(_rounds_finished(state) - len(points), 0) + 1 if by_round else min(points_by_step)
        if by_round:
            last = first + round_axis_length(len(points), state.started.rounds) - 1
            x_axis = XAxis("round", first, last)
        else:
            length, _ = step_axis(state.started.steps, max(points_by_step))
            x_axis = XAxis("step", first, first + length - 1, f"step of round {state.round}")
        xs = range(first, first + len(points))
        ghost = self._ghost(first, len(points), by_round=by_round)
        return Chart(
            quantity=percent(f"validation {strip_control(state.score_name)}"),
            x_axis=x_axis,
            curves=[
                Curve("median", xs, medians),
                Curve("min", xs, lows, "dim", dotted=True),
                Curve("max", xs, highs, "dim", dotted=True),
                *([Curve("ghost", range(first, first + len(ghost)), ghost, "series1")] if ghost else []),
            ],
        )

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
        step: five_numbers([env.scores[step - end - 1] for end, env in zip(ends, state.envs, strict=True)])
        for step in range(first, min(ends, default=0) + 1)
    }


def _rounds_finished(state: RunState) -> int:
    """Return the number of rounds in which every env has finished its episode."""
    return state.round if state.finals and len(state.finals) == len(state.envs) else state.round - 1
