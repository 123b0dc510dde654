"""Chart of a growth: score against parameters of its candidates, and the front."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.common.formatting import strip_control
from esper.common.plots.chart import Chart
from esper.common.plots.scatter import ScatterPoint
from esper.recordings.candidates.report import MARK_LEGEND, candidate_points, fit_label, format_ratio, format_score
from esper.sanctum.symbols import score_heading
from esper.sanctum.widgets.panel import Line, Row
from esper.sanctum.widgets.scatter_chart import ScatterChart

_LABEL_COLS = 28
"""Maximum width of the name of a candidate in the border."""
_MIN_ROWS_WITH_LEGEND = 5
"""Minimum height from which the marks are explained below the chart."""


class FrontChart(ScatterChart):
    """Candidates by parameters and score: letters and marks as in the table, and the front as a dotted line."""

    METRICS = ("candidates",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with the search and with the selected candidate."""
        search = self.state.search
        return search and search.revision, self.view.selected_candidate, self.chart_key

    def name_in_title(self) -> str:
        """Return the title."""
        return f"front ─ {score_heading(self.score_name, self.score_scale)} by parameters, ×host"

    @property
    def score_name(self) -> str:
        """Name of the task's score."""
        return strip_control(self.state.score_name)

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "no trial has ended yet"

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the score has an interval, which the chart does not have)
        """Return the selected candidate, by default the best one."""
        selected = self.view.selected_standing
        if selected is None:
            return ""
        one = selected.candidate
        return f"{fit_label(one, _LABEL_COLS)}  {format_score(one)} at {format_ratio(one)}"

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the chart, and the meaning of its marks below it if there is room."""
        legend = self.line(f" {MARK_LEGEND}", "dim")
        if legend.width > size.width or size.height < _MIN_ROWS_WITH_LEGEND or not self.view.standings:
            return super().draw_lines(size)
        lines = super().draw_lines(Size(size.width, size.height - 1))
        rows = [line.row(size.width) if isinstance(line, Line) else line for line in lines]
        return [*rows, legend.row(size.width)]

    def points(self) -> list[ScatterPoint]:
        """Return the candidates, the selected one last."""
        return candidate_points(self.view.standings, selected=self.view.selected_candidate)
