"""Base class of the screens about all runs, and one chart of the workspace on the whole screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual import getters
from textual.app import App, ComposeResult
from textual.containers import Container

from esper.sanctum.keys import KeyCategory
from esper.sanctum.screens.base import RunScreen, TooSmall
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.widgets.workspace_header import WorkspaceHeader
from esper.sanctum.workspace import Workspace


class WorkspaceBase(RunScreen):
    """Base class of the screens about all runs: header, body and footer.

    Args:
        view: State that the panels share. Its source has no run.
    """

    FITS_SMALL = True

    if TYPE_CHECKING:
        app = getters.app(App[Any])  # Textual's own declaration leaves the type argument of App unknown

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view)
        self.workspace = workspace

    def compose(self) -> ComposeResult:
        """Yield the header, the body and the footer."""
        yield WorkspaceHeader(self.view, self.workspace)
        yield TooSmall(self.view)
        with Container(id="body"):
            yield from self.body()
        yield Footer(self.view, *self.CATEGORIES)

    def update(self) -> None:
        """Update all panels."""
        for panel in self.query(Panel):
            panel.update()


class WorkspaceChartScreen(WorkspaceBase):
    """A chart of the workspace on the whole screen."""

    AUTO_FOCUS = "ChartPanel"
    CATEGORIES = (KeyCategory.CHART,)

    def __init__(self, view: ViewState, workspace: Workspace, panel: ChartPanel) -> None:
        super().__init__(view, workspace)
        self._panel = panel

    def body(self) -> ComposeResult:
        """Yield the chart."""
        yield self._panel

    def on_chart_panel_left(self) -> None:
        """Return to all charts."""
        self.dismiss()

    def on_chart_panel_enlarged(self, request: ChartPanel.Enlarged) -> None:
        """Return to all charts."""
        request.stop()
        self.dismiss()
