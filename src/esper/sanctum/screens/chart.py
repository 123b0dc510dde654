"""One chart on the whole screen."""

from __future__ import annotations

from textual.app import ComposeResult

from esper.sanctum.keys import KeyCategory
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel


class ChartScreen(RunScreen):
    """A chart that opened on top of the screen that has it."""

    AUTO_FOCUS = "ChartPanel"
    CATEGORIES = (KeyCategory.CHART,)
    FITS_SMALL = True

    def __init__(self, view: ViewState, panel: ChartPanel) -> None:
        super().__init__(view)
        self._panel = panel

    def body(self) -> ComposeResult:
        """Yield the chart."""
        yield self._panel

    def on_chart_panel_left(self) -> None:
        """Return to the screen that has the chart."""
        self.dismiss()
