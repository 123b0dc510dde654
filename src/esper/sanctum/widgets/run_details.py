"""Details of the highlighted run of the workspace: state, results, notes and configuration."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator

from textual.geometry import Size

from esper.common.formatting import (
    format_age,
    format_bytes,
    format_config_value,
    pluralise,
    short_score_name,
    strip_control,
)
from esper.recordings.files.notes import BASELINE_TAG
from esper.recordings.history.measures import DURATION, Measure, listed_measures
from esper.recordings.history.run_groups import config_difference
from esper.recordings.history.run_info import RunInfo
from esper.sanctum.settings import CHANGED, list_settings
from esper.sanctum.symbols import RUN_STATES, wrap_cells
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.run_columns import measure_cell
from esper.sanctum.widgets.workspace_panel import RunKeysPanel
from esper.sanctum.workspace import Workspace

_LABEL_COLS, _VALUE_COLS = 15, 7
"""Widths of the label and of the number of a result."""
_MIN_KEY_COLS, _MAX_KEY_COLS = 14, 28
"""Width of a configuration key."""


class RunDetails(RunKeysPanel):
    """Lines about the highlighted run. While the panel has the focus, the keys of the list scroll it."""

    METRICS = ("run details",)

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view, workspace)
        self._top = 0
        self._scrolled_run: str | None = None
        """Run of the scroll position."""

    def cache_key(self) -> Hashable:
        """Return the version of the workspace, the pending requests, the scroll position and the minute."""
        run = self.workspace.highlighted
        pending = tuple(self.workspace.requests.pending(run.run)) if run is not None else ()
        return self.workspace.version, pending, self._top, self.has_focus, int(time.time() / 60)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the visible lines."""
        run = self.workspace.highlighted
        self.panel_title = ("▸ " if self.has_focus else "") + "run"
        if run is None:
            self.panel_subtitle = None
            return []
        if run.run != self._scrolled_run:
            self._scrolled_run, self._top = run.run, 0
        lines = list(self._all_lines(run, size.width))
        self.num_rows, self.num_visible = len(lines), size.height
        self._top = max(min(self._top, len(lines) - size.height), 0)
        last = min(self._top + size.height, len(lines))
        self.panel_subtitle = f"{self._top + 1}–{last} of {len(lines)}" if len(lines) > size.height else None
        return lines[self._top : last]

    def _all_lines(self, run: RunInfo, width: int) -> Iterator[Line]:
        baseline = self.workspace.baseline
        reference = baseline if baseline is not None and baseline.run != run.run else None
        yield from self._heading(run, width)
        yield self.line()
        yield from self._results(run, reference)
        if run.note:
            yield self.line()
            for row in wrap_cells(strip_control(run.note), max(width - 2, 1)):
                yield self.line(f" {row}", "normal")
        if run.config:
            yield self.line()
            yield from self._configuration(run, reference, width)

    def _heading(self, run: RunInfo, width: int) -> Iterator[Line]:
        title = self.workspace.title_of(run)
        for row in wrap_cells(strip_control(title), max(width - 2, 1)):
            yield self.line(f" {row}", "title")
        if title != run.run:
            yield self.line(f" {strip_control(run.run)}", "dim")
        symbol, role = RUN_STATES.get(run.state, RUN_STATES["unreadable"])
        line = self.line(" ").append(symbol.glyph, role).append(f" {run.health or run.state}", role)
        line.append(" archived" if run.archived else "", "dim").append(
            " baseline" if BASELINE_TAG in run.tags else "", "key"
        )
        rounds = f" of {run.rounds}" if run.rounds else ""
        line.append(f"  round {run.round}{rounds}" if run.round else "", "normal")
        yield line.append(f"  {format_age(time.time() - run.written)}", "dim")
        if pending := self.workspace.requests.pending(run.run):
            yield self.line(f" sending {', '.join(pending)}…", "key")
        if run.problem:
            for row in wrap_cells(strip_control(run.problem), max(width - 2, 1)):
                yield self.line(f" {row}", "warning")
        if run.study:
            trial = f", trial {run.trial}" if run.trial is not None else ""
            yield self.line(" study ", "head").append(f"{strip_control(run.study)}{trial}")
        if tags := [tag for tag in run.tags if tag != BASELINE_TAG]:
            yield self.line(" tags  ", "head").append(strip_control(" ".join(tags)))

    def _results(self, run: RunInfo, baseline: RunInfo | None) -> Iterator[Line]:
        score = short_score_name(run.score_name or "score")
        heading = "results" if baseline is None else f"results, and difference to {self.workspace.title_of(baseline)}"
        yield self.line(f" {strip_control(heading)}", "title")
        for measure in listed_measures().values():
            if measure.column_priority is not None:
                yield self._result(measure.label(score), measure, run, baseline)
        if baseline is not None:
            yield self.line(" one run against one: no interval", "dim")
        size = [pluralise(run.envs, "env")] if run.envs else []
        size += [pluralise(run.steps, "step")] if run.steps else []
        size += [format_bytes(run.bytes)] if run.bytes is not None else []
        duration = DURATION.of(run)
        size += [DURATION.text(duration)] if duration is not None else []
        yield self.line(f" {'size':<{_LABEL_COLS}}", "head").append("  ".join(size))

    def _result(self, label: str, measure: Measure, run: RunInfo, baseline: RunInfo | None) -> Line:
        value, other = measure.of(run), measure.of(baseline)
        unit = run.score_scale.unit if measure.unit == "score" else ""
        text, role = measure_cell(measure, value, run.score_scale)
        line = self.line(f" {strip_control(label):<{_LABEL_COLS}}", "head")
        line.append(text.rjust(_VALUE_COLS), role).append(f" {unit:1}", "dim")
        if value is None or other is None:
            return line
        difference = (
            "0" if value == other else measure.difference_text(value - other, run.score_scale).replace("-", "−")
        )
        return line.append(f" {difference:>9}", "bright")

    def _configuration(self, run: RunInfo, baseline: RunInfo | None, width: int) -> Iterator[Line]:
        key_cols = min(max(width // 2 - 2, _MIN_KEY_COLS), _MAX_KEY_COLS)
        if baseline is not None:
            differences = config_difference(run, baseline)
            count = pluralise(len(differences), "setting")
            yield self.line(f" {count} {'differs' if len(differences) == 1 else 'differ'} from the baseline", "title")
            for key, value, other in differences:
                yield self._setting(key, _value(value), _value(other), key_cols)
            yield self.line()
            yield self.line(" other settings", "title")
            changed = {key for key, _, _ in differences}
            for key, value in run.config.items():
                if key not in changed:
                    yield self._setting(key, _value(value), "", key_cols)
            return
        group = ""
        for setting in list_settings(run.config, {}, is_growth=run.rounds is None):
            if setting.group != group:
                yield from [self.line()] if group else []
                group = setting.group
                yield self.line(f" {'settings that ' if group == CHANGED else ''}{group}", "title")
            yield self._setting(setting.key, setting.value, setting.default, key_cols)

    def _setting(self, key: str, value: str, other: str, key_cols: int) -> Line:
        line = self.line(" ").append_fitted(key, key_cols, "head", keep_end=True).append(" ")
        line.append(value, "bright" if other else "normal")
        return line.append(f"  ({other})" if other else "", "dim")

    def action_move(self, rows: int) -> None:
        """Scroll by rows."""
        self._top = min(max(self._top + rows, 0), max(self.num_rows - self.size.height, 0))
        self.update()


def _value(value: object) -> str:
    return strip_control(format_config_value(value))
