"""Columns of the env table: widths, sort values and cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from esper.common.domain import Stage
from esper.common.formatting import short_score_name, strip_control
from esper.common.plots.axis import finite_range
from esper.common.plots.sparkline import sample_to_width, sparkline
from esper.recordings.candidates.report import fit_name
from esper.recordings.events import RunStarted, SlotReading
from esper.recordings.history.timeline import MarkKind
from esper.recordings.state.state import SERIES_POINTS, EnvState
from esper.sanctum.env_filter import NUMERIC_FIELDS
from esper.sanctum.symbols import (
    MARK_SYMBOLS,
    SEVERITIES,
    STAGES,
    number_cell,
    return_cell,
    scale_cell,
    score_cell,
    score_heading,
    shorten_name,
    slot_labels,
)
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.panel import Line, StyledText

STAGES_BY_PRIORITY = tuple(
    stage.label
    for stage in (
        Stage.FOSSILIZED,
        Stage.PROBATIONARY,
        Stage.BLENDING,
        Stage.TRAINING,
        Stage.GERMINATED,
        Stage.CULLED,
        Stage.EMBARGOED,
        Stage.DORMANT,
    )
)
"""Labels of the stages, the most advanced first: order of the counts in a summary row, and of a sort by slot."""
PIN_GLYPH = "•"
"""Marks an env that is pinned to the top."""
INACTIVE_LABEL = f"{MARK_SYMBOLS[MarkKind.ROLLBACK][0].glyph} out"
"""Shown in place of the return of an inactive env."""
WORST_GLYPH = "▼"
"""Marks an env that is at the top because its score is among the lowest."""
STRUCTURE = "structure"
"""Name of the column with the structure of a family that an env has in this round."""
CANDIDATE = "candidate"
"""Name of the column with the candidate of a growth that an env trains."""
_MIN_CANDIDATE_COLS, _MAX_CANDIDATE_COLS = 12, 40
_CANDIDATE_SPARKLINE_COLS = 10
"""Width of the sparkline beyond which columns are for the candidate."""
IDLE_LABELS = {"pruned": "pruned", "ended": "ended", "failed": "failed", "broke down": "broke", "idle": "idle"}
"""Shown in place of the return of an env of a growth that no longer trains in the round, keyed by the reason."""
_LONG_LABEL_COLS = 7
"""Width of the first column from which "median" and a score of 100 % fit side by side."""
_NAMED_LAYOUTS = ((6, 4, 2), (0, 4, 2), (0, 4, 1), (0, 3, 1))
"""Widths of the bar of alpha, of alpha, and of the gap between columns, if names are whole; widest layout first."""
_SHORT_LAYOUTS = ((6, 0, 3, 1), (0, 0, 3, 2), (0, 0, 3, 1))
"""Widths of a blueprint's name, of the bar of alpha, of alpha, and of the gap between columns, without whole names."""
_BLUEPRINT_COLS, _MAX_BLUEPRINT_COLS = 10, 20
"""Width of most blueprints' names, and maximum width."""
_MIN_SPARKLINE_COLS, _MAX_SPARKLINE_COLS = 4, 60
_MAX_STRUCTURE_COLS = 12
"""Maximum width of the name of a structure."""
_UNDECIDED_STAGES = frozenset(stage.label for stage in (Stage.TRAINING, Stage.BLENDING, Stage.PROBATIONARY))
"""Stages of seeds that can still be fossilized or culled; their text is not dimmed."""


@dataclass(frozen=True)
class Layout:
    """Widths of the parts of the table, in columns of the terminal."""

    digits: int
    """Width of the env index."""
    label: int
    """Width of the first column: cursor, env index and anomaly."""
    sparkline: int = 0
    """Width of the score sparkline; 0 if it does not fit."""
    blueprint: int = 0
    """Width of a blueprint's name; 0 if it does not fit."""
    alpha_bar: int = 0
    """Width of the bar of alpha; 0 if it does not fit."""
    alpha: int = 3
    """Width of alpha: 4 for two decimals, 3 for one."""
    gap: int = 1
    """Space between columns."""
    grad_norm: int = 6
    """Width of the gradient norm; 0 if it does not fit."""
    loss_scale: int = 5
    """Width of the loss scale; 0 if it does not fit, and without loss scaling."""
    structure: int = 0
    """Width of the name of the env's structure; 0 if it does not fit, and for a task that is not a family."""
    lane: int = 0
    """Width of the lane's name; 0 if it does not fit, and if all envs are on one lane."""
    candidate: int = 0
    """Width of the candidate that an env of a growth trains; 0 if it does not fit, and for another run."""
    stages_only: bool = False
    """True if a slot shows its stage only, one character beside the next slot's, because there are many slots."""

    @property
    def slot_gap(self) -> int:
        """Space between slots."""
        return 0 if self.stages_only else self.gap

    @property
    def slot(self) -> int:
        """Width of a slot's cell: stage, blueprint, bar of alpha, alpha."""
        if self.stages_only:
            return 1
        name = self.blueprint + 1 if self.blueprint else 0
        bar = self.alpha_bar + 1 if self.alpha_bar else 0
        return 2 + name + bar + self.alpha


