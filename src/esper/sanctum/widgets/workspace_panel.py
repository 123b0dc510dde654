"""Base classes of the panels of the workspace."""

from __future__ import annotations

from pathlib import Path

from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.view import OpenRun, ViewState
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.workspace import Workspace

_SCROLL_ROWS = 3
"""Rows per turn of the mouse wheel."""


class WorkspacePanel(Panel):
    """A panel about the runs of the workspace.

    Args:
        view: State that the panels share.
        workspace: The runs.
    """

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view)
        self.workspace = workspace


class RunKeysPanel(WorkspacePanel, can_focus=True):
    """A panel to which the keys of the list of runs apply while it has the focus.

    Subclasses implement `action_move`, `num_rows` and `rows_per_page`.
    """

    BINDINGS = bindings(KeyCategory.ROWS, KeyCategory.RUNS)

    @property
    def num_rows(self) -> int:
        """Number of rows, including those that are not visible."""
        raise NotImplementedError

    @property
    def rows_per_page(self) -> int:
        """Number of visible rows."""
        raise NotImplementedError

    def action_move(self, rows: int) -> None:
        """Move by rows, at most to the first or last one."""
        raise NotImplementedError

    def action_page(self, pages: int) -> None:
        """Move by pages."""
        self.action_move(pages * max(self.rows_per_page - 1, 1))

    def action_first(self) -> None:
        """Move to the first row."""
        self.action_move(-self.num_rows)

    def action_last(self) -> None:
        """Move to the last row."""
        self.action_move(self.num_rows)

    def action_open(self) -> None:
        """Open the highlighted run."""
        run = self.workspace.highlighted
        if run is not None:
            self.post_message(OpenRun(Path(run.path)))

    def on_mouse_scroll_down(self) -> None:
        """Move a few rows down."""
        self.action_move(_SCROLL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        """Move a few rows up."""
        self.action_move(-_SCROLL_ROWS)
