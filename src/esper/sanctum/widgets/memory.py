"""Memory over time, whose it is, and when it would run out."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.sanctum.symbols import Cell, brief, number, plain
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.panel import Line, Panel
from esper.sanctum.widgets.plot import round_up
from esper.telemetry.anomalies import MEMORY_ROUNDS
from esper.telemetry.vitals import MemoryVitals, runs_out

GIB = 2**30
OWNERS = {"hosts": "h", "seeds": "s", "optimizers": "o", "policy": "p", "data": "d", "rest": "·"}
"""Owner and the letter of its part of the bar."""
_ROLES = {"hosts": "curve", "seeds": "blending", "optimizers": "training", "policy": "probationary", "data": "dim"}


def gib(size: float | None) -> Cell:
    """A size in GiB."""
    return brief(None if size is None else size / GIB)


class MemoryCourse(Panel):
    """What is allocated, reserved and used of a memory over the run."""

    METRICS = ("memory", "peak memory", "memory forecast")

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType]
        self._index = 0

    def shift(self) -> None:
        """Show the next memory."""
        self._index += 1
        self.update()

    def key(self) -> Hashable:
        """The samples, and which memory."""
        return self._index, self.state.started is None, tuple(s.seq for s in self.state.devices.values())

    def draw(self, size: Size) -> list[Line]:
        """The chart, once there are two points."""
        memories = self.state.vitals.memories
        if not memories:
            return [self.line().add(" no sample of the memory yet", "dim")] if self.state.started else []
        name = list(memories)[self._index % len(memories)]
        memory = memories[name]
        more = f", {self._index % len(memories) + 1} of {len(memories)}" if len(memories) > 1 else ""
        words = "process, machine" if name.endswith("cpu") else "allocated, reserved, in use"
        self.border_title = f"memory of {plain(name)} ─ {words}, GiB{more}"
        self.border_subtitle = _summary(memory)
        points = memory.points
        if len(points) < 2:
            return [self.line().add(" a curve needs two points", "dim")]
        series = [([_gib(p.allocated) for p in points], "curve"), ([_gib(p.reserved) for p in points], "spark")]
        series.append(([_gib(p.used) for p in points], "warning" if _full(memory) else "dim"))
        known = [value for values, _ in series for value in values if value is not None]
        high = round_up(max(known, default=1.0))
        ticks = [(value, f"{value:.3g}") for value in (0.0, high / 2, high)]
        (first, role), *others = series
        chart = Chart(
            values=first, role=role, others=others, extent=len(points), low=0.0, high=high, ticks=ticks,
            each=memory.every,
        )  # fmt: skip
        return chart.lines(self.view.palette, *size)


def _gib(size: int | None) -> float | None:
    return None if size is None else size / GIB


def _full(memory: MemoryVitals) -> bool:
    return runs_out(memory, MEMORY_ROUNDS) is not None


def _summary(memory: MemoryVitals) -> str:
    """Peak and total, and where it goes."""
    full = runs_out(memory, MEMORY_ROUNDS)
    trend = "flat" if full is None else f"grows: full in round {full}"
    if len(memory.rounds) <= MEMORY_ROUNDS:
        trend = f"trend after {MEMORY_ROUNDS + 1} rounds"
    return f"peak {gib(memory.peak).text} of {gib(memory.total).text} GiB  {trend}"


class MemoryOwners(Panel):
    """Whose the live bytes are: a bar with a letter an owner, and the sizes in MiB."""

    HEADING = "memory by owner, MiB"
    METRICS = ("memory owners",)

    def key(self) -> Hashable:
        """Changes with every sample."""
        return tuple(sample.seq for sample in self.state.devices.values())

    def wanted_height(self) -> int:
        """A heading and a line for each lane that tells of owners."""
        return 1 + max(sum(1 for sample in self.state.devices.values() if sample.owners), 1)

    def draw(self, size: Size) -> list[Line]:
        """A line for each lane."""
        lines = [self.line().add(" lane    ", "head").add("".join(f"{name:>11}" for name in OWNERS), "head")]
        for name, sample in self.state.devices.items():
            if not sample.owners:
                continue
            shares = dict(sample.owners)
            if sample.allocated is not None:
                shares["rest"] = max(sample.allocated - sum(sample.owners.values()), 0)
            line = self.line().add(" ").fit(plain(name), 8)
            for owner in OWNERS:
                size_ = shares.get(owner)
                line.cell(number(None if size_ is None else size_ / 2**20, 8, 2), _ROLES.get(owner, "dim"))
            total = sum(shares.values())
            room = size.width - line.width - 2
            if total and room >= 12:
                line.add("  ")
                for owner, letter in OWNERS.items():
                    line.add(letter * round(shares.get(owner, 0) / total * room), _ROLES.get(owner, "dim"))
            lines.append(line)
        return lines if len(lines) > 1 else [self.line().add(" no owners told", "dim")]