def choose_layout(width: int, started: RunStarted, blueprints: Iterable[str] = ()) -> Layout:
    """Return the widest layout that fits; the narrowest one if none fits.

    Args:
        width: Width of the table.
        started: Start event of the run.
        blueprints: Names of the blueprints of the run so far.
    """
    longest = min(max(map(len, blueprints), default=0), _MAX_BLUEPRINT_COLS)
    names = (max(longest, _BLUEPRINT_COLS), _BLUEPRINT_COLS)
    digits = max(len(str(len(started.lanes) - 1)), 2)
    narrowest = Layout(digits, digits + 2, loss_scale=5 if _has_loss_scales(started) else 0)
    lane = max(*map(len, started.lanes), 3) if _has_lanes(started) else 0
    structure = min(max((len(found.name) for found in started.structures), default=0), _MAX_STRUCTURE_COLS)
    if structure:
        structure = max(structure, len(STRUCTURE))
    further = ({"structure": structure, "lane": lane}, {"structure": structure}) if structure else ({"lane": lane},)
    named = [(name, *widths) for name in names for widths in _NAMED_LAYOUTS]
    wide, short = (
        [
            replace(narrowest, blueprint=name, alpha_bar=bar, alpha=alpha, gap=gap, **columns)
            for name, bar, alpha, gap in widths
            for columns in further
        ]
        for widths in (named, _SHORT_LAYOUTS)
    )
    layouts = [
        *wide,
        replace(narrowest, blueprint=_BLUEPRINT_COLS, structure=structure),  # a whole name says more than a lane
        *short,
        narrowest,
        replace(narrowest, loss_scale=0),
        replace(narrowest, loss_scale=0, grad_norm=0),
        *(replace(narrowest, stages_only=True, gap=gap, lane=lane) for gap in (2, 1)),
        replace(narrowest, stages_only=True),
        replace(narrowest, stages_only=True, loss_scale=0, grad_norm=0),
    ]
    num_slots = len(started.slot_names)
    layout = None
    if started.search is not None:
        named_slots = [layout for layout in layouts if not layout.stages_only]
        wanted = _CANDIDATE_SPARKLINE_COLS + _MIN_CANDIDATE_COLS + max(layout.gap for layout in layouts)
        layout = _first_that_fits(named_slots, num_slots, width - wanted)
    layout = layout or _first_that_fits(layouts, num_slots, width - _MIN_SPARKLINE_COLS) or layouts[-1]
    long_label = replace(layout, label=max(layout.label, _LONG_LABEL_COLS))
    if width - _fixed_width(long_label, num_slots) >= _MIN_SPARKLINE_COLS:
        layout = long_label
    spare = max(width - _fixed_width(layout, num_slots), 0)
    candidate = spare - _CANDIDATE_SPARKLINE_COLS - layout.gap
    if started.search is not None and candidate >= _MIN_CANDIDATE_COLS:
        layout = replace(layout, candidate=min(candidate, _MAX_CANDIDATE_COLS))
        spare -= layout.candidate + layout.gap
    return replace(layout, sparkline=min(spare, _MAX_SPARKLINE_COLS))


def _first_that_fits(layouts: Iterable[Layout], num_slots: int, width: int) -> Layout | None:
    """Return the first layout whose columns, without the sparkline, fit into a width; None if none does."""
    return next((layout for layout in layouts if _fixed_width(layout, num_slots) <= width), None)


