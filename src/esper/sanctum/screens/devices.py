"""The devices screen: memory over the run and by owner, utilisation of the lanes, and time by phase."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size

from esper.common.domain import Rule
from esper.common.formatting import strip_control
from esper.common.plots.axis import next_nice
from esper.common.plots.chart import Chart, Curve, Quantity, XAxis
from esper.common.plots.sparkline import sparkline
from esper.recordings.events import DeviceSampled
from esper.recordings.health.rules.lanes import MEMORY_GROWTH_ROUNDS, predict_full_round
from esper.recordings.state.curves import memory_values
from esper.recordings.state.health_stats import MAX_STEPS, MemoryHealth, memory_name
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import compact_cell, percent_cell, size_cell
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.panel import CyclingPanel, DevicePanel, Line, Panel, device_key

_GIB = 2**30
_OWNER_LETTERS = {"hosts": "h", "seeds": "s", "optimizers": "o", "policy": "p", "data": "d", "rest": "·"}
"""Letter of each owner in the bar of a memory. `rest` is memory without a known owner."""
_REST_MEANING = "rest: Python, code of the libraries, activations, allocator"
_OWNER_LEGEND = "  ".join(
    f"{letter} {_REST_MEANING if owner == 'rest' else owner}" for owner, letter in _OWNER_LETTERS.items()
)
_OWNER_ROLES = {"hosts": "series0", "seeds": "series1", "optimizers": "series4", "policy": "series2", "data": "dim"}
_GRAPHS_WIDTH = 8
"""Width of the column with the number of CUDA graphs."""
_MIN_BAR_COLS = 12
"""Minimum width of the bar of a memory; on a narrower panel, it is left out."""


class DevicesScreen(RunScreen):
    """Memory over the run and by owner at the top; lanes and phases below."""

    CATEGORIES = (KeyCategory.DEVICES,)
    BINDINGS = bindings(KeyCategory.DEVICES)

    def body(self) -> ComposeResult:
        """Yield the chart, the owners, and a row with lanes and phases."""
        yield MemoryChart(self.view)
        yield MemoryByOwner(self.view)
        with Horizontal(id="time"):
            yield LaneUtilisation(self.view)
            yield PhaseFractions(self.view)


class LaneUtilisation(DevicePanel):
    """One line per lane: busy fraction by step, launches, utilisation, temperature, power. Stragglers are marked."""

    PANEL_TITLE = "lanes ─ busy by step"
    METRICS = ("busy", "launching", "graphs", "straggler", "utilisation", "temperature", "power")

    def cache_key(self) -> Hashable:
        """Return a key that changes with every device sample, and when the number of active anomalies changes."""
        return super().cache_key(), len(self.state.active_anomalies())

    def preferred_height(self) -> int:
        """Return one line for the heading, and one per lane."""
        return 1 + max(len(self.state.devices), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the heading and the lanes."""
        if not self.state.devices:
            return self.message("no device sample yet")
        stragglers = {a.found.where for a in self.state.active_anomalies() if a.found.rule == Rule.STRAGGLING_LANE}
        has_gpu = any(sample.launching is not None for sample in self.state.devices.values())
        has_graphs = any(sample.graphs is not None for sample in self.state.devices.values())
        fixed_width = 50 + 9 * has_gpu + _GRAPHS_WIDTH * has_graphs
        sparkline_width = min(max(size.width - fixed_width, 8), MAX_STEPS)
        lines = [
            self.line(" lane     envs ", "head")
            .append_fitted("", sparkline_width)
            .append("  busy %  launch %" if has_gpu else "  busy %", "head")
            .append("graphs".rjust(_GRAPHS_WIDTH) if has_graphs else "", "head")
            .append("  util %   °C     W", "head")
        ]
        for name, sample in self.state.devices.items():
            lane = self.state.health.lanes[name]
            line = self.line("▲" if name in stragglers else " ", "warning")
            line.append_fitted(strip_control(name), 9, keep_end=True)
            line.append(f"{sample.envs:>4} ", "dim")
            line.append(
                sparkline(lane.busy[-sparkline_width:], 0.0, 1.0).rjust(sparkline_width),
                "warning" if name in stragglers else "spark",
            )
            line.append("   ").append_cell(percent_cell(sample.busy))
            if has_gpu:
                line.append("     ").append_cell(percent_cell(sample.launching))
            if has_graphs:
                cell = compact_cell(sample.graphs, 5)
                line.append(cell.text.rjust(_GRAPHS_WIDTH), cell.role if sample.graphs is None else "dim")
            line.append("   ").append_cell(percent_cell(sample.utilisation), "dim")
            for value in (sample.temperature, sample.power):
                cell = compact_cell(value)
                line.append(cell.text.strip().rjust(6), cell.role if value is None else "dim")
            lines.append(line)
        return lines


