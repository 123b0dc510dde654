"""Workspace actions: show all runs, open one of them, and return."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from esper.recordings.files.segments import ReadError
from esper.sanctum.actions.navigation import NavigationActions
from esper.sanctum.keys import SCREEN_INFO
from esper.sanctum.screens import open_screen
from esper.sanctum.source import AttachSource, NoRunSource, RunSource, open_run_source
from esper.sanctum.theme import Palette
from esper.sanctum.view import OpenRun, ViewState

if TYPE_CHECKING:
    from esper.sanctum.screens.workspace import WorkspaceScreen

WORKSPACE_MODE = "workspace"
RUN_MODE = next(iter(SCREEN_INFO))
"""First screen of a run."""
WORKSPACE_BUDGET_S = 0.05
"""Maximum seconds per tick spent on reading runs for the workspace."""
BROWSER_MESSAGE = "This page shows one run. For all runs, on the server: esper-sanctum runs"
"""Notice in place of the runs of the web server."""


class WorkspaceActions(NavigationActions):
    """Open the workspace, and runs from there. The first run goes on if it trains in this process.

    Args:
        source: Source of the first run.
    """

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        self._workspace: WorkspaceScreen | None = None
        """The screen of the workspace; None before it was opened."""
        self._own_view: ViewState | None = None
        """View of the first run while another run is shown."""
        self.add_mode(WORKSPACE_MODE, self._open_workspace_screen)  # pyright: ignore[reportUnknownMemberType] (Screen[Any])

    def _open_workspace_screen(self) -> WorkspaceScreen:
        from esper.sanctum.screens.workspace import WorkspaceScreen  # slow to import
        from esper.sanctum.workspace import Workspace

        directory = self.source.directory
        assert directory is not None  # checked by the action
        telemetry_dir = directory if isinstance(self.source, NoRunSource) else directory.absolute().parent
        self.view.can_leave = True
        self._workspace = WorkspaceScreen(self._view_of(NoRunSource(telemetry_dir)), Workspace(telemetry_dir))
        return self._workspace

    @property
    def shows_workspace(self) -> bool:
        """True while the workspace, or a dialog over it, is on the screen."""
        return self.current_mode == WORKSPACE_MODE

    def add_run_modes(self) -> None:
        """Make the screens of the shown run available."""
        for name in SCREEN_INFO:
            self.add_mode(name, partial(open_screen, name, self.view))  # pyright: ignore[reportUnknownMemberType] (Screen[Any])

    def tick_workspace(self) -> bool:
        """Read further runs for the shown workspace. Called at every tick. Return True if anything has changed."""
        if not self.shows_workspace or self._workspace is None:
            return False
        return self._workspace.workspace.tick(WORKSPACE_BUDGET_S)

    @property
    def is_reading_runs(self) -> bool:
        """True while the workspace is shown, and has runs or curves to read."""
        return self.shows_workspace and self._workspace is not None and self._workspace.workspace.is_reading

    def use_palette(self, palette: Palette) -> None:
        """Draw everything in other colours."""
        views = [self.view, self._own_view, self._workspace.view if self._workspace is not None else None]
        for view in views:
            if view is not None:
                view.palette = palette

    def action_runs(self) -> None:
        """Show the workspace, or return from it to the open run."""
        if self.refuse_in_browser(BROWSER_MESSAGE):
            return
        if self.source.directory is None:
            self.notify("The run has no directory yet.", severity="warning")
            return
        self.close_screens()
        if not self.shows_workspace:
            self.switch_mode(WORKSPACE_MODE)
        elif self.view.has_run:
            self.switch_mode(RUN_MODE)
        else:
            self.notify("No run is open. Enter opens the selected one.", timeout=3)

    def action_leave_run(self) -> None:
        """Return from an opened run to the workspace."""
        self.action_runs()

    def on_open_run(self, message: OpenRun) -> None:
        """Show a run of the workspace."""
        directory, shown = message.path.resolve(), self.source.directory
        if shown is None or not self.view.has_run or shown.resolve() != directory:
            own = self.own_source.directory
            try:
                if own is not None and own.resolve() == directory:
                    self._replace_run(self._own_view or self._view_of(self.own_source))
                else:
                    self.open_run(directory)
                    return
            except ReadError as error:
                self.notify(str(error), severity="error")
                return
        self.close_screens()
        self.switch_mode(RUN_MODE)

    def open_run(self, directory: Path) -> None:
        """Show a run: attached to its process if it is live, else a replay. Raises ReadError."""
        source = open_run_source(directory)
        source.start()
        self._replace_run(self._view_of(source))
        self.close_screens()
        self.switch_mode(RUN_MODE)

    def show_own_run(self) -> None:
        """Show the first run again."""
        if self._own_view is not None:
            self._replace_run(self._own_view)
        if self.shows_workspace:
            self.action_runs()

    def _view_of(self, source: RunSource) -> ViewState:
        view = self.view
        return ViewState(source, view.palette, charset=view.charset, keys=view.keys, can_leave=True)

    def _replace_run(self, view: ViewState) -> None:
        """Close the shown run, unless it is the first one, and make the screens of another run available."""
        if not self.shows_workspace:  # Textual cannot remove the screens of the current mode
            self.close_screens()
            self.switch_mode(WORKSPACE_MODE)
        if self.source is self.own_source:
            self._own_view = self.view
        else:
            self.view.what_if.cancel()
            if isinstance(self.source, AttachSource):
                self.source.session.close()
        for name in SCREEN_INFO:
            self.remove_mode(name)
        self.begin_run(view)
        self.add_run_modes()
