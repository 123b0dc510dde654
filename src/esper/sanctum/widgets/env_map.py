"""Env heat map: one cell per env, coloured by a metric, so that an outlier stands out among hundreds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.env_filter import NUMERIC_FIELDS
from esper.sanctum.symbols import SEVERITIES, STAGES, Cell, compact_cell
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.env_columns import STAGES_BY_PRIORITY
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.sentences import pluralise
from esper.telemetry.state import EnvState

OUTLIER_SIGMAS = 3.5
"""An env that is worse than the median by more robust standard deviations than this is an outlier."""
OUTLIER_GLYPH = "!"
"""Marks an outlier."""
_MAX_STAGE_GLYPHS = 6
"""Maximum number of slots for which a cell shows every stage; with more slots it shows the most advanced stage only."""
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
    return compact_cell(None if fraction is None else fraction * 100)


METRICS = (
    Metric("score %", NUMERIC_FIELDS["score"], True, _percent_cell),
    Metric("reward", NUMERIC_FIELDS["reward"], True),
    Metric("return", NUMERIC_FIELDS["return"], True),
    Metric("loss", NUMERIC_FIELDS["loss"], False),
    Metric("gradient norm", NUMERIC_FIELDS["grad"], False),
    Metric("loss scale", NUMERIC_FIELDS["scale"], True),
    Metric("parameters", NUMERIC_FIELDS["params"], False),
)


class EnvStanding(NamedTuple):
    """Rank of an env among all envs by a metric."""

    rank: int | None
    """Number of envs that are worse; None if the metric was not measured."""
    num_finite: int
    """Number of envs with a finite value of the metric."""
    is_outlier: bool
    """True if the value is far worse than the median, or not finite."""

    @property
    def role(self) -> str:
        """Role of the env's cell."""
        if self.is_outlier:
            return "outlier"
        if self.rank is None:
            return "absent"
        return f"rank{min(5 * self.rank // max(self.num_finite, 1), 4)}"


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
    ranks = {value: rank for rank, value in reversed(list(enumerate(worst_first)))}
    standings: list[EnvStanding] = []
    for value in values:
        if value is None:
            standings.append(EnvStanding(None, len(finite), is_outlier=False))
        elif not math.isfinite(value):
            standings.append(EnvStanding(0, len(finite), is_outlier=True))
        else:
            deficit = middle - value if metric.low_is_bad else value - middle
            # If all envs but one are equal, sigma is 0; the one is then an outlier however small its deficit is.
            is_outlier = deficit > OUTLIER_SIGMAS * sigma and deficit > 1e-9 * abs(middle)
            standings.append(EnvStanding(ranks[value], len(finite), is_outlier=is_outlier))
    return standings


