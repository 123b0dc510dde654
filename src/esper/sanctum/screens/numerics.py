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

from esper.formatting import format_power, scale_exponent, strip_control
from esper.health.rules import MAX_SCALE_OSCILLATIONS, MAX_SCALE_RATIO
from esper.sanctum.bindings import KeyCategory
from esper.sanctum.env_filter import worst_severity_by_env
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, number_cell, percent_cell, scale_cell
from esper.sanctum.widgets.chart import Y_AXIS_COLUMNS, Chart
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.health_stats import MAX_SCALE_CHANGES, MAX_STEPS, EnvHealth
from esper.telemetry.sentences import pluralise
from esper.telemetry.state import EnvState
from esper.text_plot import Axis, sample_to_width, sparkline


class NumericsScreen(RunScreen):
    """The envs above; the one under the cursor, the lanes and what was not finite below."""

    AUTO_FOCUS = "LossScaleTable"
    CATEGORIES = (KeyCategory.ROWS,)

    def body(self) -> ComposeResult:
        """Two rows."""
        yield LossScaleTable(self.view)
        with Horizontal(id="details"):
            yield LossScaleChart(self.view)
            with Vertical(id="bad"):
                yield LossScaleRange(self.view)
                yield NonFiniteList(self.view)


_WINDOW = MAX_SCALE_CHANGES
"""Steps that the staircase looks back."""
_TICK_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)
"""Halvings from tick to tick of an axis of loss scales."""
_INDENT = 23
"""Cells before the names of what was not finite."""