def _fixed_width(layout: Layout, slots: int) -> int:
    """Return the width of a row without the sparkline, including a gap after each column but the first."""
    further = [layout.grad_norm, layout.loss_scale, layout.structure, layout.lane]
    slots_width = slots * layout.slot + (slots - 1) * layout.slot_gap
    num_gaps = 4 + sum(width > 0 for width in further)
    return layout.label + 5 + 6 + slots_width + sum(further) + num_gaps * layout.gap


def _has_loss_scales(started: RunStarted) -> bool:
    return started.growth_interval is not None


def _has_lanes(started: RunStarted) -> bool:
    return len(set(started.lanes)) > 1


def sortable_columns(started: RunStarted) -> list[str]:
    """Return the names of the sortable columns, from left to right."""
    names = ["env", "score", "return", *started.slot_names, "gradient norm"]
    further = (_has_loss_scales(started), bool(started.structures), _has_lanes(started))
    return names + [name for name, is_shown in zip(("loss scale", STRUCTURE, "lane"), further, strict=True) if is_shown]


def header_row(
    palette: Palette, layout: Layout, started: RunStarted, sort_column: str, arrow: str
) -> tuple[Line, list[tuple[range, str]]]:
    """Draw names and units of the columns, and an arrow at the sort column.

    Returns:
        The line, and for each column its range of terminal columns and its name.
    """
    score_name, scale, slots = started.score_name, started.score_scale, started.slot_names
    score, score_width = score_heading(score_name, scale), 5 + layout.gap + layout.sparkline
    if len(score) + (sort_column == "score") >= score_width + layout.gap:
        score = score_heading(short_score_name(score_name), scale)
    names = ["" for _ in slots] if layout.stages_only else slot_labels(slots, layout.slot + layout.gap - 1)
    columns = [("env", "env".rjust(1 + layout.digits), layout.label), ("score", score, score_width)]
    columns += [("return", "return", 6), *((slot, name, layout.slot) for slot, name in zip(slots, names, strict=True))]
    columns += [("gradient norm", "  |g|", layout.grad_norm), ("loss scale", "scale", layout.loss_scale)]
    columns += [(STRUCTURE, STRUCTURE, layout.structure), ("lane", "lane", layout.lane)]
    columns.append((CANDIDATE, CANDIDATE, layout.candidate))
    line = Line(palette)
    ranges: list[tuple[range, str]] = []
    start = 0
    for name, label, width in columns:
        if not width:
            continue
        if layout.stages_only and name in slots:  # one heading above all slots, with the slot that is sorted by
            if name == slots[0]:
                label = f"{strip_control(sort_column)}{arrow}" if sort_column in slots else "slots"
                role = "key" if sort_column in slots else "head"
                line.pad_to(start).append_fitted(label, min(len(label), len(slots)), role)
            end = start + 1
            ranges.append((range(start, end), name))
            start = end + layout.gap * (name == slots[-1])
            continue
        text = label + arrow if name == sort_column else label
        end, gap = start + width, 0 if name == "env" else layout.gap
        long_start = end - len(name) - (name == sort_column)
        if name == "gradient norm" and long_start > line.width:  # beside the short name of a slot
            start, text = long_start, text.replace(label, name)
            ranges[-1] = range(ranges[-1][0].start, start), ranges[-1][1]
        line.pad_to(start).append_fitted(
            text, min(len(text), end + gap - start), "key" if name == sort_column else "head"
        )
        if name != CANDIDATE:  # it has no sort order
            ranges.append((range(start, end + gap), name))
        start = end + gap
    return line, ranges


def sort_value(column: str, started: RunStarted) -> Callable[[EnvState], float | None]:
    """Return the sort key of a column. A slot is sorted by its stage, then by its alpha."""
    lanes = list(dict.fromkeys(started.lanes))
    structures = [structure.name for structure in started.structures]
    known: dict[str, Callable[[EnvState], float | None]] = {
        "env": NUMERIC_FIELDS["env"],
        "score": NUMERIC_FIELDS["score"],
        "return": NUMERIC_FIELDS["return"],
        "gradient norm": NUMERIC_FIELDS["grad"],
        "loss scale": NUMERIC_FIELDS["scale"],
        STRUCTURE: lambda env: structures.index(env.context.structure) if env.context else None,
        "lane": lambda env: lanes.index(env.lane),
    }
    if column in known:
        return known[column]
    slot = started.slot_names.index(column)
    return lambda env: _slot_sort_value(env.latest.slot(slot)) if env.latest else None


def _slot_sort_value(reading: SlotReading | None) -> float | None:
    return None if reading is None else STAGES_BY_PRIORITY[::-1].index(reading.stage) + (reading.alpha or 0.0) / 2


