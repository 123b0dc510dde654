"""The devices: their memory and whose it is, their lanes, and the phases of a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.geometry import Size

from esper.domain import Rule
from esper.formatting import strip_control
from esper.health.rules import MEMORY_GROWTH_ROUNDS, predict_full_round
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import Cell, compact_cell, number_cell, percent_cell
from esper.sanctum.widgets.chart import Chart, Label, labels_width, place_labels
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.events import DeviceSampled
from esper.telemetry.health_stats import MAX_STEPS, MemoryHealth, memory_name
from esper.text_plot import next_nice, sparkline


class DevicesScreen(RunScreen):
    """Memory above, time below."""

    AUTO_FOCUS = ""
    CATEGORIES = (KeyCategory.DEVICES,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.DEVICES)]

    def body(self) -> ComposeResult:
        """Three rows."""
        yield MemoryChart(self.view)
        yield MemoryByOwner(self.view)
        with Horizontal(id="time"):
            yield LaneUtilisation(self.view)
            yield PhaseFractions(self.view)

    def action_next_memory(self) -> None:
        """Show the course of the next memory."""
        self.query_one(MemoryChart).show_next()


class LaneUtilisation(Panel):
    """A line per lane: busy time over the last steps, utilisation, temperature, power. A straggler is marked."""

    PANEL_TITLE = "lanes ─ busy over the last steps"
    METRICS = ("busy", "straggler", "utilisation", "temperature", "power")

    def cache_key(self) -> Hashable:
        """Changes with every sample."""
        return tuple(sample.seq for sample in self.state.devices.values()), len(self.state.active_anomalies())

    def preferred_height(self) -> int:
        """A heading and a line for each lane."""
        return 1 + max(len(self.state.devices), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """A heading and a line for each lane."""
        if not self.state.devices:
            return [self.line().append(" no sample of the lanes yet", "dim")] if self.state.started else []
        slow = {a.found.where for a in self.state.active_anomalies() if a.found.rule == Rule.STRAGGLING_LANE}
        room = min(max(size.width - 50, 8), MAX_STEPS)
        lines = [
            self.line()
            .append(" lane     envs ", "head")
            .append_fitted("", room)
            .append("  busy %  util %   °C     W", "head")
        ]
        for name, sample in self.state.devices.items():
            vitals = self.state.vitals.lanes[name]
            line = self.line().append("▲" if name in slow else " ", "warning").append_fitted(strip_control(name), 9)
            line.append(f"{sample.envs:>4} ", "dim")
            line.append(sparkline(vitals.busy[-room:], 0.0, 1.0).rjust(room), "warning" if name in slow else "spark")
            line.append("   ").append_cell(percent_cell(sample.busy)).append("   ").append_cell(
                percent_cell(sample.utilisation), "dim"
            )
            for value in (sample.temperature, sample.power):
                cell = compact_cell(value)
                line.append(cell.text.strip().rjust(6), cell.role if value is None else "dim")
            lines.append(line)
        return lines


class PhaseFractions(Panel):
    """Where the wall time went: since the run began, and in the last step."""

    PANEL_TITLE = "phases ─ % of the time, run and last step"
    METRICS = ("phases",)

    def preferred_height(self) -> int:
        """A line for each phase."""
        return max(len(self.state.phases), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """The longest first."""
        total, timing = sum(self.state.phases.values()), self.state.timing
        if not total or timing is None:
            return [self.line().append(" no step yet", "dim")] if self.state.started else []
        self.panel_subtitle = (
            f"{size.height} of {len(self.state.phases)}" if size.height < len(self.state.phases) else None
        )
        room = max(size.width - 28, 4)
        lines: list[Line] = []
        for name, seconds in sorted(self.state.phases.items(), key=lambda item: -item[1]):
            line = (
                self.line()
                .append(" ")
                .append_fitted(strip_control(name), 11, "dim")
                .append_bar(seconds / total, room, "spark")
                .append(" ")
            )
            line.append_cell(percent_cell(seconds / total)).append("  ")
            lines.append(
                line.append_cell(
                    percent_cell(timing.phases.get(name, 0.0) / timing.wall if timing.wall else None), "dim"
                )
            )
        return lines


GIB = 2**30
OWNER_LETTERS = {"hosts": "h", "seeds": "s", "optimizers": "o", "policy": "p", "data": "d", "rest": "·"}
"""Owner and the letter of its part of the bar."""
_LEAST_BAR = 12
_ROLES = {"hosts": "series0", "seeds": "series1", "optimizers": "series4", "policy": "series2", "data": "dim"}


def gib_cell(size: float | None) -> Cell:
    """A size in GiB."""
    return compact_cell(None if size is None else size / GIB)


class MemoryChart(Panel):
    """What is allocated, reserved and used of a memory over the run."""

    METRICS = ("memory", "peak memory", "memory forecast")

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType]
        self._index = 0

    def show_next(self) -> None:
        """Show the next memory."""
        self._index += 1
        self.update()

    def cache_key(self) -> Hashable:
        """The samples, and which memory."""
        return self._index, self.state.started is None, tuple(s.seq for s in self.state.devices.values())

    def draw_lines(self, size: Size) -> list[Line]:
        """The chart, once there are two points."""
        memories = self.state.vitals.memories
        if not memories:
            return [self.line().append(" no sample of the memory yet", "dim")] if self.state.started else []
        name = list(memories)[self._index % len(memories)]
        memory = memories[name]
        more = f" ─ {self._index % len(memories) + 1} of {len(memories)}" if len(memories) > 1 else ""
        self.panel_title = f"memory of {strip_control(name)}, GiB by step{more}"
        self.panel_subtitle = _summary(memory)
        if len(memory.points) < 2:
            return [self.line().append(" a curve needs two points", "dim")]
        curves = _curves(name, memory)
        if not curves:
            return [self.line().append(" its device does not tell", "dim")]
        high = next_nice(max(value for _, values, _ in curves for value in values if value is not None))
        total = _gib(memory.total)
        if total is not None and total <= high:
            curves.append(("total", [total] * len(memory.points), "faint"))
        (_, first, role), *others = curves
        chart = Chart(
            values=first, role=role, extra_curves=[(values, role) for _, values, role in others],
            x_length=len(memory.points), stride=memory.every, low=0.0, high=high,
            ticks=[(value, f"{value:.3g}") for value in (0.0, high / 2, high)],
        )  # fmt: skip
        present = self._present(name)  # a point of the curve may be of many samples ago
        labels = [
            Label(chart.row(last, size.height), f"{word} {compact_cell(last).text}", role)
            for word, values, role in curves
            if (last := present.get(word, values[-1])) is not None
        ]
        room = labels_width(labels, size.height - 1)
        lines = chart.lines(self.view.palette, size.width - room, size.height)
        place_labels(lines[:-1], labels, size.width - room)
        return lines

    def _present(self, name: str) -> dict[str, float | None]:
        """By what the curves are called, what the lane says that tells of this memory."""
        told = next(sample for sample in self.state.devices.values() if memory_name(sample.device) == name)
        sizes = (told.allocated, told.reserved, told.used)
        return dict(zip(_words(name), map(_gib, sizes), strict=True))


def _words(name: str) -> tuple[str, str, str]:
    """What the curves of a memory are called: what the run holds, twice, and what all processes together do."""
    return ("process", "reserved", "machine") if name.endswith("cpu") else ("allocated", "reserved", "in use")


def _curves(name: str, memory: MemoryHealth) -> list[tuple[str, list[float | None], str]]:
    """What each curve is called, its values and its role."""
    points = memory.points
    courses = ([p.allocated for p in points], [p.reserved for p in points], [p.used for p in points])
    roles = ("curve", "spark", "dim" if predict_full_round(memory) is None else "warning")
    return [
        (word, [_gib(size) for size in sizes], role)
        for word, sizes, role in zip(_words(name), courses, roles, strict=True)
        if any(size is not None for size in sizes)
    ]


def _gib(size: int | None) -> float | None:
    return None if size is None else size / GIB


def _summary(memory: MemoryHealth) -> str:
    """Peak and total, in GiB, and where it goes."""
    full = predict_full_round(memory)
    trend = "flat" if full is None else f"full in round {full}"
    if len(memory.rounds) <= MEMORY_GROWTH_ROUNDS:
        trend = "no trend yet"
    return f"peak {gib_cell(memory.peak).text} of {gib_cell(memory.total).text}, {trend}"


class MemoryByOwner(Panel):
    """Whose the live bytes are: a bar with a letter an owner, and the sizes in MiB."""

    PANEL_TITLE = "memory by owner, MiB"
    METRICS = ("memory owners",)

    def cache_key(self) -> Hashable:
        """Changes with every sample."""
        return tuple(sample.seq for sample in self.state.devices.values())

    def preferred_height(self) -> int:
        """A heading and a line for each lane, and each memory, that tells of owners."""
        return 1 + max(len(self._rows()), 1)

    def _rows(self) -> list[tuple[str, dict[str, int], int | None]]:
        """Name, owners and the rest of each lane; of lanes that share a memory, the rest is told of all together."""
        sharing: defaultdict[str, list[DeviceSampled]] = defaultdict(list)
        for sample in self.state.devices.values():
            if sample.owners:
                sharing[memory_name(sample.device)].append(sample)
        rows: list[tuple[str, dict[str, int], int | None]] = []
        for memory, lanes in sharing.items():
            rest = _rest(lanes)
            if len(lanes) == 1:
                rows.append((lanes[0].device, lanes[0].owners, rest))
                continue
            rows += [(lane.device, lane.owners, None) for lane in lanes]
            owners = sum((Counter(lane.owners) for lane in lanes), Counter[str]())
            rows.append((f"{memory} all", dict(owners), rest))
        return rows

    def draw_lines(self, size: Size) -> list[Line]:
        """The lines, and for each memory a bar where there is room."""
        rows = [(strip_control(name), owners, rest) for name, owners, rest in self._rows()]
        names = max([8, *(len(name) for name, _, _ in rows)])
        lines = [
            self.line()
            .append(f" {'lane':<{names}}", "head")
            .append("".join(f"{name:>11}" for name in OWNER_LETTERS), "head")
        ]
        room = size.width - lines[0].width - 4
        self.panel_subtitle = (
            "  ".join(f"{letter} {owner}" for owner, letter in OWNER_LETTERS.items()) if room >= _LEAST_BAR else None
        )
        for name, owners, rest in rows:
            shares = owners if rest is None else {**owners, "rest": rest}
            line = self.line().append(" ").append_fitted(name, names)
            for owner in OWNER_LETTERS:
                part = shares.get(owner)
                line.append_cell(number_cell(None if part is None else part / 2**20, 8, 2), _ROLES.get(owner, "dim"))
            total = sum(shares.values())
            if total and rest is not None and room >= _LEAST_BAR:
                line.append("  ")
                for owner, letter in OWNER_LETTERS.items():
                    line.append(letter * round(shares.get(owner, 0) / total * room), _ROLES.get(owner, "dim"))
            lines.append(line)
        return lines if len(lines) > 1 else [self.line().append(" no owners told", "dim")]


def _rest(lanes: Sequence[DeviceSampled]) -> int | None:
    """What the run holds of a memory beyond what its lanes know the owners of; None where that was not measured."""
    known = sum(sum(lane.owners.values()) for lane in lanes)
    held = lanes[-1].allocated
    return None if held is None else max(held - known, 0)
