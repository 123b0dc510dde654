"""Resume actions: continue a run that has ended before its last round, in a background process."""

from __future__ import annotations

from esper.recordings.files.segments import ReadError
from esper.sanctum.actions.workspace import WorkspaceActions
from esper.sanctum.run_changes import Resumption
from esper.sanctum.source import AttachSource, RunSource
from esper.sanctum.view import TOAST_SECONDS, ResumeRun

BROWSER_MESSAGE = "This page only shows the run. It cannot control it."
"""Notice in place of a request."""


class ResumeActions(WorkspaceActions):
    """Resume a run from its dashboard, from a replay and from the workspace.

    Args:
        source: Source of the first run.
    """

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        self._resumption: Resumption | None = None
        """The run that is being resumed; None without one."""

    def on_resume_run(self, message: ResumeRun) -> None:
        """Start to resume a run, unless the dashboard only shows it."""
        shows_run = self.view.has_run and not self.shows_workspace
        requests = self.source.requests if shows_run else None
        if self.refuse_in_browser(BROWSER_MESSAGE):
            return
        if requests is not None and requests.disabled_reason is not None:
            self.notify(requests.disabled_reason, severity="warning")
            return
        if self._resumption is not None:
            self.notify(f"{self._resumption.run.name} is being resumed; wait until it trains.", severity="warning")
            return
        try:
            self._resumption = Resumption(message.path.absolute(), self.source.task if shows_run else None)
        except OSError as error:
            self.notify(f"{message.path.name} cannot be resumed: {error.strerror}", severity="error")
            return
        self.notify(f"Resuming {message.path.name} in a background process, which loads torch first.", timeout=5)

    def poll_resumption(self) -> None:
        """Report the result of a resumption, and attach to the run if it is shown. Called at every tick."""
        resumption = self._resumption
        if resumption is None or (code := resumption.poll()) is None:
            return
        self._resumption = None
        run = resumption.run
        if code:
            self.notify(f"{run.name} is not resumed: {resumption.output}", severity="error", timeout=TOAST_SECONDS)
            return
        self.notify(f"{run.name} trains again, in a background process.", timeout=5)
        shown = self.source.directory if self.view.has_run else None
        is_shown = shown is not None and shown.resolve() == run.resolve()
        if is_shown and not isinstance(self.source, AttachSource):  # which follows the run by itself
            try:
                self.open_run(run)
            except ReadError as error:
                self.notify(str(error), severity="error")
