"""Header of the workspace: the directory, and the counts and choices that its panes share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from pathlib import Path

from textual.geometry import Size

from esper.common.formatting import pluralise, strip_control
from esper.recordings.history.run_status import LIVE_STATES
from esper.sanctum.symbols import RUN_STATES, ellipsise
from esper.sanctum.widgets.env_columns import PIN_GLYPH
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.workspace_panel import WorkspacePanel
from esper.sanctum.workspace import Grouping

_MAX_TITLE_COLS = 32
_GROUPINGS = {Grouping.SEEDS: "seeds together", Grouping.ALONE: "each run alone"}
"""Names of the groupings without keys."""


class WorkspaceHeader(WorkspacePanel):
    """One line: directory, number of runs, selection, grouping, baseline and progress of reading."""

    def cache_key(self) -> Hashable:
        """Return the version of the workspace, and how much was read."""
        workspace = self.workspace
        return workspace.version, workspace.was_read, workspace.library.fraction_read

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw as many parts as fit, the first ones first."""
        line = self.line()
        for part in self._parts():
            gap = "  " if line.width else ""
            if line.width + len(gap) + part.width <= size.width:
                line.append(gap).extend(part)
        return [line]

    def _parts(self) -> list[Line]:
        workspace = self.workspace
        states = Counter(run.state for run in workspace.runs)
        runs = self.line(_short_path(workspace.telemetry_dir), "title").append(
            f"  {pluralise(len(workspace.runs), 'run')}", "normal"
        )
        parts = [runs]
        for state in (*LIVE_STATES, "failed", "crashed", "unreadable"):
            if states[state]:
                symbol, role = RUN_STATES[state]
                parts.append(self.line(symbol.glyph, role).append(f" {states[state]} {state}", "normal"))
        if workspace.num_selected:
            curves = pluralise(len(workspace.groups), "curve")
            part = self.line(f"{workspace.num_selected} selected", "bright").append(f" in {curves}", "dim")
            if workspace.num_unlisted:
                part.append(f", {workspace.num_unlisted} not listed", "warning")
            parts.append(part)
        if (baseline := workspace.baseline) is not None:
            text = "Δ to " if workspace.shows_difference else "baseline "
            title = ellipsise(strip_control(workspace.title_of(baseline)), _MAX_TITLE_COLS)
            parts.append(self.line(f"{PIN_GLYPH} ", "key").append(text, "dim").append(title, "normal"))
            if workspace.shows_difference and (count := workspace.num_differences):
                joint = " together" if count > 1 else ""
                parts.append(self.line(f"{pluralise(count, 'difference')}, 95 %{joint}", "dim"))
        keys = " ".join(workspace.group_keys)
        parts.append(self.line("groups ", "dim").append(_GROUPINGS.get(workspace.grouping, f"by {keys}"), "normal"))
        if not workspace.was_read:
            parts.append(self.line("reading the runs", "dim"))
        elif (fraction := workspace.library.fraction_read) < 1:
            parts.append(self.line(f"curves {fraction:.0%} read", "dim"))
        return parts


def _short_path(path: Path) -> str:
    """Return a path relative to the working directory, or with ~ for the home directory."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_absolute() and path.is_relative_to(base) and path != base:
            return strip_control(f"{prefix}{path.relative_to(base)}")
    return strip_control(str(path))
