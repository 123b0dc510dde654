"""Base class of the panels with a scatter plot of a score against parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from esper.common.plots.chart import Chart, score_quantity
from esper.common.plots.scatter import Scatter, ScatterPoint
from esper.common.score_scale import ScoreScale
from esper.sanctum.symbols import score_heading
from esper.sanctum.widgets.chart_panel import ChartPanel


class ScatterChart(ChartPanel):
    """Score and parameters of things that are compared, and their front. Subclasses implement `points`."""

    ORIGIN: ClassVar[float | None] = 1.0
    """Position that the x axis always contains, the parameters of the bare host; None for none."""

    @property
    def score_name(self) -> str:
        """Name of the quantity on the y axis, without control characters."""
        raise NotImplementedError

    @property
    def score_scale(self) -> ScoreScale:
        """Scale of the score on the y axis."""
        return self.state.score_scale

    def points(self) -> Sequence[ScatterPoint]:
        """Return the points; later ones are drawn over earlier ones. At most one has the kind "selected"."""
        raise NotImplementedError

    def chart(self) -> Chart | None:
        """Return the chart; None without a point."""
        return Scatter(self.points(), score_quantity(self.score_name, self.score_scale), origin=self.ORIGIN).chart()

    def name_in_title(self) -> str:
        """Return the title."""
        return f"{score_heading(self.score_name, self.score_scale)} ─ by parameters, ×host"

    def summary(self, chart: Chart) -> str:
        """Return the title and the values of the selected point; nothing without one."""
        selected = next((point for point in self.points() if point.kind == "selected"), None)
        if selected is None:
            return ""
        name = f"{selected.glyph} {selected.title}".rstrip()
        return f"{name} {chart.quantity.format(selected.y)} at ×{selected.x:.2f}"
