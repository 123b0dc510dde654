"""Env heat map: one cell per env, coloured by a metric, so that an outlier stands out among hundreds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size
from textual.message import Message

from esper.common.formatting import NOT_MEASURED, ordinal, pluralise, strip_control
from esper.recordings.state.state import EnvState
from esper.sanctum.env_filter import NUMERIC_FIELDS
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.symbols import SEVERITIES, STAGES, Cell, compact_cell, score_heading
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.env_columns import STAGES_BY_PRIORITY
from esper.sanctum.widgets.env_grid import GROUPINGS, Grid, Grouping, choose_grid, group_envs
from esper.sanctum.widgets.panel import Line, Panel

OUTLIER_SIGMAS = 3.5
"""An env that is worse than the median by more robust standard deviations than this is an outlier."""
OUTLIER_GLYPH = "!"
"""Marks an outlier."""
_MAX_STAGE_GLYPHS = 6
"""Maximum number of slots for which a cell shows every stage; with more slots it shows the most advanced stage only."""
_GLYPHS = {name: stage.glyph for name, stage in STAGES.items()}
_MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


class Metric(NamedTuple):
    """Metric that can colour the cells."""

    name: str
    value: Callable[[EnvState], float | None]
    """Value of an env; None if not measured."""
    low_is_bad: bool
    format: Callable[[float | None], Cell] = compact_cell


def _percent_cell(fraction: float | None) -> Cell:
    if fraction is not None and 0 < fraction < math.inf:
        return Cell(f"{fraction * 100:.1f}")  # a third of the time of `percent_cell`, for each env in each frame
    return compact_cell(None if fraction is None else fraction * 100)


_SCORE = Metric("score %", NUMERIC_FIELDS["score"], True, _percent_cell)
METRICS = (
    _SCORE,
    Metric("reward", NUMERIC_FIELDS["reward"], True),
    Metric("return", NUMERIC_FIELDS["return"], True),
    Metric("loss", NUMERIC_FIELDS["loss"], False),
    Metric("gradient norm", NUMERIC_FIELDS["grad"], False),
    Metric("loss scale", NUMERIC_FIELDS["scale"], True),
    Metric("parameters", NUMERIC_FIELDS["params"], False),
)


class EnvStanding(NamedTuple):
    """Rank of an env among all envs by a metric."""

    value: float | None
    """Value of the metric; None if not measured."""
    rank: int | None
    """Number of envs that are worse; None if the metric was not measured."""
    num_finite: int
    """Number of envs with a finite value of the metric."""
    is_outlier: bool
    """True if the value is far worse than the median, or not finite."""

    @property
    def fifth(self) -> str:
        """Fifth of the envs that has this rank, from 1, the worst, to 5; a dash if the metric was not measured."""
        return NOT_MEASURED if self.rank is None else str(min(5 * self.rank // max(self.num_finite, 1), 4) + 1)

    @property
    def role(self) -> str:
        """Role of the env's cell."""
        return "outlier" if self.is_outlier else "absent" if self.rank is None else f"rank{self.fifth}"


def compute_standings(envs: Sequence[EnvState], metric: Metric) -> list[EnvStanding]:
    """Rank the envs by a metric, the worst first, and detect outliers.

    An outlier is worse than the median by more than `OUTLIER_SIGMAS` standard deviations, which are estimated from the
    median absolute deviation. Equal values have the same rank; a non-finite value has rank 0.
    """
    values = [metric.value(env) for env in envs]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    middle = median(finite) if finite else 0.0
    sigma = _MAD_TO_SIGMA * median(abs(value - middle) for value in finite) if finite else 0.0
    worst_first = sorted(finite, reverse=not metric.low_is_bad)
    ranks: dict[float, int] = {}
    for rank, value in enumerate(worst_first):
        ranks.setdefault(value, rank)
    standings: list[EnvStanding] = []
    for value in values:
        if value is None:
            standings.append(EnvStanding(value, None, len(finite), is_outlier=False))
        elif not math.isfinite(value):
            standings.append(EnvStanding(value, 0, len(finite), is_outlier=True))
        else:
            deficit = middle - value if metric.low_is_bad else value - middle
            # If all envs but one are equal, sigma is 0; the one is then an outlier however small its deficit is.
            is_outlier = deficit > OUTLIER_SIGMAS * sigma and deficit > 1e-9 * abs(middle)
            standings.append(EnvStanding(value, ranks[value], len(finite), is_outlier=is_outlier))
    return standings


def _describe_rank(standing: EnvStanding, metric: Metric) -> str:
    """Return the rank in words, `43rd lowest of 64`; empty if the value is not a finite number."""
    if standing.rank is None or standing.value is None or not math.isfinite(standing.value):
        return ""
    from_worst, from_best = standing.rank, standing.num_finite - 1 - standing.rank
    is_low = (from_worst <= from_best) == metric.low_is_bad
    distance = min(from_worst, from_best)
    place = f"{ordinal(distance + 1)} " if distance else ""
    return f"  {place}{'lowest' if is_low else 'highest'} of {standing.num_finite}"


