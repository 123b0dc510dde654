"""Base classes of the panels of the workspace."""

from __future__ import annotations

from pathlib import Path

from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.view import OpenRun, ViewState
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.widgets.row_list import ScrollPanel
from esper.sanctum.workspace import Workspace


class WorkspacePanel(Panel):
    """A panel about the runs of the workspace."""

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view)
        self.workspace = workspace


class RunKeysPanel(WorkspacePanel, ScrollPanel, can_focus=True):
    """A panel to which the keys of the list of runs apply while it has the focus."""

    BINDINGS = bindings(KeyCategory.RUNS)

    async def action_open(self) -> None:
        """Open the highlighted run."""
        run = self.workspace.highlighted
        if run is not None:
            self.post_message(OpenRun(Path(run.path)))