def draw_row(
    palette: Palette,
    layout: Layout,
    started: RunStarted,
    env: EnvState,
    *,
    severity: str | None,
    selected: bool,
    mark: str,
    trial: str | None = None,
    idle: str | None = None,
) -> Line:
    """Draw the row of an env. The values of its previous episode are dimmed.

    Args:
        palette: Styles of the theme.
        layout: Widths of the columns.
        started: Start event of the run.
        severity: Severity of the worst active anomaly of the env; None if it has none.
        selected: True if the cursor is on this row.
        mark: Reason for which the row is at the top: `PIN_GLYPH` or `WORST_GLYPH`; a space for none.
        trial: Candidate of a growth that the env trains; None without one.
        idle: Reason for which an env of a growth no longer trains in the round, as in `RunState.idle_reason`.
    """
    line = Line(palette, selected=selected).append("▸" if selected else mark, "key" if mark != WORST_GLYPH else "dim")
    index_role = "key" if mark == PIN_GLYPH else "bright" if selected else "dim"
    line.append(f"{env.env:02d}".rjust(layout.digits), index_role)
    line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal").pad_to(layout.label)
    values = _draw_values(layout, started, env, "bright" if selected else None, idle)
    line.extend(values if env.stepped else values.in_role("dim"))
    if layout.candidate:
        label = "–" if trial is None else fit_name(trial, layout.candidate)
        line.append(" " * layout.gap).append_fitted(label, layout.candidate, "dim" if idle else "normal")
    return line


def _draw_values(
    layout: Layout, started: RunStarted, env: EnvState, score_role: str | None, idle: str | None
) -> StyledText:
    """Draw the columns of a row after the first."""
    gap, step, scale = " " * layout.gap, env.latest, started.score_scale
    line = StyledText().append_cell(score_cell(step.score if step else None, scale), score_role).append(gap)
    samples = sample_to_width(env.scores, min(started.steps, SERIES_POINTS), layout.sparkline)
    low, high = (0.0, 1.0) if scale.is_percent else finite_range(env.scores) or (0.0, 1.0)
    line.append(sparkline(samples, low, high), "spark").append(gap)
    episode_return = return_cell(env.latest_return)
    if env.rolled_back:
        line.append(INACTIVE_LABEL.rjust(len(episode_return.text)), "error")
    elif idle is not None:
        role = "dim" if idle in {"pruned", "ended", "idle"} else "warning"
        line.append(IDLE_LABELS[idle].rjust(len(episode_return.text)), role)
    else:
        line.append_cell(episode_return)
    for index in range(len(started.slot_names)):
        line.append(gap[: layout.slot_gap] if index else gap)
        slot = step.slot(index) if step else None
        if slot is None:
            line.append("–".ljust(layout.slot), "absent")
        else:
            line.extend(slot_cell(layout, slot.stage, slot.blueprint, slot.alpha))
    if layout.grad_norm:
        line.append(gap).append_cell(number_cell(step.grad_norm if step else None, 3, 2), "dim")
    if layout.loss_scale:
        line.append(gap).append_cell(scale_cell(step.loss_scale if step else None), "dim")
    if layout.structure:
        name = strip_control(env.context.structure) if env.context else "–"
        line.append(gap).append_fitted(name, layout.structure, "dim")
    return line.append(gap).append_fitted(strip_control(env.lane), layout.lane, "dim") if layout.lane else line


@lru_cache(1024)
def slot_cell(layout: Layout, stage: str, blueprint: str | None, alpha: float | None) -> StyledText:
    """Draw stage, blueprint, bar of alpha and alpha; for an empty slot the stage only.

    The result is cached: callers may append it to a line, but not append to it.
    """
    text = StyledText().append(STAGES[stage].glyph, stage)
    if blueprint is not None and not layout.stages_only:
        role = "normal" if stage in _UNDECIDED_STAGES else "dim"
        text.append(" ")
        if layout.blueprint:
            name = shorten_name(strip_control(blueprint), layout.blueprint)
            text.append_fitted(name, layout.blueprint, role).append(" ")
        if layout.alpha_bar:
            text.append_bar(alpha, layout.alpha_bar, stage).append(" ")
        text.append_cell(number_cell(alpha, 1, layout.alpha - 2, fixed=True), role)
    return text.pad_to(layout.slot)
