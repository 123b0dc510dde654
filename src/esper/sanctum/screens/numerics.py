"""The numerics: loss scales, overflows, gradient norms, and whatever was not finite."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import partial
from textwrap import wrap
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Size

from esper.formatting import exponent_of, plain, power
from esper.health.rules import PING_PONG, SCALE_SPREAD
from esper.sanctum.bindings import Category
from esper.sanctum.env_filter import severities_of
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, number, percent, power_of_two
from esper.sanctum.widgets.chart import AXIS, Chart
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.health_stats import CHANGES, STEPS, EnvVitals
from esper.telemetry.sentences import counted
from esper.telemetry.state import EnvState
from esper.text_plot import Axis, places, sparkline


class Numerics(RunScreen):
    """The envs above; the one under the cursor, the lanes and what was not finite below."""

    AUTO_FOCUS = "Scales"
    CATEGORIES = (Category.ROWS,)

    def body(self) -> ComposeResult:
        """Two rows."""
        yield Scales(self.view)
        with Horizontal(id="details"):
            yield ScaleChart(self.view)
            with Vertical(id="bad"):
                yield ScaleSpread(self.view)
                yield NonFiniteList(self.view)


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


SKIP = "↓"
"""In a staircase: a step that lost a batch, for which the scale was halved."""
PONG = "⇅"
"""The scale grows only to fall again."""
SHADES = ((0.01, "·"), (0.1, "░"), (1.0, "▒"), (10.0, "▓"))
"""Of a gradient norm: the glyph below each bound."""
_BOUNDS = (*(bound for bound, _ in SHADES), math.inf)
_MORE, _UNSOUND = "█", "×"
_GLYPHS = "".join(glyph for _, glyph in SHADES) + _MORE + _UNSOUND
_ROLES = {_MORE: "warning", _UNSOUND: "bad"}
_NOTABLE = re.compile(f"({_MORE}+|{_UNSOUND}+)")
_FIXED = 36
"""Columns of all but staircase and heat map."""


class _Layout(NamedTuple):
    """How the width is shared, and the exponents that the staircases span."""

    owners: int
    stairs: int
    heat: int
    low: float
    high: float


def until_growth(started: RunStarted, env: EnvState) -> float | None:
    """Clean steps until the loss scale doubles; None without loss scaling."""
    step = env.stepped
    if step is None or step.growth_tracker is None or not started.growth_interval or not started.batches:
        return None
    sharing = started.lanes.count(env.lane) if started.config.get("scaler") == "device" else 1
    return math.ceil((started.growth_interval - step.growth_tracker) / (started.batches * sharing))


class Scales(EnvRowsPanel):
    """A row per env."""

    HEADING = "numerics by env"
    METRICS = ("loss scale", "lost", "growth", "ping-pong", "gradient norm")

    def key(self) -> Hashable:
        """The state, and where the cursor is."""
        return self.state.seq, self.view.selected_env

    def draw(self, size: Size) -> list[Line] | list[Row]:
        """The heading, and the rows in sight."""
        started, width = self.state.started, size.width
        if started is None:
            return []
        owners = ["host", *started.slots]
        vitals = self.state.vitals.envs
        spare = max(width - _FIXED, 0)
        scaled = any(env.scales for env in vitals.values())
        heat = max((spare * 3 // 5 if scaled else spare) // len(owners) - 1, 0)
        heat = min(heat, started.steps, STEPS)
        stairs = min(spare - (heat + 1) * len(owners), 80) if scaled else 0
        shown = self.visible_rows(range(len(self.state.envs)), max(size.height - 1, 1))
        self.note = "|g|  " + "  ".join(f"{glyph} <{bound:g}" for bound, glyph in SHADES) + f"  {_MORE} more"
        layout = _Layout(len(owners), stairs, heat, *_extent(list(vitals.values())))
        worst = severities_of(self.state)
        rows = [self._heading(owners, layout).row(width)]
        for index in shown:
            env, here, severity = self.state.envs[index], index == self.view.selected_env, worst.get(index)
            draw = partial(self._row, env, started, layout, severity, here=here)
            rows.append(self.cached_row(env, width, draw, layout, severity, here))
        self.draw_scroll_arrows(rows, width)
        return rows

    def _heading(self, owners: Sequence[str], layout: _Layout) -> Line:
        level, stairs = (layout.high - layout.low) / 7, layout.stairs
        line = self.line().add("env  scale lost % grows in      |g|", "head").to(_FIXED)
        names = (f"scale by step, {level:.2g} halving{'' if level == 1 else 's'} a level", "scale by step", "scale")
        line.fit(next((name for name in names if len(name) <= stairs), ""), stairs, "head")
        for owner in owners:
            line.add(" ").fit(plain(owner), layout.heat, "head")
        return line

    def _row(self, env: EnvState, started: RunStarted, layout: _Layout, severity: str | None, *, here: bool) -> Line:
        line = Line(self.view.palette, here=here).add("▸" if here else " ", "key")
        line.add(f"{env.env:02d}", "bright" if here else "dim")
        line.add(SEVERITIES[severity].glyph if severity else " ", severity or "normal").to(5)
        step, vitals = env.stepped, self.state.vitals.envs.get(env.env)
        line.cell(power_of_two(step.loss_scale if step else None)).add(" ")
        scaled = step is not None and step.loss_scale is not None
        total = vitals.steps * started.batches if vitals and started.batches else 0
        line.cell(percent(vitals.lost / total if vitals and total and scaled else None), "dim").add(" ")
        left = until_growth(started, env)
        line.add("–" if left is None else f"{left:>4.0f} steps", "absent" if left is None else "dim").to(28)
        pong = vitals is not None and vitals.relapses >= PING_PONG
        line.add(PONG if pong else " ", "warning" if pong else "normal")
        line.cell(number(step.grad_norm if step else None, 3, 2), "dim").to(_FIXED)
        _stairs(line, vitals, layout)
        _heat(line, vitals, layout, started.steps)
        return line


def _extent(envs: Sequence[EnvVitals]) -> tuple[float, float]:
    """Exponents that the staircases span: eight levels, one for each, as long as no env is farther from the top."""
    exponents = [math.log2(scale) for env in envs for _, scale in env.scales if scale > 0 and math.isfinite(scale)]
    if not exponents:
        return 0.0, 7.0
    high = max(exponents)
    return min(*exponents, high - 7), high


def _stairs(line: Line, vitals: EnvVitals | None, layout: _Layout) -> None:
    """The course of the loss scale, and the steps that lost a batch."""
    if layout.stairs <= 0:
        return
    end = line.width + layout.stairs
    if vitals is not None:
        steps, lost = vitals.staircase(layout.stairs), vitals.lost_in(layout.stairs)
        level = {scale: sparkline([exponent_of(scale)], layout.low, layout.high) for scale in set(steps)}
        stairs, start = "".join([level[scale] for scale in steps]), 0
        for place in sorted(lost):
            line.add(stairs[start:place], "spark").add(SKIP, "warning")
            start = place + 1
        line.add(stairs[start:], "spark")
    line.to(end)


def _heat(line: Line, vitals: EnvVitals | None, layout: _Layout, steps: int) -> None:
    """Gradient norms of this episode, of the host and the seed in each slot, a place per step."""
    episode = places(vitals.episode if vitals is not None else [], min(steps, STEPS), layout.heat)
    known = [vital for vital in episode if vital is not None]
    for owner in range(layout.owners):
        norms = [vital.slots[owner - 1] if owner else vital.grad_norm for vital in known]
        # No bound is above a norm that is not finite.
        glyphs = "".join([" " if norm is None else _GLYPHS[bisect_right(_BOUNDS, norm)] for norm in norms])
        line.add(" ")
        for run in _NOTABLE.split(glyphs):
            line.add(run, _ROLES.get(run[:1], "spark"))
        line.add(" " * (len(episode) - len(known)))
