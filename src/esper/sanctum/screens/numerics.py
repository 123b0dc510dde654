"""The numerics screen: loss scales, skipped batches, gradient norms, and non-finite values."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from textwrap import wrap
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Size

from esper.common.formatting import format_power, pluralise, scale_exponent, strip_control
from esper.common.plots.axis import Axis
from esper.common.plots.chart import Chart, ChartMark, Curve, Quantity, XAxis
from esper.common.plots.sparkline import sample_to_width, sparkline
from esper.recordings.events import RunStarted
from esper.recordings.health.rules.lanes import MAX_SCALE_OSCILLATIONS, MAX_SCALE_RATIO
from esper.recordings.state.health_stats import MAX_SCALE_CHANGES, MAX_STEPS, EnvHealth
from esper.recordings.state.state import EnvState
from esper.sanctum.keys import KeyCategory
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import (
    SCALE_TOO_SMALL,
    SEVERITIES,
    is_scale_too_small,
    number_cell,
    percent_cell,
    scale_cell,
    slot_labels,
)
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.paced_panel import PacedPanel
from esper.sanctum.widgets.panel import DevicePanel, Line, Panel, Row

SKIP_GLYPH = "↓"
"""Marks a step with skipped batches in the scale column of an env."""
OSCILLATION_GLYPH = "⇅"
"""Marks an env whose loss scale grows only to overflow again."""
NORM_SHADES = ((0.01, "·"), (0.1, "░"), (1.0, "▒"), (10.0, "▓"))
"""Upper bounds of gradient norms, each with the glyph of the norms below it."""
_BOUNDS = (*(bound for bound, _ in NORM_SHADES), math.inf)
_ABOVE_BOUNDS, _NON_FINITE = "█", "×"
_GLYPHS = "".join(glyph for _, glyph in NORM_SHADES) + _ABOVE_BOUNDS + _NON_FINITE
_GLYPH_ROLES = {_ABOVE_BOUNDS: "warning", _NON_FINITE: "bad"}
_HIGHLIGHTED = re.compile(f"({_ABOVE_BOUNDS}+|{_NON_FINITE}+)")
_FIXED_COLUMNS = 36
"""Columns of the env table without the scale curve and the heat map."""
_MAX_SCALE_COLS = 80
_SCALE_LEVELS = 7
"""Differences between the eight block characters of a scale curve."""
_CHART_STEPS = MAX_SCALE_CHANGES
"""Number of recent steps in the loss scale chart."""
_TICK_SPACINGS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)
"""Possible differences between the exponents of two ticks of a loss scale axis."""
_QUANTITY_COLUMN = 23
"""Column of the quantities in the list of non-finite values."""
_MIN_QUANTITY_COLS = 8
_MIN_RANGE_COLS = 48
"""Minimum width of the panel of loss scales by lane for aligned columns."""


class NumericsScreen(RunScreen):
    """All envs at the top; below them the selected env, the lanes, and the non-finite values."""

    AUTO_FOCUS = "LossScaleTable"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.ENVS)

    def body(self) -> ComposeResult:
        """Yield the env table, and a row of details."""
        yield LossScaleTable(self.view)
        with Horizontal(id="details"):
            yield LossScaleChart(self.view)
            with Vertical(id="lanes-and-non-finite"):
                yield LossScaleRange(self.view)
                yield NonFiniteList(self.view)


class LossScaleTable(EnvRowsPanel, PacedPanel):
    """One row per env: loss scale with its curve, skipped batches, gradient norms with their heat maps."""

    PANEL_TITLE = "numerics by env"
    METRICS = ("loss scale", "skipped batches", "steps to scale growth", "scale oscillation", "gradient norm")

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        started, width = self.state.started, size.width
        if started is None:
            return []
        num_owners = 1 + len(started.slot_names)
        health_by_env = self.state.health.envs
        spare = max(width - _FIXED_COLUMNS, 0)
        has_scaling = any(health.scales for health in health_by_env.values())
        heat_map_width = max((spare * 3 // 5 if has_scaling else spare) // num_owners - 1, 0)
        heat_map_width = min(heat_map_width, started.steps, MAX_STEPS)
        scale_width = min(spare - (heat_map_width + 1) * num_owners, _MAX_SCALE_COLS) if has_scaling else 0
        shown = self.visible_envs(range(len(self.state.envs)), max(size.height - 1, 1))
        self.panel_subtitle = (
            "gradient norm  "
            + "  ".join(f"{glyph} <{bound:g}" for bound, glyph in NORM_SHADES)
            + f"  {_ABOVE_BOUNDS} more"
        )
        layout = _Layout(num_owners, scale_width, heat_map_width, *_exponent_range(list(health_by_env.values())))
        worst = self.view.severity_by_env()
        rows = [self._heading(started.slot_names, layout).row(width)]
        for index in shown:
            env, selected, severity = self.state.envs[index], index == self.view.selected_env, worst.get(index)
            draw = partial(self._row, env, started, layout, severity, selected=selected)
            rows.append(self.cached_row(index, width, draw, env.revision, layout, severity, selected))
        self.draw_scroll_arrows(rows, width)
        return rows

    def _heading(self, slots: Sequence[str], layout: _Layout) -> Line:
        halvings, width = (layout.high - layout.low) / _SCALE_LEVELS, layout.scale_width
        line = self.line("env  scale skip % doubles in   norm", "head").pad_to(_FIXED_COLUMNS)
        unit = "halving" if halvings == 1 else "halvings"
        titles = (f"scale by step, {halvings:.2g} {unit} per level", "scale by step", "scale")
        line.append_fitted(next((title for title in titles if len(title) <= width), ""), width, "head")
        for label in ("host", *slot_labels(slots, layout.heat_map_width)):
            line.append(" ").append_fitted(label, layout.heat_map_width, "head")
        return line

    def _row(
        self, env: EnvState, started: RunStarted, layout: _Layout, severity: str | None, *, selected: bool
    ) -> Line:
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append(f"{env.env:02d}", "bright" if selected else "dim")
        line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal").pad_to(5)
        step, health = env.stepped, self.state.health.envs.get(env.env)
        line.append_cell(scale_cell(step.loss_scale if step else None)).append(" ")
        has_scaling = step is not None and step.loss_scale is not None
        batches = health.steps * started.batches if health else 0
        skipped = health.skipped_batches / batches if health and batches and has_scaling else None
        line.append_cell(percent_cell(skipped), "dim").append(" ")
        if step is not None and is_scale_too_small(step.loss_scale):
            line.append(SCALE_TOO_SMALL, "error").pad_to(28)
        else:
            steps = steps_until_growth(started, env)
            growth, role = ("–", "absent") if steps is None else (f"{steps:>4.0f} steps", "dim")
            line.append(growth, role).pad_to(28)
        oscillates = health is not None and health.num_oscillations >= MAX_SCALE_OSCILLATIONS
        line.append(OSCILLATION_GLYPH if oscillates else " ", "warning" if oscillates else "normal")
        line.append_cell(number_cell(step.grad_norm if step else None, 3, 2), "dim").pad_to(_FIXED_COLUMNS)
        _draw_scales(line, health, layout)
        _draw_norm_heatmap(line, health, layout, started.steps)
        return line


class LossScaleChart(ChartPanel):
    """Loss scale of the selected env by step, in powers of two; a tick marks each step with skipped batches."""

    METRICS = ("loss scale", "skipped batches", "scale oscillation")

    @property
    def _health(self) -> EnvHealth | None:
        return self.state.health.envs.get(self.view.selected_env)

    def name_in_title(self) -> str:
        """Return the env and the quantity."""
        return f"env {self.view.selected_env:02d} ─ loss scale"

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "no loss scaling"

    def summary(self, chart: Chart) -> str:
        """Return the number of skipped batches and of oscillations."""
        assert self._health is not None
        skipped = sum(self._health.recent_skipped(_CHART_STEPS).values())
        num_steps = len(chart.positions)
        return f"batches skipped in {num_steps} steps: {skipped}  oscillations: {self._health.num_oscillations}"

    def chart(self) -> Chart | None:
        """Return the chart of the last steps; None without loss scaling."""
        health = self._health
        if health is None or not health.scales:
            return None
        exponents = [scale_exponent(scale) for scale in health.recent_scales(_CHART_STEPS)]
        last = self.state.steps_done
        first = last - len(exponents) + 1
        return Chart(
            quantity=Quantity("loss scale", text_of=format_power),
            x_axis=XAxis("step of the run", first, last),
            curves=[Curve("scale", range(first, last + 1), exponents)],
            y_axis=_exponent_axis([value for value in exponents if value is not None], self.size.height - 3),
            marks=[ChartMark(first + step, None, "╵", "warning") for step in health.recent_skipped(_CHART_STEPS)],
        )


class LossScaleRange(DevicePanel):
    """Minimum and maximum loss scale of each lane, and their ratio."""

    PANEL_TITLE = "loss scales by lane"
    METRICS = ("scale spread",)

    def preferred_height(self) -> int:
        """Return the number of lanes."""
        return max(len(self.state.devices), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line per lane."""
        wide = size.width >= _MIN_RANGE_COLS
        lines: list[Line] = []
        limit = math.log2(MAX_SCALE_RATIO)
        for name, sample in self.state.devices.items():
            line = self.line(" ").append_fitted(strip_control(name), 8 if wide else 6, keep_end=True)
            lowest, highest = scale_cell(sample.scale_min), scale_cell(sample.scale_max)
            line.append_cell(lowest if wide else lowest._replace(text=lowest.text.strip()))
            line.append(" to " if wide else "–", "dim").append_cell(highest)
            if sample.scale_min and sample.scale_max:
                halvings = math.log2(sample.scale_max / sample.scale_min)
                line.append(f"spread {format_power(halvings)}", "warning" if halvings > limit else "normal").append(
                    f", limit {format_power(limit)}", "dim"
                )
            if is_scale_too_small(sample.scale_min):
                line.append(f"  {SCALE_TOO_SMALL}", "error")
            lines.append(line)
        return lines or [self.line(" no device sample yet", "dim")]