class LossScaleChart(Panel):
    """The loss scale of the env under the cursor: an exact staircase of powers of two, the skips as ticks below it."""

    METRICS = ("loss scale", "lost", "ping-pong")

    def cache_key(self) -> Hashable:
        """The state, and which env."""
        return self.state.seq, self.view.selected_env

    def draw_lines(self, size: Size) -> list[Line]:
        """The chart, a line of ticks and the axis."""
        self.panel_title = f"env {self.view.selected_env:02d} ─ loss scale"
        vitals = self.state.vitals.envs.get(self.view.selected_env)
        if vitals is None or not vitals.scales:
            self.panel_subtitle = None
            return [self.line().append(" no loss scaling", "dim")] if self.state.started else []
        steps = vitals.recent_scales(_WINDOW)
        stairs = [scale_exponent(scale) for scale in steps]
        known = [value for value in stairs if value is not None]
        low, high, ticks = _exponents(known, size.height - 4)
        dots = max((size.width - Y_AXIS_COLUMNS - 2) * 2, 1)
        held = [stairs[dot * len(stairs) // dots] for dot in range(dots)]  # flat between two steps
        chart = Chart(values=held, x_length=dots, low=low, high=high, ticks=ticks)
        lines = chart.lines(self.view.palette, size.width, size.height - 1)[:-1]
        lost = vitals.recent_skips(_WINDOW)
        marks = {place * dots // len(stairs) // 2 for place in lost}
        row = self.line().append("skip".rjust(Y_AXIS_COLUMNS), "dim").append("  ")
        for column in range(dots // 2):
            row.append("╵" if column in marks else " ", "warning")
        count = sum(lost.values())
        self.panel_subtitle = f"batches lost in {len(stairs)} steps: {count}; relapses: {vitals.num_oscillations}"
        axis = (
            self.line()
            .pad_to(Y_AXIS_COLUMNS + 2)
            .append(f"−{len(stairs)}", "dim")
            .pad_to(size.width - 4)
            .append("now", "dim")
        )
        return [*lines, row, axis]


def _exponents(known: list[float], rows: int) -> Axis:
    """An axis of powers of two around the exponents, its ticks two rows apart at least."""
    low, high = math.floor(min(known)) - 1, math.ceil(max(known)) + 1
    apart = next((apart for apart in _TICK_STEPS if (-(-high // apart) - low // apart) * 2 <= rows), _TICK_STEPS[-1])
    ticks = range(low // apart, -(-high // apart) + 1)
    return Axis(ticks[0] * apart, ticks[-1] * apart, [(tick * apart, format_power(tick * apart)) for tick in ticks])


class LossScaleRange(Panel):
    """Least and greatest loss scale of each lane."""

    PANEL_TITLE = "loss scales by lane"
    METRICS = ("scale spread",)

    def cache_key(self) -> Hashable:
        """Changes with every sample."""
        return tuple(sample.seq for sample in self.state.devices.values())

    def preferred_height(self) -> int:
        """A line for each lane."""
        return max(len(self.state.devices), 1)

    def draw_lines(self, size: Size) -> list[Line]:  # noqa: ARG002 (short lines)
        """A line for each lane."""
        lines: list[Line] = []
        limit = math.log2(MAX_SCALE_RATIO)
        for name, sample in self.state.devices.items():
            line = self.line().append(" ").append_fitted(strip_control(name), 8)
            line.append_cell(scale_cell(sample.scale_min)).append(" to ", "dim").append_cell(
                scale_cell(sample.scale_max)
            ).append(" ")
            if sample.scale_min and sample.scale_max:
                apart = math.log2(sample.scale_max / sample.scale_min)
                line.append(f"×{format_power(apart)}", "warning" if apart > limit else "normal").append(
                    f" (≤ {format_power(limit)})", "dim"
                )
            lines.append(line)
        return lines or [self.line().append(" no sample yet", "dim")]


class NonFiniteList(Panel):
    """Every quantity that was ever NaN or infinite: how often, and when first; those that share all that in one row."""

    PANEL_TITLE = "not finite ─ since the run began"
    METRICS = ("not finite",)

    def draw_lines(self, size: Size) -> list[Line]:
        """The newest first; what has no room for all of it ends in an ellipsis, and each has a line."""
        bad = self.state.vitals.bad
        if not bad:
            return [self.line().append(" every recorded value was finite", "dim")] if self.state.started else []
        self.panel_subtitle = pluralise(len(bad), "quantity", "quantities")
        lines = [self.line().append("   NaN   inf  first at", "head")]
        together: dict[tuple[object, ...], list[str]] = {}
        for name, count in sorted(bad.items(), key=lambda item: -item[1].last_seq):
            same = (count.nan, count.inf, count.first_round, count.first_step, count.env)
            together.setdefault(same, []).append(strip_control(name))
        room = max(size.width - _INDENT, 8)
        spare = max(size.height - len(lines) - len(together), 0)
        for (nan, inf, round_, step, _), names in together.items():
            rows = wrap(_one_sentence(names), room, max_lines=1 + spare, placeholder=" …")
            spare -= len(rows) - 1
            line = self.line().append(f"{nan:>6}{inf:>6}  ", "bright")
            line.append(f"{round_}" if step is None else f"{round_}.{step}", "dim")
            for row in rows:
                lines.append(line.pad_to(_INDENT).append(row))
                line = self.line()
        return lines


def _one_sentence(names: list[str]) -> str:
    """Quantities of one place, which is named once."""
    place = names[0].partition(": ")[0] + ": "
    return ", ".join([names[0], *(name.removeprefix(place) for name in names[1:])])


SKIP_GLYPH = "↓"
"""In a staircase: a step that lost a batch, for which the scale was halved."""
OSCILLATION_GLYPH = "⇅"
"""The scale grows only to fall again."""
NORM_SHADES = ((0.01, "·"), (0.1, "░"), (1.0, "▒"), (10.0, "▓"))
"""Of a gradient norm: the glyph below each bound."""
_BOUNDS = (*(bound for bound, _ in NORM_SHADES), math.inf)
_MORE, _UNSOUND = "█", "×"
_GLYPHS = "".join(glyph for _, glyph in NORM_SHADES) + _MORE + _UNSOUND
_ROLES = {_MORE: "warning", _UNSOUND: "bad"}
_NOTABLE = re.compile(f"({_MORE}+|{_UNSOUND}+)")
_FIXED_COLUMNS = 36
"""Columns of all but staircase and heat map."""


class _Layout(NamedTuple):
    """How the width is shared, and the exponents that the staircases span."""

    owners: int
    stairs: int
    heat: int
    low: float
    high: float


def steps_until_growth(started: RunStarted, env: EnvState) -> float | None:
    """Clean steps until the loss scale doubles; None without loss scaling."""
    step = env.stepped
    if step is None or step.growth_tracker is None or not started.growth_interval or not started.batches:
        return None
    sharing = started.lanes.count(env.lane) if started.config.get("scaler") == "device" else 1
    return math.ceil((started.growth_interval - step.growth_tracker) / (started.batches * sharing))


class LossScaleTable(EnvRowsPanel):
    """A row per env."""

    PANEL_TITLE = "numerics by env"
    METRICS = ("loss scale", "lost", "growth", "ping-pong", "gradient norm")

    def cache_key(self) -> Hashable:
        """The state, and where the cursor is."""
        return self.state.seq, self.view.selected_env

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """The heading, and the rows in sight."""
        started, width = self.state.started, size.width
        if started is None:
            return []
        owners = ["host", *started.slots]
        vitals = self.state.vitals.envs
        spare = max(width - _FIXED_COLUMNS, 0)
        scaled = any(env.scales for env in vitals.values())
        heat = max((spare * 3 // 5 if scaled else spare) // len(owners) - 1, 0)
        heat = min(heat, started.steps, MAX_STEPS)
        stairs = min(spare - (heat + 1) * len(owners), 80) if scaled else 0
        shown = self.visible_rows(range(len(self.state.envs)), max(size.height - 1, 1))
        self.panel_subtitle = (
            "|g|  " + "  ".join(f"{glyph} <{bound:g}" for bound, glyph in NORM_SHADES) + f"  {_MORE} more"
        )
        layout = _Layout(len(owners), stairs, heat, *_extent(list(vitals.values())))
        worst = worst_severity_by_env(self.state)
        rows = [self._heading(owners, layout).row(width)]
        for index in shown:
            env, here, severity = self.state.envs[index], index == self.view.selected_env, worst.get(index)
            draw = partial(self._row, env, started, layout, severity, here=here)
            rows.append(self.cached_row(env, width, draw, layout, severity, here))
        self.draw_scroll_arrows(rows, width)
        return rows

    def _heading(self, owners: Sequence[str], layout: _Layout) -> Line:
        level, stairs = (layout.high - layout.low) / 7, layout.stairs
        line = self.line().append("env  scale lost % grows in      |g|", "head").pad_to(_FIXED_COLUMNS)
        names = (f"scale by step, {level:.2g} halving{'' if level == 1 else 's'} a level", "scale by step", "scale")
        line.append_fitted(next((name for name in names if len(name) <= stairs), ""), stairs, "head")
        for owner in owners:
            line.append(" ").append_fitted(strip_control(owner), layout.heat, "head")
        return line

    def _row(self, env: EnvState, started: RunStarted, layout: _Layout, severity: str | None, *, here: bool) -> Line:
        line = Line(self.view.palette, selected=here).append("▸" if here else " ", "key")
        line.append(f"{env.env:02d}", "bright" if here else "dim")
        line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal").pad_to(5)
        step, vitals = env.stepped, self.state.vitals.envs.get(env.env)
        line.append_cell(scale_cell(step.loss_scale if step else None)).append(" ")
        scaled = step is not None and step.loss_scale is not None
        total = vitals.steps * started.batches if vitals and started.batches else 0
        line.append_cell(percent_cell(vitals.lost / total if vitals and total and scaled else None), "dim").append(" ")
        left = steps_until_growth(started, env)
        line.append("–" if left is None else f"{left:>4.0f} steps", "absent" if left is None else "dim").pad_to(28)
        pong = vitals is not None and vitals.num_oscillations >= MAX_SCALE_OSCILLATIONS
        line.append(OSCILLATION_GLYPH if pong else " ", "warning" if pong else "normal")
        line.append_cell(number_cell(step.grad_norm if step else None, 3, 2), "dim").pad_to(_FIXED_COLUMNS)
        _draw_scales(line, vitals, layout)
        _draw_norm_heatmap(line, vitals, layout, started.steps)
        return line


def _extent(envs: Sequence[EnvHealth]) -> tuple[float, float]:
    """Exponents that the staircases span: eight levels, one for each, as long as no env is farther from the top."""
    exponents = [math.log2(scale) for env in envs for _, scale in env.scales if scale > 0 and math.isfinite(scale)]
    if not exponents:
        return 0.0, 7.0
    high = max(exponents)
    return min(*exponents, high - 7), high


def _draw_scales(line: Line, vitals: EnvHealth | None, layout: _Layout) -> None:
    """The course of the loss scale, and the steps that lost a batch."""
    if layout.stairs <= 0:
        return
    end = line.width + layout.stairs
    if vitals is not None:
        steps, lost = vitals.recent_scales(layout.stairs), vitals.recent_skips(layout.stairs)
        level = {scale: sparkline([scale_exponent(scale)], layout.low, layout.high) for scale in set(steps)}
        stairs, start = "".join([level[scale] for scale in steps]), 0
        for place in sorted(lost):
            line.append(stairs[start:place], "spark").append(SKIP_GLYPH, "warning")
            start = place + 1
        line.append(stairs[start:], "spark")
    line.pad_to(end)


def _draw_norm_heatmap(line: Line, vitals: EnvHealth | None, layout: _Layout, steps: int) -> None:
    """Gradient norms of this episode, of the host and the seed in each slot, a place per step."""
    episode = sample_to_width(vitals.episode if vitals is not None else [], min(steps, MAX_STEPS), layout.heat)
    known = [vital for vital in episode if vital is not None]
    for owner in range(layout.owners):
        norms = [vital.slots[owner - 1] if owner else vital.grad_norm for vital in known]
        # No bound is above a norm that is not finite.
        glyphs = "".join([" " if norm is None else _GLYPHS[bisect_right(_BOUNDS, norm)] for norm in norms])
        line.append(" ")
        for run in _NOTABLE.split(glyphs):
            line.append(run, _ROLES.get(run[:1], "spark"))
        line.append(" " * (len(episode) - len(known)))