class EnvMap(Panel, can_focus=True):
    """Grid of cells: env index, one glyph per slot's stage, a mark for outliers and anomalies.

    The colour of a cell is the env's rank in the selected metric. The values are shown below the cells if they fit. If
    the cells do not fit, a cell is one glyph, and the index of the first env stands before each row. Envs that do not
    pass the filter are dimmed.
    """

    BINDINGS = bindings(KeyCategory.MAP)
    METRICS = ("score", "stage")

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._metric_index = 0
        self._num_columns = 1
        """Cells per row."""
        self._cell_width = 1
        self._label_width = 0
        """Columns before the first cell of a row."""
        self._row_height = 1
        """Lines per row of cells: 1, or 3 with values and an empty line."""
        self._top = 0
        """First visible row of cells."""

    def cache_key(self) -> Hashable:
        """Return the event number, the selected env, the filter and the metric."""
        return self.state.seq, self.view.selected_env, self.view.env_filter, self._metric_index

    def wanted_height(self, width: int, limit: int) -> int:
        """Return the height of all cells and of the legend, at most `limit`, in a panel of `width` columns."""
        if self.state.started is None:
            return limit
        self._choose_grid(width, limit - 2)
        return min(-(-len(self.state.envs) // self._num_columns) * self._row_height + 2, limit)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the visible cells, and a line about the selected env and the colours."""
        started, envs = self.state.started, self.state.envs
        if started is None:
            return []
        metric = METRICS[self._metric_index]
        standings = compute_standings(envs, metric)
        room = max(size.height - 2, 1)
        is_dense = self._choose_grid(size.width, room)
        digits, num_glyphs = self._cell_parts()
        rows = -(-len(envs) // self._num_columns)
        room //= self._row_height
        selected_row = self.view.selected_env // self._num_columns
        self._top = min(max(self._top, selected_row - room + 1), selected_row, max(rows - room, 0))
        self._write_titles(standings, metric)
        severities = self.view.severity_by_env()
        shown = self.view.env_filter.matching(self.state, severities) if self.view.env_filter else range(len(envs))
        lines: list[Line] = []
        for row in range(self._top, min(self._top + room, rows)):
            line, first = self.line(), row * self._num_columns
            if is_dense:
                line.append(f"{first:0{digits}d}", "dim").pad_to(self._label_width)
            for env in envs[first : first + self._num_columns]:
                standing, severity = standings[env.env], severities.get(env.env)
                role = standing.role if env.env in shown else "absent"
                if is_dense:
                    line.extend(self._draw_glyph(env, standing, severity, role))
                else:
                    line.extend(self._draw_cell(env, standing, digits, num_glyphs, severity, role))
            lines.append(line)
            if self._row_height > 1:
                lines += [self._draw_values(row, metric, digits), self.line()]
        lines += [self.line()] * (size.height - 1 - len(lines))
        return [*lines, self._draw_legend(standings, metric)]

    def _cell_parts(self) -> tuple[int, int]:
        """Return the number of digits and of stage glyphs of a cell."""
        assert self.state.started is not None
        num_slots = len(self.state.started.slot_names)
        return max(len(str(len(self.state.envs) - 1)), 2), num_slots if num_slots <= _MAX_STAGE_GLYPHS else 1

    def _choose_grid(self, width: int, room: int) -> bool:
        """Choose the size of the cells so that they fit into `room` rows if possible.

        Returns:
            True if a cell is only one glyph.
        """
        count, (digits, num_glyphs) = len(self.state.envs), self._cell_parts()
        self._cell_width, self._label_width = digits + num_glyphs + 4, 0
        self._num_columns = max(width // self._cell_width, 1)
        rows = -(-count // self._num_columns)
        self._row_height = 3 if 3 * rows <= room else 1
        if rows <= room:
            return False
        self._label_width = digits + 2
        for self._cell_width in (2, 1):
            columns = max((width - self._label_width) // self._cell_width, 1)
            self._num_columns = columns // 10 * 10 or columns  # multiples of ten make the labels round
            if count <= self._num_columns * room:
                break
        return True

    def _name_of(self, metric: Metric) -> str:
        """Return the name of a metric, with that of the task's score in place of "score"."""
        return metric.name.replace("score", strip_control(self.state.score_name))

    def _write_titles(self, standings: Sequence[EnvStanding], metric: Metric) -> None:
        self.panel_title = (
            f"env heat map ─ percentile of {self._name_of(metric)}, {'low' if metric.low_is_bad else 'high'} is bad"
        )
        if self.view.env_filter:
            self.panel_title += f" ─ filter {self.view.env_filter.text}"
        num_outliers = sum(standing.is_outlier for standing in standings)
        self.panel_subtitle = f"{pluralise(num_outliers, 'outlier')} of {len(standings)}"

    def _draw_cell(
        self, env: EnvState, standing: EnvStanding, digits: int, num_glyphs: int, severity: str | None, role: str
    ) -> Line:
        selected = env.env == self.view.selected_env
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append(f"{env.env:0{digits}d}", role).append(" ")
        stages = [slot.stage for slot in env.latest.slots] if env.latest else []
        if num_glyphs < len(stages):
            stages = [min(stages, key=STAGES_BY_PRIORITY.index)]
        line.append("".join(STAGES[stage].glyph for stage in stages).ljust(num_glyphs), role)
        return line.append(*_mark(standing, severity) or (" ", "normal")).append(" ")

    def _draw_glyph(self, env: EnvState, standing: EnvStanding, severity: str | None, role: str) -> Line:
        """Draw a cell of one glyph: the mark, or the most advanced stage."""
        line, selected = self.line(), env.env == self.view.selected_env
        if selected or self._cell_width > 1:
            line.append("▸" if selected else " ", "key")
        if selected and self._cell_width == 1:
            return line
        stages = [slot.stage for slot in env.latest.slots] if env.latest else []
        stage = STAGES[min(stages, key=STAGES_BY_PRIORITY.index)].glyph if stages else "–"
        mark = _mark(standing, severity) if role != "absent" else None
        return line.append(*mark or (stage, role))

    def _draw_values(self, row: int, metric: Metric, digits: int) -> Line:
        """Draw the values below a row of cells."""
        line = self.line()
        for column, env in enumerate(self.state.envs[row * self._num_columns : (row + 1) * self._num_columns]):
            line.pad_to(column * self._cell_width + digits + 2).append_cell(metric.format(metric.value(env)), "dim")
        return line

    def _draw_legend(self, standings: Sequence[EnvStanding], metric: Metric) -> Line:
        """Draw value and rank of the selected env, and the scale of colours."""
        env = self.state.envs[self.view.selected_env]
        standing = standings[env.env]
        value = metric.format(metric.value(env))
        line = self.line(f" env {env.env:02d} {self._name_of(metric)} ", "dim").append_cell(value, "bright")
        if standing.is_outlier:
            line.append(f"  {OUTLIER_GLYPH} outlier", "warning")
        scale = self.line("worst ", "dim")
        for rank in range(5):
            scale.append("██", f"rank{rank}")
        scale.append(" best", "dim")
        rank = "" if standing.rank is None else f"  rank {standing.rank + 1} of {standing.num_finite}, 1 is worst"
        room = self.size.width - line.width - scale.width - 3
        if room >= 0:
            line.append(rank if len(rank) <= room else "", "dim")
            line.pad_to(self.size.width - scale.width - 1).extend(scale)
        return line

    def action_move_selection(self, columns: int, rows: int) -> None:
        """Move the cursor over the map."""
        env = self.view.selected_env + columns + rows * self._num_columns
        if 0 <= env < len(self.state.envs):
            self.view.selected_env = env
        self.update()

    def action_metric(self) -> None:
        """Colour the cells by the next metric."""
        self._metric_index = (self._metric_index + 1) % len(METRICS)
        self.update()

    def on_click(self, event: Click) -> None:
        """Select the clicked env; open it on a double click."""
        offset = event.get_content_offset(self)
        if offset is None or not offset.y < self.size.height - 1:
            return
        column = (offset.x - self._label_width) // self._cell_width
        if not 0 <= column < self._num_columns:
            return
        env = (self._top + offset.y // self._row_height) * self._num_columns + column
        if env < len(self.state.envs):
            self.view.selected_env = env
            self.update()
            if event.chain == 2:
                self.app.simulate_key("enter")


def _mark(standing: EnvStanding, severity: str | None) -> tuple[str, str] | None:
    """Return glyph and role of an outlier or anomaly; None for neither."""
    if standing.is_outlier:
        return OUTLIER_GLYPH, "outlier"
    return (SEVERITIES[severity].glyph, severity) if severity else None
