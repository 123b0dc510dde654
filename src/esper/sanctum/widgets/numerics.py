"""The numerics of one env, of the devices, and what was ever not finite."""

from __future__ import annotations

import math
from collections.abc import Hashable
from textwrap import wrap

from textual.geometry import Size

from esper.formatting import exponent_of, plain, power
from esper.health.rules import SCALE_SPREAD
from esper.sanctum.symbols import power_of_two
from esper.sanctum.widgets.chart import AXIS, Chart
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.health_stats import CHANGES
from esper.telemetry.sentences import counted
from esper.text_plot import Axis

_WINDOW = CHANGES
"""Steps that the staircase looks back."""
_APART = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)
"""Halvings from tick to tick of an axis of loss scales."""
_INDENT = 23
"""Cells before the names of what was not finite."""


class ScaleChart(Panel):
    """The loss scale of the env under the cursor: an exact staircase of powers of two, the skips as ticks below it."""

    METRICS = ("loss scale", "lost", "ping-pong")

    def key(self) -> Hashable:
        """The state, and which env."""
        return self.state.seq, self.view.selected_env

    def draw(self, size: Size) -> list[Line]:
        """The chart, a line of ticks and the axis."""
        self.heading = f"env {self.view.selected_env:02d} ─ loss scale"
        vitals = self.state.vitals.envs.get(self.view.selected_env)
        if vitals is None or not vitals.scales:
            self.note = None
            return [self.line().add(" no loss scaling", "dim")] if self.state.started else []
        steps = vitals.staircase(_WINDOW)
        stairs = [exponent_of(scale) for scale in steps]
        known = [value for value in stairs if value is not None]
        low, high, ticks = _exponents(known, size.height - 4)
        dots = max((size.width - AXIS - 2) * 2, 1)
        held = [stairs[dot * len(stairs) // dots] for dot in range(dots)]  # flat between two steps
        chart = Chart(values=held, extent=dots, low=low, high=high, ticks=ticks)
        lines = chart.lines(self.view.palette, size.width, size.height - 1)[:-1]
        lost = vitals.lost_in(_WINDOW)
        marks = {place * dots // len(stairs) // 2 for place in lost}
        row = self.line().add("skip".rjust(AXIS), "dim").add("  ")
        for column in range(dots // 2):
            row.add("╵" if column in marks else " ", "warning")
        count = sum(lost.values())
        self.note = f"batches lost in {len(stairs)} steps: {count}; relapses: {vitals.relapses}"
        axis = self.line().to(AXIS + 2).add(f"−{len(stairs)}", "dim").to(size.width - 4).add("now", "dim")
        return [*lines, row, axis]


def _exponents(known: list[float], rows: int) -> Axis:
    """An axis of powers of two around the exponents, its ticks two rows apart at least."""
    low, high = math.floor(min(known)) - 1, math.ceil(max(known)) + 1
    apart = next((apart for apart in _APART if (-(-high // apart) - low // apart) * 2 <= rows), _APART[-1])
    ticks = range(low // apart, -(-high // apart) + 1)
    return Axis(ticks[0] * apart, ticks[-1] * apart, [(tick * apart, power(tick * apart)) for tick in ticks])


class ScaleSpread(Panel):
    """Least and greatest loss scale of each lane."""

    HEADING = "loss scales by lane"
    METRICS = ("scale spread",)

    def key(self) -> Hashable:
        """Changes with every sample."""
        return tuple(sample.seq for sample in self.state.devices.values())

    def wanted_height(self) -> int:
        """A line for each lane."""
        return max(len(self.state.devices), 1)

    def draw(self, size: Size) -> list[Line]:  # noqa: ARG002 (short lines)
        """A line for each lane."""
        lines: list[Line] = []
        limit = math.log2(SCALE_SPREAD)
        for name, sample in self.state.devices.items():
            line = self.line().add(" ").fit(plain(name), 8)
            line.cell(power_of_two(sample.scale_min)).add(" to ", "dim").cell(power_of_two(sample.scale_max)).add(" ")
            if sample.scale_min and sample.scale_max:
                apart = math.log2(sample.scale_max / sample.scale_min)
                line.add(f"×{power(apart)}", "warning" if apart > limit else "normal").add(
                    f" (≤ {power(limit)})", "dim"
                )
            lines.append(line)
        return lines or [self.line().add(" no sample yet", "dim")]


class NonFiniteList(Panel):
    """Every quantity that was ever NaN or infinite: how often, and when first; those that share all that in one row."""

    HEADING = "not finite ─ since the run began"
    METRICS = ("not finite",)

    def draw(self, size: Size) -> list[Line]:
        """The newest first; what has no room for all of it ends in an ellipsis, and each has a line."""
        bad = self.state.vitals.bad
        if not bad:
            return [self.line().add(" every recorded value was finite", "dim")] if self.state.started else []
        self.note = counted(len(bad), "quantity", "quantities")
        lines = [self.line().add("   NaN   inf  first at", "head")]
        together: dict[tuple[object, ...], list[str]] = {}
        for name, count in sorted(bad.items(), key=lambda item: -item[1].last_seq):
            same = (count.nan, count.inf, count.first_round, count.first_step, count.env)
            together.setdefault(same, []).append(plain(name))
        room = max(size.width - _INDENT, 8)
        spare = max(size.height - len(lines) - len(together), 0)
        for (nan, inf, round_, step, _), names in together.items():
            rows = wrap(_one_sentence(names), room, max_lines=1 + spare, placeholder=" …")
            spare -= len(rows) - 1
            line = self.line().add(f"{nan:>6}{inf:>6}  ", "bright")
            line.add(f"{round_}" if step is None else f"{round_}.{step}", "dim")
            for row in rows:
                lines.append(line.to(_INDENT).add(row))
                line = self.line()
        return lines


def _one_sentence(names: list[str]) -> str:
    """Quantities of one place, which is named once."""
    place = names[0].partition(": ")[0] + ": "
    return ", ".join([names[0], *(name.removeprefix(place) for name in names[1:])])
