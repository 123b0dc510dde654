"""The first screen: is it alive, is it learning, is anything wrong."""

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
from esper.health.rules import MAX_MEMORY_FRACTION
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
from esper.telemetry.state import LogLine


class OverviewScreen(RunScreen):
    """The population to the left; what teaches it and what carries it to the right."""

    AUTO_FOCUS = "EnvTable"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.TABLE, KeyCategory.OVERVIEW)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.OVERVIEW)]

    def body(self) -> ComposeResult:
        """Two columns; sanctum.tcss lays them below each other where it is narrow."""
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
        """The table first."""
        self.query_one(EnvMap).display = False

    def action_map(self) -> None:
        """The weather map in place of the table, or the table again."""
        table, weather = self.query_one(EnvTable), self.query_one(EnvMap)
        table.display, weather.display = weather.display, table.display
        self.query_one(FilterBox).display = table.display and bool(table.filter)
        self._focus_envs()

    def _focus_envs(self) -> None:
        table, weather = self.query_one(EnvTable), self.query_one(EnvMap)
        (table if table.display else weather).focus()

    def action_filter(self) -> None:
        """Type a filter of the table."""
        if not self.query_one(EnvTable).display:
            self.action_map()
        self.query_one(FilterBox).open()

    def action_clear(self) -> None:
        """Show all envs of the table."""
        if self.query_one(EnvTable).filter:
            self.query_one(FilterBox).clear()

    def on_filter_box_typed(self, event: FilterBox.Typed) -> None:
        """Show at once what a filter leaves."""
        self._filter(event.text)

    def on_filter_box_closed(self, event: FilterBox.Closed) -> None:
        """Back to the table, or the weather map in its place."""
        self._filter(event.text)
        self._focus_envs()

    def update(self) -> None:
        """How many envs the filter leaves may be others with each step."""
        super().update()
        if self.query_one(EnvTable).filter and not self.query_one(FilterBox).typing:
            self._say_count()

    def _filter(self, text: str) -> None:
        try:
            self.query_one(EnvTable).set_filter(text)
        except FilterError as error:
            self.query_one(FilterBox).set_message(str(error), invalid=True)
        else:
            self._say_count()

    def _say_count(self) -> None:
        table = self.query_one(EnvTable)
        total = len(self.view.source.state.envs)
        self.query_one(FilterBox).set_message(f"{table.num_matching} of {total}" if table.filter else "")


_WIDE = 52


