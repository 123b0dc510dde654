"""The columns of the env table: how they share the width, and how a row is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from esper.sanctum.symbols import SEVERITIES, SIGNS, STAGES, number, percent, plain, power_of_two
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.plot import places, sparkline
from esper.telemetry.events import RunStarted, SlotReading
from esper.telemetry.marks import Sign
from esper.telemetry.state import HISTORY, EnvState

_CHOICES = ((10, 6, 2), (10, 0, 2), (10, 0, 1), (6, 0, 1), (0, 0, 2), (0, 0, 1))
"""Columns for a blueprint's name, for the bar of alpha, and between columns, from roomy to tight."""
_LEAST_SPARK, _MOST_SPARK = 4, 26
_COUNTED = ("fossilized", "probationary", "blending", "training", "germinated", "culled", "embargoed", "dormant")
_MOVING = frozenset({"training", "blending", "probationary"})


@dataclass(frozen=True)
class Layout:
    """Widths in columns."""

    digits: int
    spark: int
    blueprint: int
    gauge: int
    gap: int
    device: int
    """0 where there is no room for it."""

    @property
    def slot(self) -> int:
        """Width of a slot's cell: stage, blueprint, bar, alpha."""
        name = self.blueprint + 1 if self.blueprint else 0
        gauge = self.gauge + 1 if self.gauge else 0
        return 2 + name + gauge + self.alpha

    @property
    def alpha(self) -> int:
        """Width of alpha: two decimals where there is room, else one."""
        return 4 if self.blueprint >= 10 else 3


def fit(width: int, started: RunStarted) -> Layout:
    """The roomiest layout that `width` columns hold."""
    digits = max(len(str(len(started.lanes) - 1)), 2)
    device = max(max(map(len, started.lanes), default=0), 3)
    for blueprint, gauge, gap in _CHOICES:
        layout = Layout(digits, 0, blueprint, gauge, gap, device)
        spare = width - _needed(layout, len(started.slots))
        if spare >= _LEAST_SPARK:
            return Layout(digits, min(spare, _MOST_SPARK), blueprint, gauge, gap, device)
    layout = Layout(digits, 0, 0, 0, 1, 0)
    return Layout(digits, max(min(width - _needed(layout, len(started.slots)), _MOST_SPARK), 0), 0, 0, 1, 0)


def _needed(layout: Layout, slots: int) -> int:
    """Width without the sparkline."""
    fixed = 1 + layout.digits + 1 + 5 + 6 + 6 + 5
    between = 5 + slots + (layout.device > 0)
    return fixed + slots * layout.slot + layout.device + between * layout.gap


def heading(palette: Palette, layout: Layout, slots: Sequence[str]) -> Line:
    """Names and units of the columns."""
    gap = " " * layout.gap
    line = Line(palette).fit("env".rjust(1 + layout.digits), 2 + layout.digits, "head")
    line.add("acc %" + gap, "head").fit("", layout.spark).add(gap).add("reward" + gap, "head")
    for slot in slots:
        line.fit(plain(slot), layout.slot, "head").add(gap)
    line.add("  |g| " + gap, "head").add("scale", "head")
    return line.add(gap).fit("lane", layout.device, "head") if layout.device else line


OUT = f"{SIGNS[Sign.ROLLBACK][0].glyph} out"
"""In place of the reward of an env that sits out the round."""


def row(
    palette: Palette, layout: Layout, started: RunStarted, env: EnvState, *, severity: str | None, here: bool
) -> Line:
    """One env. `severity` is that of its worst anomaly, `here` says that the cursor is on it."""
    gap = " " * layout.gap
    step = env.stepped
    line = Line(palette, here=here).add("▸" if here else " ", "key")
    line.add(f"{env.env:0{layout.digits}d}", "bright" if here else "dim")
    line.add(SEVERITIES[severity].glyph if severity else " ", severity or "normal")
    line.cell(percent(step.accuracy if step else None), "bright" if here else None).add(gap)
    spread = places(env.accuracy, min(started.steps, HISTORY), layout.spark)
    line.add(sparkline(spread, 0.0, 1.0), "spark").add(gap)
    reward = number(step.reward if step else None, 2, 3, signed=True, fixed=True)
    if env.rolled_back:
        line.add(OUT.rjust(len(reward.text)), "error").add(gap)
    else:
        line.cell(reward).add(gap)
    for index in range(len(started.slots)):
        slot_cell(line, layout, step.slots[index] if step else None)
        line.add(gap)
    line.cell(number(step.grad_norm if step else None, 3, 2), "dim").add(gap)
    line.cell(power_of_two(step.loss_scale if step else None), "dim")
    return line.add(gap).fit(plain(env.lane), layout.device, "dim") if layout.device else line


def slot_cell(line: Line, layout: Layout, slot: SlotReading | None) -> None:
    """Stage, blueprint, bar of alpha, alpha. An empty slot has none of the last three, one not measured a dash."""
    end = line.width + layout.slot
    if slot is None:
        line.add("–", "absent")
    else:
        line.add(STAGES[slot.stage].glyph, slot.stage)
        if slot.blueprint is not None:
            role = "normal" if slot.stage in _MOVING else "dim"
            line.add(" ")
            if layout.blueprint:
                line.fit(plain(slot.blueprint), layout.blueprint, role).add(" ")
            if layout.gauge:
                line.gauge(slot.alpha, layout.gauge, slot.stage).add(" ")
            line.cell(number(slot.alpha, 1, layout.alpha - 2, fixed=True), role)
    line.to(end)


def middle(palette: Palette, layout: Layout, started: RunStarted, envs: Sequence[EnvState]) -> Line:
    """Medians over the envs, and for each slot how many are at each stage."""
    gap = " " * layout.gap
    steps = [env.stepped for env in envs if env.stepped is not None]
    line = Line(palette).fit("med".rjust(1 + layout.digits), 2 + layout.digits, "head")
    line.cell(percent(_median(step.accuracy for step in steps)), "bright").add(gap)
    line.add(" " * layout.spark).add(gap)
    line.cell(number(_median(step.reward for step in steps), 2, 3, signed=True, fixed=True)).add(gap)
    for index in range(len(started.slots)):
        end = line.width + layout.slot
        counts = Counter(step.slots[index].stage for step in steps)
        for stage in _COUNTED:
            text = f"{counts[stage]}{STAGES[stage].glyph}"
            if counts[stage] and line.width + len(text) <= end:
                line.add(text, stage).to(min(line.width + 1, end))
        line.to(end).add(gap)
    line.cell(number(_median(step.grad_norm for step in steps), 3, 2), "dim").add(gap)
    return line.cell(power_of_two(_median(step.loss_scale for step in steps)), "dim")


def _median(values: Iterable[float | None]) -> float | None:
    """Median of what was measured and is a number; the rows show the others."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return median(finite) if finite else None
