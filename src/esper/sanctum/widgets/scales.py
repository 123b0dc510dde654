"""The numerics of every env: its loss scale as a staircase, what overflows cost it, its gradient norms as shades."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

from textual.geometry import Size

from esper.formatting import exponent_of, plain
from esper.health.rules import PING_PONG
from esper.sanctum.population import severities_of
from esper.sanctum.symbols import SEVERITIES, number, percent, power_of_two
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.panel import Line, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.health_stats import STEPS, EnvVitals
from esper.telemetry.state import EnvState
from esper.text_plot import places, sparkline

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