class DeviceList(Panel):
    """A line per device with its envs and busy time, and one with its memory. The CPU lanes of a process share one."""

    METRICS = ("busy", "memory")

    PANEL_TITLE = "devices ─ lanes busy, memory"

    def cache_key(self) -> Hashable:
        """Changes with every sample."""
        return self.state.started is None, *(sample.seq for sample in self.state.devices.values())

    def preferred_height(self) -> int:
        """A line for each device and each memory."""
        devices = self.state.devices
        return max(len(devices) + len(self._memories()), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Everything on one line where there is only one; else a table."""
        if not self.state.devices:
            return [self.line().append(" no sample of the devices yet", "dim")] if self.state.started else []
        if size.height == 1:
            return [self._compact()]
        width = size.width
        names = max(6, *(len(strip_control(name)) for name in self.state.devices)) + 1
        memories = self._memories()
        lines: list[Line] = []
        for name, sample in self.state.devices.items():
            lines.append(self._busy(name, sample, names, width))
            if name in memories:
                lines.append(self._memory(memories.pop(name), width))
        lines += [self._memory(sample, width) for sample in memories.values()]
        return lines

    def _memories(self) -> dict[str, DeviceSampled]:
        """The last sample of each memory there is."""
        return {memory_name(name): sample for name, sample in self.state.devices.items()}

    def _busy(self, name: str, sample: DeviceSampled, names: int, width: int) -> Line:
        line = (
            self.line()
            .append(" ")
            .append_fitted(strip_control(name), names)
            .append(f"{sample.envs:>3} {'env ' if sample.envs == 1 else 'envs'}  ", "dim")
        )
        line.append_bar(sample.busy, max(width - line.width - 9, 4), "spark").append(" ")
        return line.append_cell(percent_cell(sample.busy)).append(" %", "dim")

    def _memory(self, sample: DeviceSampled, width: int) -> Line:
        """What the run holds, what is taken in all, and the whole. Where it is narrow, in short words."""
        cpu, wide = _is_cpu(sample.device), width >= _WIDE
        words = ("process", "machine") if cpu else ("allocated", "reserved")
        if not wide:
            words = ("rss", "used") if cpu else ("alloc", "res")
        line = self.line().append(" ")
        for word, size in zip(words, (sample.allocated, sample.used if cpu else sample.reserved), strict=True):
            line.append(f"{word} ", "dim").append_cell(_gib(size, wide=wide), _role(sample)).append(
                "  " if wide else " "
            )
        return line.append("of ", "dim").append_cell(_gib(sample.total, wide=wide)).append(" GiB", "dim")

    def _compact(self) -> Line:
        line = self.line().append(" ")
        for name, sample in self.state.devices.items():
            line.append(f"{strip_control(name)} ", "dim").append_cell(percent_cell(sample.busy)).append(" %  ", "dim")
        for sample in self._memories().values():
            held = sample.allocated if _is_cpu(sample.device) else sample.reserved
            line.append_cell(_gib(held, wide=False), _role(sample)).append(" of ", "dim")
            line.append_cell(_gib(sample.total, wide=False)).append(" GiB  ", "dim")
        return line


def _is_cpu(name: str) -> bool:
    return memory_name(name) != name


def _gib(size: int | None, *, wide: bool) -> Cell:
    """A size in GiB; in a column of its own where there is room."""
    value = None if size is None else size / 2**30
    return number_cell(value, 4, 2) if wide else compact_cell(value, 3 if value is None or value >= 1 else 2)


def _role(sample: DeviceSampled) -> str:
    share = sample.used / sample.total if sample.used is not None and sample.total else math.nan
    return "warning" if share >= MAX_MEMORY_FRACTION else "normal"


_INDENT = 12
"""Columns of the time and the glyph."""


class LogPreview(Panel):
    """As many of the last lines as fit."""

    METRICS = ("log",)

    PANEL_TITLE = "log"

    def cache_key(self) -> Hashable:
        """Changes with every line."""
        return self.state.log[-1].seq if self.state.log else 0

    def draw_lines(self, size: Size) -> list[Line]:
        """The entries that fit, the last one whole."""
        lines: list[Line] = []
        for entry in reversed(self.state.log[-size.height :]):
            lines = self._entry(entry, size.width) + lines
            if len(lines) >= size.height:
                break
        return lines[-size.height :]

    def _entry(self, entry: LogLine, width: int) -> list[Line]:
        """Time, a glyph where it is not mere information, and the sentence, wrapped below its own beginning."""
        lines: list[Line] = []
        role = "normal" if entry.severity == "info" else "bright"
        hanging = " " * (_INDENT if width >= 50 else 3)
        for row, text in enumerate(_wrapped(entry.text, width, hanging)):
            line = self.line()
            if row == 0:
                line.append(f" {format_time_of_day(entry.time)} ", "dim")
                if entry.severity != "info":
                    line.append(SEVERITIES[entry.severity].glyph, entry.severity)
            lines.append(line.append(text[line.width :], role))
        return lines


@lru_cache(512)
def _wrapped(text: str, width: int, hanging: str) -> list[str]:
    first = wrap_cells(strip_control(text), max(width - _INDENT, 1))[0]
    rest = strip_control(text)[len(first) :].strip()
    more = wrap_cells(rest, max(width - len(hanging), 1)) if rest else []
    return [" " * _INDENT + first, *(hanging + line for line in more)]
