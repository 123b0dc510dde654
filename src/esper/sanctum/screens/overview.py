"""The overview screen: envs and their accuracy, policy heads, devices, and the latest log lines."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.geometry import Size

from esper.formatting import format_time_of_day, strip_control
from esper.health.rules import is_nearly_full
from esper.health.thresholds import Thresholds
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.env_filter import FilterError
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, Cell, compact_cell, number_cell, percent_cell, wrap_cells
from esper.sanctum.widgets.accuracy import PopulationAccuracy
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_table import EnvTable, FilterBox
from esper.sanctum.widgets.heads import HeadList
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.events import DeviceSampled
from esper.telemetry.health_stats import memory_name
from esper.telemetry.log_lines import LogLine

_WIDE_MEMORY_COLS = 52
"""Minimum width of the device panel for long labels and aligned sizes of a memory."""
_LOG_TEXT_COLUMN = 12
"""Column where the text of a log line starts, after the time and the severity glyph."""
_NARROW_LOG_COLS, _NARROW_LOG_INDENT = 50, 3
"""Width below which further rows of a log line are indented by only this many columns."""
_WRAP_CACHE_LINES = 512


class OverviewScreen(RunScreen):
    """Envs and their accuracy on the left; policy heads, devices and log on the right."""

    AUTO_FOCUS = "EnvTable"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.TABLE, KeyCategory.OVERVIEW)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.OVERVIEW)]

    def body(self) -> ComposeResult:
        """Yield two columns of panels; sanctum.tcss stacks them on a narrow terminal."""
        with Vertical(id="left"):
            yield EnvTable(self.view)
            yield EnvMap(self.view)
            yield FilterBox()
            yield PopulationAccuracy(self.view)
        with Vertical(id="right"):
            yield HeadList(self.view)
            yield DeviceList(self.view)
            yield LogPreview(self.view)

    def on_mount(self) -> None:
        """Show the env table, not the heat map."""
        self.query_one(EnvMap).display = False

    def action_map(self) -> None:
        """Switch between the env table and the env heat map."""
        table, heat_map = self.query_one(EnvTable), self.query_one(EnvMap)
        table.display, heat_map.display = heat_map.display, table.display
        self.query_one(FilterBox).display = table.display and bool(table.filter)
        self._focus_envs()

    def _focus_envs(self) -> None:
        table, heat_map = self.query_one(EnvTable), self.query_one(EnvMap)
        (table if table.display else heat_map).focus()

    def action_filter(self) -> None:
        """Open the filter box of the env table."""
        if not self.query_one(EnvTable).display:
            self.action_map()
        self.query_one(FilterBox).open()

    def action_clear(self) -> None:
        """Remove the filter of the env table."""
        if self.query_one(EnvTable).filter:
            self.query_one(FilterBox).clear()

    def on_filter_box_typed(self, event: FilterBox.Typed) -> None:
        """Apply the filter while the user types it."""
        self._filter(event.text)

    def on_filter_box_closed(self, event: FilterBox.Closed) -> None:
        """Apply the final filter, and focus the env table or heat map."""
        self._filter(event.text)
        self._focus_envs()

    def update(self) -> None:
        """Update all panels, and the count of matching envs, which can change with each step."""
        super().update()
        if self.query_one(EnvTable).filter and not self.query_one(FilterBox).typing:
            self._show_match_count()

    def _filter(self, text: str) -> None:
        try:
            self.query_one(EnvTable).set_filter(text)
        except FilterError as error:
            self.query_one(FilterBox).set_message(str(error), invalid=True)
        else:
            self._show_match_count()

    def _show_match_count(self) -> None:
        table = self.query_one(EnvTable)
        total = len(self.view.source.state.envs)
        self.query_one(FilterBox).set_message(f"{table.num_matching} of {total}" if table.filter else "")


class DeviceList(Panel):
    """One line per lane with its envs and busy time, and one line per memory. CPU lanes of a process share a memory."""

    METRICS = ("busy", "memory")

    PANEL_TITLE = "devices ─ lanes busy, memory"

    def cache_key(self) -> Hashable:
        """Return a key that changes with every device sample."""
        return self.state.started is None, *(sample.seq for sample in self.state.devices.values())

    def preferred_height(self) -> int:
        """Return the number of lanes and memories."""
        devices = self.state.devices
        return max(len(devices) + len(self._memories()), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the lanes, each followed by its memory; everything on one line if the panel has only one."""
        if not self.state.devices:
            return [self.line().append(" no device sample yet", "dim")] if self.state.started else []
        if size.height == 1:
            return [self._compact()]
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
        line = (
            self.line()
            .append(" ")
            .append_fitted(strip_control(name), name_width)
            .append(f"{sample.envs:>3} {'env ' if sample.envs == 1 else 'envs'}  ", "dim")
        )
        line.append_bar(sample.busy, max(width - line.width - 9, 4), "spark").append(" ")
        return line.append_cell(percent_cell(sample.busy)).append(" %", "dim")

    def _memory(self, sample: DeviceSampled, width: int) -> Line:
        """Draw the bytes held by the run, the bytes in use or reserved, and the total."""
        cpu, wide = _is_cpu(sample.device), width >= _WIDE_MEMORY_COLS
        labels = ("process", "machine") if cpu else ("allocated", "reserved")
        if not wide:
            labels = ("rss", "used") if cpu else ("alloc", "res")
        line = self.line().append(" ")
        for label, size in zip(labels, (sample.allocated, sample.used if cpu else sample.reserved), strict=True):
            line.append(f"{label} ", "dim").append_cell(_gib(size, wide=wide), self._role(sample)).append(
                "  " if wide else " "
            )
        return line.append("of ", "dim").append_cell(_gib(sample.total, wide=wide)).append(" GiB", "dim")

    def _role(self, sample: DeviceSampled) -> str:
        """Return the role of a size in the memory that was sampled."""
        fraction = sample.used / sample.total if sample.used is not None and sample.total else math.nan
        limits = Thresholds.from_recording(self.state.started).limits
        return "warning" if is_nearly_full(fraction, limits) else "normal"

    def _compact(self) -> Line:
        line = self.line().append(" ")
        for name, sample in self.state.devices.items():
            line.append(f"{strip_control(name)} ", "dim").append_cell(percent_cell(sample.busy)).append(" %  ", "dim")
        for sample in self._memories().values():
            held = sample.allocated if _is_cpu(sample.device) else sample.reserved
            line.append_cell(_gib(held, wide=False), self._role(sample)).append(" of ", "dim")
            line.append_cell(_gib(sample.total, wide=False)).append(" GiB  ", "dim")
        return line


