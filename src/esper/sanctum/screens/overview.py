"""The overview screen: envs and their scores, policy heads, devices, and the latest log lines."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.widgets import Input

from esper.common.filters import FilterError, IncompleteFilterError
from esper.common.formatting import format_time_of_day, strip_control
from esper.recordings.events import DeviceSampled
from esper.recordings.health.rules.lanes import is_nearly_full
from esper.recordings.history.run_log import LogRow, group_rows
from esper.recordings.state.health_stats import memory_name
from esper.sanctum.env_filter import EnvFilter, parse_filter
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.screens.overview_rows import (
    ROOMY_ROWS,
    StackedRows,
    divide_left_column,
    divide_stack,
    min_charts_height,
)
from esper.sanctum.symbols import SEVERITIES, Cell, compact_cell, ellipsise, number_cell, percent_cell, wrap_cells
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_table import EnvTable, FilterBox
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.front_chart import FrontChart
from esper.sanctum.widgets.heads import HeadList
from esper.sanctum.widgets.panel import DevicePanel, Line, Panel
from esper.sanctum.widgets.population_score import RoundScores, StepScores
from esper.sanctum.widgets.search_summary import SearchSummary

MAP_ENVS = 128
"""Number of envs from which the heat map is shown first."""
_BESIDE_COLS, _BELOW_ROWS = 60, 8
"""Width below which one chart is below the other, if both together have this height."""
_WRAP_LOSS_COLS = 3
"""Columns that wrapping between the numbers of envs may leave blank in each line."""
_ROWS_FOR_ENVS = 24
"""Minimum height of the log from which a group of equal lines names its envs, in up to two lines."""
_MAX_BARE_LOG_ROWS = 3
"""Height up to which all rows of the log are for its lines, none for its title."""
_WIDE_MEMORY_COLS = 52
"""Minimum width of the device panel for long labels and aligned sizes of a memory."""
_LOG_FRAME_COLS, _LOG_TIME_COLS = 4, 9
"""Columns for the severity glyph and gaps before the text of a log line, and for its time."""
_NARROW_LOG_COLS, _NARROW_LOG_INDENT = 50, 3
"""Width below which a log line has no time, and its further rows are indented by only this many columns."""
_WRAP_CACHE_LINES = 512


class OverviewPanels(Container):
    """All panels of the overview: in two columns, or below each other where `sanctum.tcss` says so.

    Args:
        view: State that all panels share.
    """

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._view = view
        self._divided: Hashable = None
        """Everything that the heights of the panels depend on, as last set."""

    def on_resize(self) -> None:
        """Divide the new height."""
        self.divide_rows()

    def on_env_map_regrouped(self) -> None:
        """Give the map the height that its cells now need."""
        self.divide_rows()

    def divide_rows(self) -> None:
        """Set the heights of the panels, if anything that they depend on has changed."""
        heads, devices = self.query_one(HeadList).preferred_height(), self.query_one(DeviceList).preferred_height()
        table, heat_map, filter_box = self.query_one(EnvTable), self.query_one(EnvMap), self.query_one(FilterBox)
        shown = table.display, heat_map.grouping, filter_box.display
        stacked = self.styles.layout is not None and self.styles.layout.name == "vertical"
        frame = 0 if stacked else 2
        # Just after a change of the terminal's size, this is still the width of before.
        width = self.size.width if stacked else self.query_one("#left").size.width - frame
        key = (self.size, width, len(self._view.source.state.envs), shown, heads, devices)
        if key == self._divided or not self.size:
            return
        self._divided = key
        limit = self.size.height - frame
        if table.display:
            envs = table.wanted_height(limit, is_short=self.size.height < ROOMY_ROWS)
        else:
            limit -= min_charts_height(self.size.height, framed=not stacked)
            envs = heat_map.wanted_height(width, limit)
        envs += frame + filter_box.display
        if stacked:
            short, slim = self.screen.has_class("-low"), self.screen.has_class("-slim")
            if not table.display:  # all cells of a map in one view are worth more than one line about heads
                short = short or envs + min_charts_height(self.size.height, framed=False) + 2 > self.size.height
            self._stack(divide_stack(self.size.height, envs, heads, devices, short=short, slim=slim))
        else:
            self._set_scores_height(divide_left_column(self.size.height, envs), width, titled=False)
            for panel in self.query("#right > *"):
                panel.display, panel.styles.height = True, None
            right = self.query_one("#right")
            right.styles.height, right.display = None, True

    def _stack(self, rows: StackedRows) -> None:
        self._set_scores_height(rows.charts, self.size.width, titled=True)
        self._set_height(HeadList, rows.heads, titled=rows.heads > 1)
        self._set_height(DeviceList, rows.devices, titled=rows.devices > 1)
        self._set_height(LogPreview, rows.log, titled=rows.log > _MAX_BARE_LOG_ROWS)
        right = self.query_one("#right")
        height = rows.heads + rows.devices + rows.log
        right.styles.height, right.display = height, height > 0

    def _set_scores_height(self, height: int, width: int, *, titled: bool) -> None:
        """Set the height of both charts. They are below each other if one beside the other is too narrow."""
        scores = self.query_one("#scores")
        scores.display, scores.styles.height = height > 0, height
        scores.set_class(width < _BESIDE_COLS and height >= _BELOW_ROWS, "-below")
        for chart in scores.query(ChartPanel):
            chart.set_class(titled, "-titled")

    def _set_height(self, panel: type[Panel], height: int, *, titled: bool = False) -> None:
        widget = self.query_one(panel)
        widget.display, widget.styles.height = height > 0, height
        widget.set_class(titled, "-titled")


class OverviewScreen(RunScreen):
    """Envs and their scores, policy heads, devices and log."""

    AUTO_FOCUS = "EnvTable"
    FITS_SMALL = True
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.ENVS, KeyCategory.TABLE, KeyCategory.OVERVIEW)
    BINDINGS = bindings(KeyCategory.OVERVIEW)

    _view_chosen = False
    """True once the table or the map was chosen, by the number of envs or by the user."""

    def body(self) -> ComposeResult:
        """Yield the state of a growth, and two columns of panels."""
        yield SearchSummary(self.view)
        with OverviewPanels(self.view):
            with Vertical(id="left"):
                yield EnvTable(self.view)
                yield EnvMap(self.view)
                yield FilterBox()
                with Container(id="scores"):
                    yield FrontChart(self.view)
                    yield RoundScores(self.view)
                    yield StepScores(self.view)
            with Vertical(id="right"):
                yield HeadList(self.view)
                yield DeviceList(self.view)
                yield LogPreview(self.view)

    def action_map(self) -> None:
        """Switch between the env table and the env heat map."""
        self._view_chosen = True
        table, heat_map = self.query_one(EnvTable), self.query_one(EnvMap)
        focused = table.has_focus or heat_map.has_focus
        table.display, heat_map.display = heat_map.display, table.display
        map_categories = (KeyCategory.MAP, KeyCategory.OVERVIEW)
        self.query_one(Footer).categories = self.CATEGORIES if table.display else map_categories
        if focused or self.focused is None:
            self.focus_main()
        self.update()

    def focus_main(self) -> None:
        """Focus the env table or the env heat map, whichever is shown."""
        table, heat_map = self.query_one(EnvTable), self.query_one(EnvMap)
        (table if table.display else heat_map).focus()

    def action_filter(self) -> None:
        """Open the filter box."""
        state, box = self.view.source.state, self.query_one(FilterBox)
        steps = (env.latest for env in state.envs if env.latest and math.isfinite(env.latest.score))
        score = next((state.score_scale.text(step.score) for step in steps), "50%")
        box.query_one(Input).placeholder = f"score<{score} stage:F anomaly"
        box.open()
        self._preview("")
        self.update()

    def action_clear(self) -> None:
        """Remove the filter."""
        self.query_one(FilterBox).clear()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the key to the app if there is no filter."""
        return bool(self.view.env_filter) if action == "clear" else super().check_action(action, parameters)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show how many envs would match; the last confirmed filter remains."""
        self._preview(event.value)

    def on_filter_box_closed(self, event: FilterBox.Closed) -> None:
        """Apply the confirmed filter, and focus the env table or heat map."""
        state = self.view.source.state
        self.view.env_filter = parse_filter(event.text, state) if event.text.strip() else None
        self.focus_main()
        self.update()

    def update(self) -> None:
        """Update all panels, their heights, and the count of matching envs, which can change with each step."""
        num_envs = len(self.view.source.state.envs)
        self.set_class(self.view.source.state.search is not None, "-growth")
        if num_envs and not self._view_chosen:
            self._view_chosen = True
            if num_envs >= MAP_ENVS:
                self.action_map()
        self.query_one(OverviewPanels).divide_rows()
        super().update()
        box = self.query_one(FilterBox)
        if box.typing:
            if box.is_accepted:
                self._preview(box.text)
        elif self.view.env_filter:
            box.set_message(self._count_matching(self.view.env_filter))

    def _preview(self, text: str) -> None:
        box = self.query_one(FilterBox)
        try:
            env_filter = parse_filter(text, self.view.source.state)
            message = f"{self._count_matching(env_filter)}; Enter applies" if text.strip() else ""
        except FilterError as error:
            box.set_message(str(error), accepted=False, invalid=not isinstance(error, IncompleteFilterError))
        else:
            box.set_message(message)

    def _count_matching(self, env_filter: EnvFilter) -> str:
        state = self.view.source.state
        matching = env_filter.matching(state, self.view.severity_by_env())
        return f"{len(matching)} of {len(state.envs)}"


class DeviceList(DevicePanel):
    """One line per lane with its envs and busy time, and one line per memory. CPU lanes of a process share a memory."""

    METRICS = ("busy", "memory")

    PANEL_TITLE = "devices ─ busy, memory GiB"

    def preferred_height(self) -> int:
        """Return the number of lanes and memories."""
        devices = self.state.devices
        return max(len(devices) + len(self._memories()), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the lanes, each followed by its memory; everything on one line if the panel has only one."""
        if not self.state.devices:
            return self.message("no device sample yet")
        if size.height == 1:
            return [self._compact(size.width)]
        width = size.width
        name_width = max(6, *(len(strip_control(name)) for name in self.state.devices)) + 1
        memories = self._memories()
        lines: list[Line] = []
        for name, sample in self.state.devices.items():
            lines.append(self._busy(name, sample, name_width, width))
            if name in memories:
                lines.append(self._memory(memories.pop(name), width))
        lines += [self._memory(sample, width) for sample in memories.values()]
        return lines

    def _memories(self) -> dict[str, DeviceSampled]:
        """Latest sample of each memory, keyed by memory name."""
        return {memory_name(name): sample for name, sample in self.state.devices.items()}

    def _busy(self, name: str, sample: DeviceSampled, name_width: int, width: int) -> Line:
        line = self.line(" ").append_fitted(strip_control(name), name_width, keep_end=True)
        line.append(f"{sample.envs:>3} {'env ' if sample.envs == 1 else 'envs'}  ", "dim")
        line.append_bar(sample.busy, max(width - line.width - 9, 4), "spark").append(" ")
        return line.append_cell(percent_cell(sample.busy)).append(" %", "dim")

    def _memory(self, sample: DeviceSampled, width: int) -> Line:
        """Draw the bytes held by the run, the bytes in use or reserved, and the total."""
        cpu, wide = _is_cpu(sample.device), width >= _WIDE_MEMORY_COLS
        labels = ("process", "machine") if cpu else ("allocated", "reserved")
        if not wide:
            labels = ("run", "machine") if cpu else ("live", "reserved")
        line = self.line(" ")
        for label, size in zip(labels, (sample.allocated, sample.used if cpu else sample.reserved), strict=True):
            line.append(f"{label} ", "dim").append_cell(_gib(size, wide=wide), self._role(sample)).append(
                "  " if wide else " "
            )
        line.append("of ", "dim").append_cell(_gib(sample.total, wide=wide))
        return line.append(" GiB" if wide else "", "dim")  # without room, the unit stands in the title only

    def _role(self, sample: DeviceSampled) -> str:
        """Return the role of a size in the memory that was sampled."""
        fraction = sample.used / sample.total if sample.used is not None and sample.total else math.nan
        limits = self.view.thresholds.limits
        return "warning" if is_nearly_full(fraction, limits) else "normal"

    def _compact(self, width: int) -> Line:
        """Draw all lanes and memories that fit on one line."""
        cells = [self.line(" lanes busy", "head")]
        for name, sample in self.state.devices.items():
            cells.append(self.line(f"  {strip_control(name)} ", "dim").append_cell(compact_cell(_percent(sample.busy))))
            cells[-1].append(" %", "dim")
        for sample in self._memories().values():
            held = sample.allocated if _is_cpu(sample.device) else sample.reserved
            cells.append(self.line("  memory ", "dim").append_cell(_gib(held, wide=False), self._role(sample)))
            cells[-1].append(" of ", "dim").append_cell(_gib(sample.total, wide=False)).append(" GiB", "dim")
        line = self.line()
        for cell in cells:
            if line.width + cell.width <= width:
                line.extend(cell)
        return line


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else fraction * 100