class PhaseFractions(Panel):
    """Fraction of the wall time by phase: over the whole run, and in the last step."""

    PANEL_TITLE = "phases ─ % of time, run and last step"
    METRICS = ("phases",)

    def preferred_height(self) -> int:
        """Return the number of phases."""
        return max(len(self.state.phases), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the phases, longest first."""
        total, timing = sum(self.state.phases.values()), self.state.timing
        if not total or timing is None:
            return self.message("no step yet")
        count, bar_width = len(self.state.phases), max(size.width - 28, 4)
        self.panel_subtitle = f"{size.height} of {count}" if size.height < count else None
        lines: list[Line] = []
        for name, seconds in sorted(self.state.phases.items(), key=lambda item: -item[1]):
            last = timing.phases.get(name, 0.0) / timing.wall if timing.wall else None
            line = self.line(" ").append_fitted(strip_control(name), 11, "dim")
            line.append_bar(seconds / total, bar_width, "spark").append(" ")
            line.append_cell(percent_cell(seconds / total)).append("  ")
            lines.append(line.append_cell(percent_cell(last), "dim"))
        return lines


class MemoryChart(ChartPanel, CyclingPanel):
    """Allocated, reserved and used bytes of one memory over the run."""

    METRICS = ("memory", "peak memory", "memory forecast")

    def cache_key(self) -> Hashable:
        """Return a key that changes with device samples, once per interval, and when another memory is shown."""
        return self.paced(device_key(self.state)), self.num_skipped, self.chart_key

    @property
    def _memory(self) -> tuple[str, MemoryHealth]:
        """Name and history of the shown memory. There is at least one."""
        memories = list(self.state.health.memories.items())
        return memories[self.num_skipped % len(memories)]

    def _full_round(self, memory: MemoryHealth) -> int | None:
        return predict_full_round(memory, self.view.thresholds.limits.memory_growth)

    def name_in_title(self) -> str:
        """Return the name of the memory, and its number if there are several."""
        memories = self.state.health.memories
        if not memories:
            return "memory"
        index = self.num_skipped % len(memories)
        position = f" ─ {index + 1} of {len(memories)}" if len(memories) > 1 else ""
        return f"memory of {strip_control(self._memory[0])}, GiB{position}"

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "not reported by the device" if self.state.health.memories else "no memory sample yet"

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the summary is about the memory)
        """Return the peak, the total, and the round in which the memory will be full."""
        memory = self._memory[1]
        return _memory_summary(memory, self._full_round(memory))

    def enlarged(self) -> ChartPanel:
        """Return another panel with the chart of the same memory."""
        panel = MemoryChart(self.view)
        panel.num_skipped = self.num_skipped
        return panel

    def chart(self) -> Chart | None:
        """Return the chart of the chosen memory; None if it was not measured."""
        if not self.state.health.memories:
            return None
        name, memory = self._memory
        sample = next(sample for sample in self.state.devices.values() if memory_name(sample.device) == name)
        roles = ("curve", "spark", "dim" if self._full_round(memory) is None else "warning")
        # In the order of MEMORY_QUANTITIES: allocated and reserved by the run, and used by all processes.
        labels = ("this run", "reserved", "machine") if name.endswith("cpu") else ("allocated", "reserved", "in use")
        curves: list[Curve] = []
        for (curve, latest), label, role in zip(memory_values(sample), labels, roles, strict=True):
            series = self.state.curves.get(curve)
            if series is not None and any(size is not None for size in series.values):
                values = [_gib(size) for size in series.values]  # the last one may be the mean of many samples
                text = f"{label} {compact_cell(_gib(latest)).text}"
                curves.append(Curve(label, series.numbers, values, role, label=text))
        if not curves:
            return None
        xs = curves[0].xs
        total = _gib(memory.total)
        highest = max(value for curve in curves for value in curve.values if value is not None)
        if total is not None and total <= next_nice(highest):
            curves.append(Curve("total", xs, [total] * len(xs), "faint", label=f"total {compact_cell(total).text}"))
        return Chart(
            quantity=Quantity("memory", "GiB", low=0.0),
            x_axis=XAxis("sample", 1, xs[-1]),
            curves=curves,
            include=0.0,
            has_labels=True,
        )


class MemoryByOwner(DevicePanel):
    """Live bytes by owner, and a bar per memory in which each owner has a letter."""

    PANEL_TITLE = "memory by owner"
    METRICS = ("memory owners",)

    def preferred_height(self) -> int:
        """Return one line for the heading, and one per lane or shared memory with known owners."""
        return 1 + max(len(self._rows()), 1)

    def _rows(self) -> list[tuple[str, dict[str, int], int | None]]:
        """Name, bytes by owner, and bytes without a known owner, of each row.

        Lanes that share a memory have one row each, without the rest, and one row for all of them, with the rest.
        """
        lanes_by_memory: defaultdict[str, list[DeviceSampled]] = defaultdict(list)
        for sample in self.state.devices.values():
            if sample.owners:
                lanes_by_memory[memory_name(sample.device)].append(sample)
        rows: list[tuple[str, dict[str, int], int | None]] = []
        for memory, lanes in lanes_by_memory.items():
            rest = _rest(lanes)
            if len(lanes) == 1:
                rows.append((lanes[0].device, lanes[0].owners, rest))
                continue
            rows += [(lane.device, lane.owners, None) for lane in lanes]
            owners = sum((Counter(lane.owners) for lane in lanes), Counter[str]())
            rows.append((f"{memory} all", dict(owners), rest))
        return rows

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the rows, and a bar for each memory if there is room."""
        rows = [(strip_control(name), owners, rest) for name, owners, rest in self._rows()]
        name_width = max([8, *(len(name) for name, _, _ in rows)])
        lines = [
            self.line(f" {'lane':<{name_width}}", "head").append(
                "".join(f"{name:>11}" for name in _OWNER_LETTERS), "head"
            )
        ]
        bar_width = size.width - lines[0].width - 4
        self.panel_subtitle = _OWNER_LEGEND if bar_width >= _MIN_BAR_COLS else _REST_MEANING
        for name, owners, rest in rows:
            bytes_by_owner = owners if rest is None else {**owners, "rest": rest}
            line = self.line(" ").append_fitted(name, name_width)
            for owner in _OWNER_LETTERS:
                owned_bytes = bytes_by_owner.get(owner)
                line.append_cell(size_cell(owned_bytes, 11), _OWNER_ROLES.get(owner, "dim"))
            total = sum(bytes_by_owner.values())
            if total and rest is not None and bar_width >= _MIN_BAR_COLS:
                line.append("  ")
                for owner, letter in _OWNER_LETTERS.items():
                    line.append(
                        letter * round(bytes_by_owner.get(owner, 0) / total * bar_width), _OWNER_ROLES.get(owner, "dim")
                    )
            lines.append(line)
        return lines if len(lines) > 1 else [self.line(" no owners recorded", "dim")]


def _gib(size: float | None) -> float | None:
    return None if size is None else size / _GIB


def _memory_summary(memory: MemoryHealth, full_round: int | None) -> str:
    """Peak and total of a memory in GiB, and the round in which it will be full."""
    trend = "flat" if full_round is None else f"full in round {full_round}"
    if len(memory.rounds) <= MEMORY_GROWTH_ROUNDS:
        trend = "no trend yet"
    peak, total = size_cell(memory.peak).text, size_cell(memory.total).text
    return f"peak {peak} of {total}, {trend}"


def _rest(lanes: Sequence[DeviceSampled]) -> int | None:
    """Bytes that the run holds in a memory without a known owner; None if not measured."""
    known = sum(sum(lane.owners.values()) for lane in lanes)
    held = lanes[-1].allocated
    return None if held is None else max(held - known, 0)