def _is_cpu(name: str) -> bool:
    return memory_name(name) != name


def _gib(size: int | None, *, wide: bool) -> Cell:
    """Format bytes in GiB: aligned at the decimal point if `wide`, else without padding."""
    value = None if size is None else size / 2**30
    return number_cell(value, 4, 2) if wide else compact_cell(value, 3 if value is None or value >= 1 else 2)


class LogPreview(Panel):
    """The latest log lines, as many as fit."""

    METRICS = ("log",)

    PANEL_TITLE = "log"

    def cache_key(self) -> Hashable:
        """Return a key that changes with every log line."""
        return self.state.log[-1].seq if self.state.log else 0

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the latest log lines; the oldest shown line may lack its first rows."""
        lines: list[Line] = []
        for entry in reversed(self.state.log[-size.height :]):
            lines = self._entry(entry, size.width) + lines
            if len(lines) >= size.height:
                break
        return lines[-size.height :]

    def _entry(self, entry: LogLine, width: int) -> list[Line]:
        """Draw the time, a glyph for a warning or an error, and the wrapped text of a log line."""
        lines: list[Line] = []
        role = "normal" if entry.severity == "info" else "bright"
        indent = " " * (_LOG_TEXT_COLUMN if width >= _NARROW_LOG_COLS else _NARROW_LOG_INDENT)
        for row, text in enumerate(_wrapped(entry.text, width, indent)):
            line = self.line()
            if row == 0:
                line.append(f" {format_time_of_day(entry.time)} ", "dim")
                if entry.severity != "info":
                    line.append(SEVERITIES[entry.severity].glyph, entry.severity)
            lines.append(line.append(text[line.width :], role))
        return lines


@lru_cache(_WRAP_CACHE_LINES)
def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Wrap a text. The first row starts at `_LOG_TEXT_COLUMN`, further rows after `indent`."""
    text = strip_control(text)
    first = wrap_cells(text, max(width - _LOG_TEXT_COLUMN, 1))[0]
    rest = text[len(first) :].strip()
    rows = wrap_cells(rest, max(width - len(indent), 1)) if rest else []
    return [" " * _LOG_TEXT_COLUMN + first, *(indent + row for row in rows)]
