"""The columns of the env table: widths, values, cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median, median_high, median_low

from esper.formatting import strip_control
from esper.history.timeline import MarkKind
from esper.sanctum.env_filter import NUMERIC_FIELDS
from esper.sanctum.symbols import MARK_SYMBOLS, SEVERITIES, STAGES, number_cell, percent_cell, scale_cell
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.panel import Line, StyledText
from esper.telemetry.events import RunStarted, SlotReading
from esper.telemetry.state import SERIES_POINTS, EnvState
from esper.text_plot import sample_to_width, sparkline

_LAYOUTS = ((10, 6, 2), (10, 0, 2), (10, 0, 1), (6, 0, 1), (0, 0, 2), (0, 0, 1))
"""Columns for a blueprint's name, for the bar of alpha, and between columns, from roomy to tight."""
PIN_GLYPH = "•"
_LEAST_SPARK, _MOST_SPARK = 4, 26
_STAGES_BY_PRIORITY = (
    "fossilized",
    "probationary",
    "blending",
    "training",
    "germinated",
    "culled",
    "embargoed",
    "dormant",
)
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


def choose_layout(width: int, started: RunStarted) -> Layout:
    """The roomiest layout that `width` columns hold."""
    digits = max(len(str(len(started.lanes) - 1)), 2)
    device = max(max(map(len, started.lanes), default=0), 3)
    for blueprint, gauge, gap in _LAYOUTS:
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


def sortable_columns(slots: Sequence[str]) -> list[str]:
    """What the table can be ordered by."""
    return ["env", "acc", "reward", *slots, "|g|", "scale", "lane"]


def header_row(
    palette: Palette, layout: Layout, slots: Sequence[str], by: str, arrow: str
) -> tuple[Line, list[tuple[range, str]]]:
    """Names and units of the columns, and which columns of the screen are whose; an arrow at the one they go by."""
    widths = [2 + layout.digits, 5 + layout.gap + layout.spark, 6, *(layout.slot for _ in slots), 6, 5]
    labels = ["env".rjust(1 + layout.digits), "acc %", "reward", *map(strip_control, slots), "  |g|", "scale"]
    if layout.device:
        widths.append(layout.device)
        labels.append("lane")
    line, spans = Line(palette), []
    for name, label, width in zip(sortable_columns(slots), labels, widths, strict=False):
        start, gap = line.width, 0 if name == "env" else layout.gap
        text = label + arrow if name == by else label
        line.append_fitted(text, width + gap, "key" if name == by else "head")
        spans.append((range(start, line.width), name))
    return line, spans


def sort_value(column: str, started: RunStarted) -> Callable[[EnvState], float | None]:
    """What the envs are ordered by under a column: a slot counts by its stage, then by its alpha."""
    lanes = list(dict.fromkeys(started.lanes))
    known: dict[str, Callable[[EnvState], float | None]] = {
        "env": NUMERIC_FIELDS["env"],
        "acc": NUMERIC_FIELDS["acc"],
        "reward": NUMERIC_FIELDS["reward"],
        "|g|": NUMERIC_FIELDS["grad"],
        "scale": NUMERIC_FIELDS["scale"],
        "lane": lambda env: lanes.index(env.lane),
    }
    if column in known:
        return known[column]
    slot = started.slots.index(column)
    return lambda env: _grown(env.stepped.slots[slot]) if env.stepped else None


def _grown(reading: SlotReading) -> float:
    return _STAGES_BY_PRIORITY[::-1].index(reading.stage) + (reading.alpha or 0.0) / 2


INACTIVE_LABEL = f"{MARK_SYMBOLS[MarkKind.ROLLBACK][0].glyph} out"
"""In place of the reward of an env that sits out the round."""