def _is_cpu(name: str) -> bool:
    return memory_name(name) != name


def _gib(size: int | None, *, wide: bool) -> Cell:
    """Format bytes in GiB: aligned at the decimal point if `wide`, else without padding."""
    value = None if size is None else size / 2**30
    return number_cell(value, 4, 2) if wide else compact_cell(value, 3 if value is None or value >= 1 else 2)


class LogPreview(Panel):
    """The latest log lines, as many as fit. Equal lines of a step are one, as on the log screen."""

    METRICS = ("log",)

    PANEL_TITLE = "log"

    def cache_key(self) -> Hashable:
        """Return a key that changes with every log line."""
        return self.state.log[-1].seq if self.state.log else 0

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the latest rows of the log; the oldest shown row may lack its first lines."""
        lines: list[Line] = []
        for row in reversed(group_rows(self.state.log)):
            lines = self._draw_row(row, size) + lines
            if len(lines) >= size.height:
                break
        return lines[-size.height :]

    def _draw_row(self, log_row: LogRow, size: Size) -> list[Line]:
        """Draw the moment of a row of the log, a glyph for a warning or an error, and the wrapped text."""
        lines: list[Line] = []
        entry, width = log_row.line, size.width
        text, is_narrow = log_row.text, width < _NARROW_LOG_COLS
        column = _LOG_FRAME_COLS + self.view.moment_cols + (0 if is_narrow else _LOG_TIME_COLS)
        if log_row.envs and size.height >= _ROWS_FOR_ENVS:
            envs = " ".join(f"{env:02d}" for env in log_row.envs)
            text = ellipsise(f"{text}: env {envs}", 2 * (width - column - _WRAP_LOSS_COLS))
        role = "normal" if entry.severity == "info" else "bright"
        for number, part in enumerate(_wrapped(text, width, column, _NARROW_LOG_INDENT if is_narrow else column)):
            line = self.line()
            if number == 0:
                line.append("" if is_narrow else f" {format_time_of_day(entry.time)}", "dim")
                line.append(f" {strip_control(entry.moment):>{self.view.moment_cols}} ", "dim")
                if entry.severity != "info":
                    line.append(SEVERITIES[entry.severity].glyph, entry.severity)
            lines.append(line.append(part[line.width :], role))
        return lines


@lru_cache(_WRAP_CACHE_LINES)
def _wrapped(text: str, width: int, column: int, indent: int) -> list[str]:
    """Wrap a text. The first row starts at `column`, further rows at `indent`."""
    text = strip_control(text)
    first = wrap_cells(text, max(width - column, 1))[0]
    rest = text[len(first) :].strip()
    rows = wrap_cells(rest, max(width - indent, 1)) if rest else []
    return [" " * column + first, *(" " * indent + row for row in rows)]
