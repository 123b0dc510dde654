"""The lanes over the last steps, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import brief, percent
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.health_stats import STEPS
from esper.text_plot import sparkline


class LaneLoads(Panel):
    """A line per lane: busy time over the last steps, utilisation, temperature, power. A straggler is marked."""

    HEADING = "lanes ─ busy over the last steps"
    METRICS = ("busy", "straggler", "utilisation", "temperature", "power")

    def key(self) -> Hashable:
        """Changes with every sample."""
        return tuple(sample.seq for sample in self.state.devices.values()), len(self.state.active_anomalies())

    def wanted_height(self) -> int:
        """A heading and a line for each lane."""
        return 1 + max(len(self.state.devices), 1)

    def draw(self, size: Size) -> list[Line]:
        """A heading and a line for each lane."""
        if not self.state.devices:
            return [self.line().add(" no sample of the lanes yet", "dim")] if self.state.started else []
        slow = {a.found.where for a in self.state.active_anomalies() if a.found.rule == "straggling lane"}
        room = min(max(size.width - 50, 8), STEPS)
        lines = [self.line().add(" lane     envs ", "head").fit("", room).add("  busy %  util %   °C     W", "head")]
        for name, sample in self.state.devices.items():
            vitals = self.state.vitals.lanes[name]
            line = self.line().add("▲" if name in slow else " ", "warning").fit(plain(name), 9)
            line.add(f"{sample.envs:>4} ", "dim")
            line.add(sparkline(vitals.busy[-room:], 0.0, 1.0).rjust(room), "warning" if name in slow else "spark")
            line.add("   ").cell(percent(sample.busy)).add("   ").cell(percent(sample.utilisation), "dim")
            for value in (sample.temperature, sample.power):
                cell = brief(value)
                line.add(cell.text.strip().rjust(6), cell.role if value is None else "dim")
            lines.append(line)
        return lines


class PhaseShares(Panel):
    """Where the wall time went: since the run began, and in the last step."""

    HEADING = "phases ─ % of the time, run and last step"
    METRICS = ("phases",)

    def wanted_height(self) -> int:
        """A line for each phase."""
        return max(len(self.state.phases), 1)

    def draw(self, size: Size) -> list[Line]:
        """The longest first."""
        total, timing = sum(self.state.phases.values()), self.state.timing
        if not total or timing is None:
            return [self.line().add(" no step yet", "dim")] if self.state.started else []
        self.note = f"{size.height} of {len(self.state.phases)}" if size.height < len(self.state.phases) else None
        room = max(size.width - 28, 4)
        lines: list[Line] = []
        for name, seconds in sorted(self.state.phases.items(), key=lambda item: -item[1]):
            line = self.line().add(" ").fit(plain(name), 11, "dim").gauge(seconds / total, room, "spark").add(" ")
            line.cell(percent(seconds / total)).add("  ")
            lines.append(line.cell(percent(timing.phases.get(name, 0.0) / timing.wall if timing.wall else None), "dim"))
        return lines