def draw_row(
    palette: Palette,
    layout: Layout,
    started: RunStarted,
    env: EnvState,
    *,
    severity: str | None,
    here: bool,
    pinned: bool,
) -> Line:
    """One env. `severity` is that of its worst anomaly, `here` says that the cursor is on it."""
    gap = " " * layout.gap
    step = env.stepped
    line = Line(palette, here=here).append("▸" if here else PIN_GLYPH if pinned else " ", "key")
    line.append(f"{env.env:02d}".rjust(layout.digits), "key" if pinned else "bright" if here else "dim")
    line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal")
    line.append_cell(percent_cell(step.accuracy if step else None), "bright" if here else None).append(gap)
    spread = sample_to_width(env.accuracy, min(started.steps, SERIES_POINTS), layout.spark)
    line.append(sparkline(spread, 0.0, 1.0), "spark").append(gap)
    reward = number_cell(step.reward if step else None, 2, 3, signed=True, fixed=True)
    if env.rolled_back:
        line.append(INACTIVE_LABEL.rjust(len(reward.text)), "error").append(gap)
    else:
        line.append_cell(reward).append(gap)
    for index in range(len(started.slots)):
        if step is None:
            line.append("–".ljust(layout.slot), "absent")
        else:
            slot = step.slots[index]
            line.extend(slot_cell(layout, slot.stage, slot.blueprint, slot.alpha))
        line.append(gap)
    line.append_cell(number_cell(step.grad_norm if step else None, 3, 2), "dim").append(gap)
    line.append_cell(scale_cell(step.loss_scale if step else None), "dim")
    return line.append(gap).append_fitted(strip_control(env.lane), layout.device, "dim") if layout.device else line


@lru_cache(1024)
def slot_cell(layout: Layout, stage: str, blueprint: str | None, alpha: float | None) -> StyledText:
    """Stage, blueprint, bar of alpha, alpha; an empty slot has none of the last three. Kept: only to be joined."""
    pieces = StyledText().append(STAGES[stage].glyph, stage)
    if blueprint is not None:
        role = "normal" if stage in _MOVING else "dim"
        pieces.append(" ")
        if layout.blueprint:
            pieces.append_fitted(strip_control(blueprint), layout.blueprint, role).append(" ")
        if layout.gauge:
            pieces.append_bar(alpha, layout.gauge, stage).append(" ")
        pieces.append_cell(number_cell(alpha, 1, layout.alpha - 2, fixed=True), role)
    return pieces.pad_to(layout.slot)


AGGREGATES: dict[str, Callable[[list[float]], float]] = {"med": median, "min": min, "max": max}
"""Rows below the envs, the most wanted first."""


def aggregate_rows(
    palette: Palette, layout: Layout, started: RunStarted, envs: Sequence[EnvState], names: Iterable[str]
) -> list[Line]:
    """By names in SUMMARIES: rows of the median, least or greatest over the envs of each number.

    That of the medians also says how many are at each stage.
    """
    steps = [env.stepped for env in envs if env.stepped is not None]
    numbers = (
        _finite([step.accuracy for step in steps]),
        _finite([step.reward for step in steps]),
        _finite([step.grad_norm for step in steps]),
        _finite([step.loss_scale for step in steps]),
    )
    stages = [Counter([step.slots[index].stage for step in steps]) for index in range(len(started.slots))]
    return [_summary(palette, layout, name, numbers, stages) for name in names]


def median_scale(scales: Sequence[float]) -> float:
    """The median of loss scales, between two of them the power of two whose exponent is half-way."""
    return math.sqrt(median_low(scales) * median_high(scales))


def _finite(values: Iterable[float | None]) -> list[float]:
    """The rows show the others."""
    return [value for value in values if value is not None and math.isfinite(value)]


def _summary(
    palette: Palette, layout: Layout, name: str, numbers: Iterable[list[float]], stages: Iterable[Counter[str]]
) -> Line:
    gap = " " * layout.gap
    *measured, scales = numbers
    accuracy, reward, grad_norm = (AGGREGATES[name](values) if values else None for values in measured)
    summary = median_scale if name == "med" else AGGREGATES[name]
    scale = summary(scales) if scales else None
    line = Line(palette).append_fitted(name.rjust(1 + layout.digits), 2 + layout.digits, "head")
    role = "bright" if name == "med" else "dim"
    line.append_cell(percent_cell(accuracy), role).append(gap)
    line.append(" " * layout.spark).append(gap)
    line.append_cell(number_cell(reward, 2, 3, signed=True, fixed=True), role).append(gap)
    for counts in stages:
        end = line.width + layout.slot
        if name == "med":
            _count_stages(line, counts, end)
        line.pad_to(end + layout.gap)
    line.append_cell(number_cell(grad_norm, 3, 2), "dim").append(gap)
    return line.append_cell(scale_cell(scale), "dim")


def _count_stages(line: Line, counts: Counter[str], end: int) -> None:
    """As many as fit; for those that do not a sign, which may stand in the gap behind."""
    texts = [(stage, f"{counts[stage]}{STAGES[stage].glyph}") for stage in _STAGES_BY_PRIORITY if counts[stage]]
    for index, (stage, text) in enumerate(texts):
        gap = " " * bool(index)
        if line.width + len(gap) + len(text) > end:
            line.append("…", "dim")
            return
        line.append(gap).append(text, stage)
