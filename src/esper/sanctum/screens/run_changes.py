"""Actions of the workspace that change runs or copy commands about them: notes, deletion, run control."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from textual.binding import Binding

from esper.common.configuration.config import Config
from esper.common.control import RequestKind
from esper.common.formatting import format_bytes
from esper.recordings.files.notes import BASELINE_TAG, RunNotes, read_notes
from esper.recordings.files.runs import is_shipped, shortest_name
from esper.recordings.files.segments import ReadError
from esper.recordings.history.run_info import RunInfo
from esper.recordings.history.run_status import LIVE_STATES
from esper.sanctum.keys import bindings_of
from esper.sanctum.run_changes import RunChangeError, changeable_directory
from esper.sanctum.screens.dialogs import Choice, ChoiceDialog, stop_dialog
from esper.sanctum.screens.workspace_base import WorkspaceBase
from esper.sanctum.screens.workspace_dialogs import NotesDialog
from esper.sanctum.view import TOAST_SECONDS, ResumeRun
from esper.sanctum.workspace import Grouping

BROWSER_MESSAGE = "This page only shows the runs. It cannot change them."
"""Notice in place of a change."""


class RunChangesScreen(WorkspaceBase):
    """Base class of the workspace screen, with the actions on the highlighted run and on the shown ones."""

    def action_baseline(self) -> None:
        """Make the highlighted run the baseline, or no longer, and name the tag that is written or removed."""
        run = self.workspace.highlighted
        self._change(self.workspace.toggle_baseline)
        changed = self.workspace.highlighted
        if run is not None and changed is not None and run.tags != changed.tags:
            is_baseline = BASELINE_TAG in changed.tags
            text = (
                "is the baseline: its notes have" if is_baseline else "is no longer the baseline: its notes have lost"
            )
            self.notify(f"{self.workspace.title_of(run)} {text} the tag {BASELINE_TAG}.", timeout=5)

    def _change(self, change: Callable[[RunInfo], None]) -> None:
        """Change the highlighted run; notify the user if that fails."""
        run = self.workspace.highlighted
        if run is None or self._refuse_in_browser():
            return
        try:
            change(run)
        except RunChangeError as error:
            self.notify(f"{error}", severity="error", timeout=TOAST_SECONDS)
        self.update()

    def _refuse_in_browser(self) -> bool:
        if self.app.is_web:
            self.notify(BROWSER_MESSAGE, severity="warning")
        return self.app.is_web

    def action_edit_notes(self) -> None:
        """Edit name, tags and note of the highlighted run."""
        run = self.workspace.highlighted
        if run is None or self._refuse_in_browser():
            return
        try:
            stored = read_notes(changeable_directory(run))
        except (ReadError, RunChangeError) as error:
            self.notify(str(error), severity="error", timeout=TOAST_SECONDS)
            return

        def save(edited: RunNotes | None) -> None:
            if edited is not None:
                values = {"name": edited.name, "tags": edited.tags, "note": edited.note}
                self._change(lambda _: self.workspace.change_notes(run, lambda notes: replace(notes, **values)))

        self.app.push_screen(NotesDialog(run.run, stored), save)

    def action_archive(self) -> None:
        """Archive the highlighted run, or no longer."""
        run = self.workspace.highlighted
        self._change(self.workspace.toggle_archived)
        if run is not None and not run.archived and all(other.run != run.run for other in self.workspace.listed):
            self.notify(f"{run.title}: archived. The filter `archived` lists it.", timeout=5)

    def action_delete(self) -> None:
        """Delete the directory of the highlighted run, after a question."""
        run = self.workspace.highlighted
        if run is None or self._refuse_in_browser():
            return
        if run.state in LIVE_STATES:
            stop = self.view.key_names["workspace.stop"]
            self.notify(f"{run.title} is {run.state}: a live run is not deleted. {stop} stops it.", severity="warning")
            return

        if is_shipped(Path(run.path)):
            self._change(self.workspace.delete)  # shows why this is impossible
            return

        def delete(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self._change(lambda _: self.workspace.delete(run))
            else:
                self.notify(f"{run.title} is kept.", timeout=3)

        name = f"{run.title}: delete" if run.name else "Delete"
        size = "" if run.bytes is None else f" ({format_bytes(run.bytes)})"
        question = f"{name} {run.path}{size} with its events, checkpoints and notes?"
        # A held key to delete must not delete: it only highlights the choice, for Enter.
        keys = [Binding("y,D", "choose(0)"), Binding("n", "dismiss"), *bindings_of("highlight(0)", "workspace.delete")]
        choices = [Choice("d", "delete", True)]
        self.app.push_screen(ChoiceDialog(question, choices, is_destructive=True, bindings=keys), delete)

    def action_request(self, kind: str) -> None:
        """Send a request to the highlighted run; a pause of a crashed run resumes it."""
        run = self.workspace.highlighted
        if run is not None and run.state == "crashed" and kind == RequestKind.PAUSE.value:
            self.post_message(ResumeRun(Path(run.path)))
            return
        self._change(lambda run: self.workspace.request(run, RequestKind(kind)))

    def action_stop_run(self) -> None:
        """End the highlighted run, after a question."""
        run = self.workspace.highlighted
        if run is None or self._refuse_in_browser():
            return
        if run.state not in LIVE_STATES:
            self._change(lambda run: self.workspace.request(run, RequestKind.STOP))  # shows why this is impossible
            return

        def stop(kind: RequestKind | None) -> None:
            if kind is not None:
                self._change(lambda _: self.workspace.request(run, kind))

        paused = run.state in {"paused", "held"}
        dialog = stop_dialog(self.view.key_names, attached=False, paused=paused, cause=None, run=run.title)
        self.app.push_screen(dialog, stop)

    def action_copy(self, command: str) -> None:
        """Copy the command that exports or compares the shown runs."""
        runs = [shortest_name(Path(run.path), Path(Config().telemetry_dir)) for run in self.workspace.shown]
        if not runs:
            return
        options = ["--to", "csv"] if command == "export" else self._group_options()
        text = shlex.join(["esper-sanctum", command, *runs, *options])
        self.app.copy_to_clipboard(text)
        self.notify(f"Command copied, to run in a terminal: {text}", timeout=TOAST_SECONDS)

    def _group_options(self) -> list[str]:
        """Return the options that make `compare` group the runs as the charts do."""
        workspace = self.workspace
        if workspace.grouping is Grouping.KEYS:
            return ["--group-by", ",".join(workspace.group_keys)]
        has_groups = any(len(group.group.runs) > 1 for group in workspace.groups)
        return ["--group-by"] if workspace.grouping is Grouping.SEEDS and has_groups else []
