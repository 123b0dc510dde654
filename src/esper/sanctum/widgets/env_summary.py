"""Summary rows below the envs of the table: medians by structure of a family, else median, minimum and maximum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median, median_high, median_low

from esper.common.formatting import strip_control
from esper.recordings.events import RunStarted
from esper.recordings.state.state import EnvState
from esper.sanctum.symbols import STAGES, number_cell, return_cell, scale_cell, score_cell
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.env_columns import STAGES_BY_PRIORITY, Layout
from esper.sanctum.widgets.panel import Line

AGGREGATES: dict[str, Callable[[list[float]], float]] = {"median": median, "min": min, "max": max}
"""Functions of the summary rows below the envs, the most important first. Keyed by row label."""


def summary_labels(started: RunStarted, limit: int) -> list[str]:
    """Return the labels of the summary rows: medians of the structures of a family, because a median over hosts and
    data that differ means little; else the keys of `AGGREGATES`.

    Args:
        started: Start event of the run.
        limit: Maximum number of rows. A family with more structures has a median of all envs.
    """
    structures = [structure.name for structure in started.structures]
    return structures if 0 < len(structures) <= limit else list(AGGREGATES)[:limit]


def aggregate_rows(
    palette: Palette, layout: Layout, started: RunStarted, envs: Sequence[EnvState], labels: Iterable[str]
) -> list[Line]:
    """Draw summary rows: median, minimum or maximum over the envs of each number, ignoring non-finite values.

    A row of medians also shows how many envs have a slot in each stage, or the commonest stage. Until an env has
    stepped in this round, the rows are about the last step of the previous one.

    Args:
        palette: Styles of the theme.
        layout: Widths of the columns.
        started: Start event of the run.
        envs: The envs of the table.
        labels: Result of `summary_labels`.
    """
    return [
        _aggregate_row(palette, layout, started, envs, label)
        if label in AGGREGATES
        else _aggregate_row(palette, layout, started, _of_structure(envs, label), "median", label)
        for label in labels
    ]


def _aggregate_row(
    palette: Palette, layout: Layout, started: RunStarted, envs: Sequence[EnvState], name: str, structure: str = ""
) -> Line:
    shown = [env for env in envs if env.stepped] or [env for env in envs if env.previous]
    steps = [env.latest for env in shown if env.latest]
    aggregate = AGGREGATES[name]
    score = _aggregate(aggregate, [step.score for step in steps])
    episode_return = _aggregate(aggregate, [env.latest_return for env in shown])
    grad_norm = _aggregate(aggregate, [step.grad_norm for step in steps])
    scale = _aggregate(median_scale if name == "median" else aggregate, [step.loss_scale for step in steps])
    gap = " " * layout.gap
    label = name if len(name) < layout.label else name[:3]
    if structure and not layout.structure:
        label = strip_control(structure)
    line = Line(palette).append_fitted(label, layout.label, "head")
    role = "bright" if name == "median" else "dim"
    line.append_cell(score_cell(score, started.score_scale), role).append(gap)
    line.append(" " * layout.sparkline).append(gap)
    line.append_cell(return_cell(episode_return), role).append(gap)
    for index in range(len(started.slot_names)):
        counts = Counter(slot.stage for step in steps if (slot := step.slot(index)))
        end = line.width + layout.slot
        if name == "median" and layout.stages_only and counts:
            commonest = counts.most_common(1)[0][0]
            line.append(STAGES[commonest].glyph, commonest)
        elif name == "median":
            _append_stage_counts(line, counts, end)
        line.pad_to(end + layout.slot_gap)
    if layout.stages_only:
        line.append(gap)
    if layout.grad_norm:
        line.append_cell(number_cell(grad_norm, 3, 2), "dim").append(gap)
    if layout.loss_scale:
        line.append_cell(scale_cell(scale), "dim")
    if layout.structure and structure:
        line.append(gap).append_fitted(strip_control(structure), layout.structure, "head")
    return line


def _of_structure(envs: Sequence[EnvState], structure: str) -> list[EnvState]:
    return [env for env in envs if env.context and env.context.structure == structure]


def median_scale(scales: Sequence[float]) -> float:
    """Return the median loss scale. For an even number of scales it is the geometric mean of the middle two."""
    return math.sqrt(median_low(scales) * median_high(scales))


def _aggregate(function: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """Return the value of a function of the finite values; None if there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return function(finite) if finite else None


def _append_stage_counts(line: Line, counts: Counter[str], end: int) -> None:
    """Append the counts that fit before column `end`, and an ellipsis for the rest, which may be in the next gap."""
    texts = [(stage, f"{counts[stage]}{STAGES[stage].glyph}") for stage in STAGES_BY_PRIORITY if counts[stage]]
    for index, (stage, text) in enumerate(texts):
        gap = " " * bool(index)
        if line.width + len(gap) + len(text) > end:
            line.append("…", "dim")
            return
        line.append(gap).append(text, stage)