class NonFiniteList(Panel):
    """Quantities that were NaN or infinite: how often, and when first. Those with equal counts and time share a row."""

    PANEL_TITLE = "non-finite values ─ whole run"
    METRICS = ("not finite",)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the rows, latest first. Each has at least one line; a text that does not fit ends in an ellipsis."""
        non_finite = self.state.health.non_finite
        if not non_finite:
            return self.message("all recorded values are finite")
        self.panel_subtitle = pluralise(len(non_finite), "quantity", "quantities")
        lines = [self.line("  NaN  inf round step", "head")]
        names_by_count: dict[tuple[object, ...], list[str]] = {}
        for name, count in sorted(non_finite.items(), key=lambda item: -item[1].last_seq):
            key = (count.nan, count.inf, count.first_round, count.first_step, count.env)
            names_by_count.setdefault(key, []).append(strip_control(name))
        text_width = max(size.width - _QUANTITY_COLUMN, _MIN_QUANTITY_COLS)
        spare = max(size.height - len(lines) - len(names_by_count), 0)
        for (nan, inf, round_, step, _), names in names_by_count.items():
            rows = wrap(_join_quantities(names), text_width, max_lines=1 + spare, placeholder=" …")
            spare -= len(rows) - 1
            line = self.line(f"{nan:>5}{inf:>5}", "bright")
            line.append(f"{round_:>6}{'' if step is None else step:>5}", "dim")
            for row in rows:
                lines.append(line.pad_to(_QUANTITY_COLUMN).append(row))
                line = self.line()
        return lines


def steps_until_growth(started: RunStarted, env: EnvState) -> float | None:
    """Return the number of steps without overflow until the loss scale doubles; None without loss scaling."""
    step = env.stepped
    if step is None or step.growth_tracker is None or not started.growth_interval:
        return None
    num_envs = started.lanes.count(env.lane) if started.config.get("scaler") == "device" else 1
    return math.ceil((started.growth_interval - step.growth_tracker) / (started.batches * num_envs))


class _Layout(NamedTuple):
    """Column widths of the env table, and the range of exponents of its scale curves."""

    num_owners: int
    """Number of heat maps: of the host, and of the seed in each slot."""
    scale_width: int
    heat_map_width: int
    """Width of one heat map."""
    low: float
    high: float


def _exponent_range(envs: Sequence[EnvHealth]) -> tuple[float, float]:
    """Return the range of exponents of the scale curves: at least one halving for each block character."""
    exponents = [math.log2(scale) for env in envs for _, scale in env.scales if scale > 0 and math.isfinite(scale)]
    if not exponents:
        return 0.0, float(_SCALE_LEVELS)
    high = max(exponents)
    return min(*exponents, high - _SCALE_LEVELS), high


def _draw_scales(line: Line, health: EnvHealth | None, layout: _Layout) -> None:
    """Append the curve of the loss scale, with a glyph for each step with skipped batches."""
    if layout.scale_width <= 0:
        return
    end = line.width + layout.scale_width
    if health is not None:
        scales, skips = health.recent_scales(layout.scale_width), health.recent_skipped(layout.scale_width)
        block = {scale: sparkline([scale_exponent(scale)], layout.low, layout.high) for scale in set(scales)}
        curve, start = "".join([block[scale] for scale in scales]), 0
        for step in sorted(skips):
            line.append(curve[start:step], "spark").append(SKIP_GLYPH, "warning")
            start = step + 1
        line.append(curve[start:], "spark")
    line.pad_to(end)


def _draw_norm_heatmap(line: Line, health: EnvHealth | None, layout: _Layout, steps: int) -> None:
    """Append the gradient norms of this episode by step, for the host and the seed in each slot."""
    episode = health.episode if health is not None else []
    columns = sample_to_width(episode, min(steps, MAX_STEPS), layout.heat_map_width)
    known = [step for step in columns if step is not None]
    for owner in range(layout.num_owners):
        if owner == 0:
            norms = [step.grad_norm for step in known]
        else:  # an env of a family can have fewer slots
            norms = [step.slots[owner - 1] if owner <= len(step.slots) else None for step in known]
        # No bound is above NaN or infinity, so bisect_right returns the index of the last glyph.
        glyphs = "".join([" " if norm is None else _GLYPHS[bisect_right(_BOUNDS, norm)] for norm in norms])
        line.append(" ")
        for run in _HIGHLIGHTED.split(glyphs):
            line.append(run, _GLYPH_ROLES.get(run[:1], "spark"))
        line.append(" " * (len(columns) - len(known)))


def _exponent_axis(exponents: list[float], rows: int) -> Axis:
    """Return an axis that contains all exponents, with labels as powers of two, at least two rows apart."""
    low, high = math.floor(min(exponents)) - 1, math.ceil(max(exponents)) + 1
    fitting = (spacing for spacing in _TICK_SPACINGS if (-(-high // spacing) - low // spacing) * 2 <= rows)
    spacing = next(fitting, _TICK_SPACINGS[-1])
    ticks = [tick * spacing for tick in range(low // spacing, -(-high // spacing) + 1)]
    return Axis(ticks[0], ticks[-1], [(tick, format_power(tick)) for tick in ticks])


def _join_quantities(names: list[str]) -> str:
    """Join quantities of one env, lane or head, whose name is written only once."""
    prefix = names[0].partition(": ")[0] + ": "
    return ", ".join([names[0], *(name.removeprefix(prefix) for name in names[1:])])