class _CellContent(NamedTuple):
    """Content of a cell."""

    env: EnvState
    value: str
    """Value of the metric."""
    fifth: str
    """Fifth of the rank; blank if the filter excludes the env."""
    role: str
    mark: tuple[str, str] | None
    """Glyph and role of an outlier or anomaly."""


class EnvMap(Panel, can_focus=True):
    """Grid of cells in the colour of the env's rank by the selected metric.

    A cell has the env index, one glyph per slot's stage, a mark for outliers and anomalies, and the value if it fits;
    otherwise the fifth of the rank, 1 to 5. If such cells do not fit, a cell has only the mark or the fifth, and the
    most advanced stage if that fits. Envs that do not pass the filter are not coloured.
    """

    BINDINGS = bindings(KeyCategory.MAP)
    METRICS = ("score", "stage")

    class Regrouped(Message):
        """The cells are grouped in another way, and may need another height."""

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._metric_index = 0
        self.grouping: Grouping | None = None
        """Grouping of the cells; None for the order of the envs."""
        self._cell_parts = 2, 1
        """Number of digits and of stage glyphs of a cell."""
        self._grid = Grid([], 0, 1, 1, has_indices=False)
        self._top = 0
        """First visible row of the grid."""

    def cache_key(self) -> Hashable:
        """Return the event number, the selected env, the filter, the metric and the grouping."""
        return self.state.seq, self.view.selected_env, self.view.env_filter, self._metric_index, self.grouping

    def wanted_height(self, width: int, limit: int) -> int:
        """Return the height of all cells and of the legend, at most `limit`, in a panel of `width` columns."""
        if self.state.started is None:
            return limit
        return min(self._choose_grid(width, limit - 2).height() + 2, limit)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the visible cells, and a line about the selected env and the colours."""
        envs = self.state.envs
        if self.state.started is None:
            return []
        metric = self._metric
        standings = compute_standings(envs, metric)
        room = max(size.height - 2, 1)
        grid = self._grid = self._choose_grid(size.width, room)
        self._top = grid.first_row(self._top, self.view.selected_env, room)
        self._write_titles(standings, metric)
        severities = self.view.severity_by_env()
        shown = self.view.env_filter.matching(self.state, severities) if self.view.env_filter else range(len(envs))
        self.view.env_order = [env for row in grid.rows for env in row.envs if env in shown]
        lines: list[Line] = []
        for row in grid.rows[self._top :]:
            if len(lines) >= room:
                break
            block = [self.line(row.label, "head")]
            if row.envs:
                block += [self.line() for _ in range(grid.cell_height - 1)]
                for line in block:
                    line.pad_to(grid.label_width)
            for index in row.envs:
                standing, is_shown = standings[index], index in shown
                cell = _CellContent(
                    envs[index],
                    metric.format(standing.value).text if grid.has_indices else "",
                    standing.fifth if is_shown else " ",
                    standing.role if is_shown else "absent",
                    _mark(standing, severities.get(index)) if is_shown else None,
                )
                if not grid.has_indices:
                    self._draw_dense_cell(block[0], cell)
                elif grid.cell_height == 1:
                    self._draw_cell(block[0], cell)
                else:
                    self._draw_high_cell(block, cell)
            lines += block
        lines = lines[: size.height - 1]
        lines += [self.line()] * (size.height - 1 - len(lines))
        return [*lines, self._draw_legend(standings, metric)]

    def _choose_grid(self, width: int, room: int) -> Grid:
        """Return the grid with the largest cells that fit into a panel."""
        assert self.state.started is not None
        num_slots, digits = len(self.state.started.slot_names), max(len(str(len(self.state.envs) - 1)), 2)
        num_glyphs = num_slots if num_slots <= _MAX_STAGE_GLYPHS else 1
        self._cell_parts = digits, num_glyphs
        return choose_grid(group_envs(self.state.envs, self.grouping), width, room, digits, digits + num_glyphs + 4)

    def _name_of(self, metric: Metric) -> str:
        """Return the name of a metric, with that of the task's score in place of "score"."""
        return metric.name.replace("score", strip_control(self.state.score_name))

    def _write_titles(self, standings: Sequence[EnvStanding], metric: Metric) -> None:
        self.panel_title = (
            f"env heat map ─ percentile of {self._name_of(metric)}, {'low' if metric.low_is_bad else 'high'} is bad"
        )
        if self.grouping:
            self.panel_title += f" ─ grouped by {self.grouping.name}"
        if self.view.env_filter:
            self.panel_title += f" ─ filter {self.view.env_filter.text}"
        num_outliers = sum(standing.is_outlier for standing in standings)
        self.panel_subtitle = f"{pluralise(num_outliers, 'outlier')} of {len(standings)}"

    def _cell_head(self, env: EnvState) -> str:
        """Return the index of an env and the stages of its slots, after a blank."""
        digits, num_glyphs = self._cell_parts
        slots = env.latest.slots if env.latest else ()
        glyphs = "".join([_GLYPHS[slot.stage] for slot in slots]) if len(slots) <= num_glyphs else _top_glyph(env)
        return f" {env.env:0{digits}d} {glyphs:<{num_glyphs}}"

    def _draw_cell(self, line: Line, cell: _CellContent) -> None:
        """Append a cell of one line, filled in the colour of the rank."""
        env, value, fifth, role, mark = cell
        head = self._cell_head(env)
        rest = self._grid.cell_width - len(head) - 1
        tail = (value if len(value) < rest else fifth).ljust(rest)
        if env.env == self.view.selected_env:
            line.append("▸", "key")
            head = head[1:]
        if mark:
            line.append(head, role).append(*mark).append(tail, role)
        else:
            line.append(f"{head} {tail}", role)

    def _draw_high_cell(self, lines: Sequence[Line], cell: _CellContent) -> None:
        """Append the lines of a cell, filled in the colour of the rank except for a gap at the left and below."""
        env, value, _, role, mark = cell
        head, width = self._cell_head(env)[1:], self._grid.cell_width - 1
        start = ("▸", "key") if env.env == self.view.selected_env else (" ", "normal")
        lines[0].append(*start).append(head, role).append(*mark or (" ", role)).append(
            " " * (width - len(head) - 1), role
        )
        text = f"{'':{self._cell_parts[0] + 1}}{value}"
        for line in lines[1:-1]:
            line.append(*start).append(text.ljust(width), role)
            text = ""
        lines[-1].append(" " * (width + 1))

    def _draw_dense_cell(self, line: Line, cell: _CellContent) -> None:
        """Append a cell without the index of its env: the cursor, mark or fifth, and the most advanced stage."""
        env, _, fifth, role, mark = cell
        line.append(*("▸", "key") if env.env == self.view.selected_env else mark or (fifth, role))
        line.append(f"{_top_glyph(env)} "[: self._grid.cell_width - 1], role)

    def _draw_legend(self, standings: Sequence[EnvStanding], metric: Metric) -> Line:
        """Draw value and rank of the selected env, and the scale of colours."""
        env = self.state.envs[self.view.selected_env]
        standing = standings[env.env]
        value = metric.format(standing.value)
        line = self.line(f" env {env.env:02d} {self._name_of(metric)} ", "dim").append_cell(value, "bright")
        if standing.is_outlier:
            line.append(f"  {OUTLIER_GLYPH} outlier", "warning")
        scale = self.line("worst ", "dim")
        for fifth in range(1, 6):
            scale.append(f" {fifth} ", f"rank{fifth}")
        scale.append(" best", "dim")
        rank = _describe_rank(standing, metric)
        room = self.size.width - line.width - scale.width - 3
        if room >= 0:
            line.append(rank if len(rank) <= room else "", "dim")
            line.pad_to(self.size.width - scale.width - 1).extend(scale)
        return line

    @property
    def _metric(self) -> Metric:
        """The metric that colours the cells."""
        metric, scale = METRICS[self._metric_index], self.state.score_scale
        if metric is not _SCORE or scale.is_plain:
            return metric
        format_score = _percent_cell if scale.is_percent else compact_cell
        return metric._replace(name=score_heading("score", scale), low_is_bad=scale.best == "high", format=format_score)

    def action_move_selection(self, columns: int, rows: int) -> None:
        """Move the cursor over the map."""
        self.view.selected_env = self._grid.next_env(self.view.selected_env, columns, rows)
        self.update()

    def action_metric(self) -> None:
        """Colour the cells by the next metric."""
        self._metric_index = (self._metric_index + 1) % len(METRICS)
        self.update()

    def action_group(self) -> None:
        """Group the cells by the next property, or no longer."""
        is_family = self.state.started is not None and bool(self.state.started.structures)
        choices = [None, *(grouping for grouping in GROUPINGS if is_family or not grouping.is_for_families)]
        place = choices.index(self.grouping) if self.grouping in choices else 0
        self.grouping = choices[(place + 1) % len(choices)]
        self.post_message(self.Regrouped())
        self.update()

    def on_click(self, event: Click) -> None:
        """Select the clicked env; open it on a double click."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y >= self.size.height - 1:
            return
        env = self._grid.env_at(offset.x, offset.y, self._top)
        if env is not None:
            self.view.selected_env = env
            self.update()
            if event.chain == 2:
                self.app.simulate_key("enter")


def _top_glyph(env: EnvState) -> str:
    """Return the glyph of the most advanced stage; a dash before the first step."""
    slots = env.latest.slots if env.latest else ()
    return _GLYPHS[min((slot.stage for slot in slots), key=STAGES_BY_PRIORITY.index)] if slots else NOT_MEASURED


def _mark(standing: EnvStanding, severity: str | None) -> tuple[str, str] | None:
    """Return glyph and role of an outlier or anomaly; None for neither."""
    if standing.is_outlier:
        return OUTLIER_GLYPH, "outlier"
    return (SEVERITIES[severity].glyph, severity) if severity else None
