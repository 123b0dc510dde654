"""The devices: how busy each lane is, and where the memory is."""

from __future__ import annotations

import math
from collections.abc import Hashable

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import Cell, brief, number, percent
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.events import DeviceSampled
from esper.telemetry.health_stats import memory_of

FULL = 0.9
"""Share of the memory from which on it is marked."""
_WIDE = 52


class Devices(Panel):
    """A line per device with its envs and busy time, and one with its memory. The CPU lanes of a process share one."""

    METRICS = ("busy", "memory")

    HEADING = "devices ─ lanes busy, memory"

    def key(self) -> Hashable:
        """Changes with every sample."""
        return self.state.started is None, *(sample.seq for sample in self.state.devices.values())

    def wanted_height(self) -> int:
        """A line for each device and each memory."""
        devices = self.state.devices
        return max(len(devices) + len(self._memories()), 1)

    def draw(self, size: Size) -> list[Line]:
        """Everything on one line where there is only one; else a table."""
        if not self.state.devices:
            return [self.line().add(" no sample of the devices yet", "dim")] if self.state.started else []
        if size.height == 1:
            return [self._compact()]
        width = size.width
        names = max(6, *(len(plain(name)) for name in self.state.devices)) + 1
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
        return {memory_of(name): sample for name, sample in self.state.devices.items()}

    def _busy(self, name: str, sample: DeviceSampled, names: int, width: int) -> Line:
        line = (
            self.line()
            .add(" ")
            .fit(plain(name), names)
            .add(f"{sample.envs:>3} {'env ' if sample.envs == 1 else 'envs'}  ", "dim")
        )
        line.gauge(sample.busy, max(width - line.width - 9, 4), "spark").add(" ")
        return line.cell(percent(sample.busy)).add(" %", "dim")

    def _memory(self, sample: DeviceSampled, width: int) -> Line:
        """What the run holds, what is taken in all, and the whole. Where it is narrow, in short words."""
        cpu, wide = _is_cpu(sample.device), width >= _WIDE
        words = ("process", "machine") if cpu else ("allocated", "reserved")
        if not wide:
            words = ("rss", "used") if cpu else ("alloc", "res")
        line = self.line().add(" ")
        for word, size in zip(words, (sample.allocated, sample.used if cpu else sample.reserved), strict=True):
            line.add(f"{word} ", "dim").cell(_gib(size, wide=wide), _role(sample)).add("  " if wide else " ")
        return line.add("of ", "dim").cell(_gib(sample.total, wide=wide)).add(" GiB", "dim")

    def _compact(self) -> Line:
        line = self.line().add(" ")
        for name, sample in self.state.devices.items():
            line.add(f"{plain(name)} ", "dim").cell(percent(sample.busy)).add(" %  ", "dim")
        for sample in self._memories().values():
            held = sample.allocated if _is_cpu(sample.device) else sample.reserved
            line.cell(_gib(held, wide=False), _role(sample)).add(" of ", "dim")
            line.cell(_gib(sample.total, wide=False)).add(" GiB  ", "dim")
        return line


def _is_cpu(name: str) -> bool:
    return memory_of(name) != name


def _gib(size: int | None, *, wide: bool) -> Cell:
    """A size in GiB; in a column of its own where there is room."""
    value = None if size is None else size / 2**30
    return number(value, 4, 2) if wide else brief(value, 3 if value is None or value >= 1 else 2)


def _role(sample: DeviceSampled) -> str:
    share = sample.used / sample.total if sample.used is not None and sample.total else math.nan
    return "warning" if share >= FULL else "normal"
