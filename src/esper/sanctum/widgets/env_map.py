"""Env heat map: one cell per env, coloured by a metric, so that an outlier stands out among hundreds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import NamedTuple

from textual.events import Click
from textual.geometry import Size

from esper.formatting import ordinal, strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.env_filter import NUMERIC_FIELDS
from esper.sanctum.symbols import SEVERITIES, STAGES, Cell, compact_cell
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.env_columns import STAGES_BY_PRIORITY
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.sentences import describe_context, pluralise
from esper.telemetry.state import EnvState

OUTLIER_SIGMAS = 3.5
"""An env that is worse than the median by more robust standard deviations than this is an outlier."""
OUTLIER_GLYPH = "!"
"""Marks an outlier."""
_MAX_STAGE_GLYPHS = 6
"""Maximum number of slots for which a cell shows every stage; with more slots it shows the most advanced stage only."""
_MAX_CELL_COLS, _MAX_CELL_ROWS = 24, 6
"""Maximum size of a cell, with the gaps to its neighbours."""
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


def _describe_rank(standing: EnvStanding, metric: Metric, value: float | None) -> str:
    """Return the rank of a value in words, `43rd lowest of 64`; empty if the value is not a finite number."""
    if standing.rank is None or value is None or not math.isfinite(value):
        return ""
    place = f"{ordinal(standing.rank + 1)} " if standing.rank else ""
    return f"  {place}{'lowest' if metric.low_is_bad else 'highest'} of {standing.num_finite}"


def _stage_group(env: EnvState) -> str:
    stages = [slot.stage for slot in env.latest.slots] if env.latest else []
    return min(stages, key=STAGES_BY_PRIORITY.index) if stages else "no step yet"


def _blueprint_group(env: EnvState) -> str:
    names = sorted({slot.blueprint for slot in env.latest.slots if slot.blueprint}) if env.latest else []
    return strip_control(" + ".join(names)) or "no seed"


def _structure_group(env: EnvState) -> str:
    return strip_control(env.context.structure) if env.context else "no context"


def _context_group(env: EnvState) -> str:
    return strip_control(describe_context(env.context)) if env.context else "no context"


GROUPINGS: dict[str, Callable[[EnvState], str]] = {
    "": lambda _: "",
    "stage": _stage_group,
    "blueprints": _blueprint_group,
    "structure": _structure_group,
    "context": _context_group,
}
"""Name of an env's group by each grouping; the first is none. The last two are for a family of hosts."""
_NUM_FAMILY_GROUPINGS = 2


class _Grid(NamedTuple):
    """Places of the cells."""

    rows: Sequence[str | Sequence[int]]
    """Rows of cells as indices of envs, and names of groups above the rows of each."""
    columns: int
    """Maximum number of cells per row."""
    cell_width: int
    cell_height: int
    """Lines per row of cells; in more than two, the last one separates the rows."""
    label_width: int
    """Columns before the first cell of a row."""
    is_dense: bool
    """True if a cell is only one glyph."""

    @property
    def height(self) -> int:
        """Number of lines of all rows."""
        return sum(1 if isinstance(row, str) else self.cell_height for row in self.rows)


class EnvMap(Panel, can_focus=True):
    """Grid of cells in the colour of the env's rank by the selected metric.

    A cell has the env index, one glyph per slot's stage, a mark for outliers and anomalies, and the value if it fits.
    If such cells do not fit, a cell is one glyph, and the index of the first env stands before each row. Envs that do
    not pass the filter are not coloured.
    """

    BINDINGS = bindings(KeyCategory.MAP)
    METRICS = ("score", "stage")

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._metric_index = 0
        self._grouping = ""
        """Key of `GROUPINGS`."""
        self._grid = _Grid([], 1, 1, 1, 0, is_dense=False)
        self._top = 0
        """First visible row of the grid."""

    def cache_key(self) -> Hashable:
        """Return the event number, the selected env, the filter, the metric and the grouping."""
        return self.state.seq, self.view.selected_env, self.view.env_filter, self._metric_index, self._grouping

    def wanted_height(self, width: int, limit: int) -> int:
        """Return the height of all cells and of the legend, at most `limit`, in a panel of `width` columns."""
        if self.state.started is None:
            return limit
        return min(self._choose_grid(width, limit - 2).height + 2, limit)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the visible cells, and a line about the selected env and the colours."""
        envs = self.state.envs
        if self.state.started is None:
            return []
        metric = METRICS[self._metric_index]
        standings = compute_standings(envs, metric)
        grid = self._grid = self._choose_grid(size.width, max(size.height - 2, 1))
        self._write_titles(standings, metric)
        severities = self.view.severity_by_env()
        shown = self.view.env_filter.matching(self.state, severities) if self.view.env_filter else range(len(envs))
        lines: list[Line] = []
        for row in grid.rows[self._first_row(max(size.height - 2, 1)) :]:
            if isinstance(row, str):
                lines.append(self.line(f" {row}", "head"))
                continue
            block = [self.line() for _ in range(grid.cell_height)]
            if grid.is_dense:
                block[0].append(f"{row[0]:0{grid.label_width - 2}d}", "dim").pad_to(grid.label_width)
            for index in row:
                standing, severity = standings[index], severities.get(index)
                role = standing.role if index in shown else "absent"
                self._draw_cell(block, envs[index], standing, severity, role, metric)
            lines += block
        lines = lines[: size.height - 1]
        lines += [self.line()] * (size.height - 1 - len(lines))
        return [*lines, self._draw_legend(standings, metric)]

    def _first_row(self, room: int) -> int:
        """Return the first visible row of the grid, so that the row of the selected env is visible."""
        rows, selected = self._grid.rows, self._row_of(self.view.selected_env)

        def height(first: int, last: int) -> int:
            return _Grid(rows[first : last + 1], *self._grid[1:]).height

        self._top = min(self._top, selected)
        while self._top < selected and height(self._top, selected) > room:
            self._top += 1
        while self._top > 0 and height(self._top - 1, len(rows) - 1) <= room:
            self._top -= 1
        return self._top

    def _row_of(self, env: int) -> int:
        """Return the row of the grid that has an env."""
        return next(
            (number for number, row in enumerate(self._grid.rows) if not isinstance(row, str) and env in row), 0
        )

    def _groups(self) -> dict[str, list[int]]:
        """Return the indices of the envs of each group, the groups by name."""
        group_of = GROUPINGS[self._grouping]
        groups: dict[str, list[int]] = {}
        for env in self.state.envs:
            groups.setdefault(group_of(env), []).append(env.env)
        if self._grouping == "stage":
            return dict(sorted(groups.items(), key=lambda item: ("no step yet", *STAGES_BY_PRIORITY).index(item[0])))
        return dict(sorted(groups.items()))

    def _cell_parts(self) -> tuple[int, int]:
        """Return the number of digits and of stage glyphs of a cell."""
        assert self.state.started is not None
        num_slots = len(self.state.started.slot_names)
        return max(len(str(len(self.state.envs) - 1)), 2), num_slots if num_slots <= _MAX_STAGE_GLYPHS else 1

    def _choose_grid(self, width: int, room: int) -> _Grid:
        """Return the grid with the largest cells that fit into `room` lines; with the smallest ones if none fits."""
        groups, (digits, num_glyphs) = self._groups(), self._cell_parts()

        def grid(columns: int, cell_width: int, cell_height: int, label_width: int = 0) -> _Grid:
            rows: list[str | Sequence[int]] = []
            for name, envs in groups.items():
                if name:
                    rows.append(f"{name}: {pluralise(len(envs), 'env')}")
                rows += [envs[first : first + columns] for first in range(0, len(envs), columns)]
            return _Grid(rows, columns, cell_width, cell_height, label_width, is_dense=label_width > 0)

        columns = max(width // (digits + num_glyphs + 4), 1)
        most = max(map(len, groups.values()))
        columns = min(columns, most)
        for cell_height in range(_MAX_CELL_ROWS, 0, -1):
            found = grid(columns, min(width // columns, _MAX_CELL_COLS), cell_height)
            if found.height <= room:
                return found
        label_width = digits + 2
        found = grid(1, 1, 1, label_width)
        for cell_width in (2, 1):
            columns = max((width - label_width) // cell_width, 1)
            found = grid(columns // 10 * 10 or columns, cell_width, 1, label_width)  # tens make the labels round
            if found.height <= room:
                break
        return found

    def _name_of(self, metric: Metric) -> str:
        """Return the name of a metric, with that of the task's score in place of "score"."""
        return metric.name.replace("score", strip_control(self.state.score_name))

    def _write_titles(self, standings: Sequence[EnvStanding], metric: Metric) -> None:
        self.panel_title = (
            f"env heat map ─ percentile of {self._name_of(metric)}, {'low' if metric.low_is_bad else 'high'} is bad"
        )
        if self._grouping:
            self.panel_title += f" ─ grouped by {self._grouping}"
        if self.view.env_filter:
            self.panel_title += f" ─ filter {self.view.env_filter.text}"
        num_outliers = sum(standing.is_outlier for standing in standings)
        self.panel_subtitle = f"{pluralise(num_outliers, 'outlier')} of {len(standings)}"

    def _draw_cell(
        self, lines: list[Line], env: EnvState, standing: EnvStanding, severity: str | None, role: str, metric: Metric
    ) -> None:
        """Append the lines of a cell, filled in the colour of the role, except for a gap at the right and below."""
        selected, width = env.env == self.view.selected_env, self._grid.cell_width
        stages = [slot.stage for slot in env.latest.slots] if env.latest else []
        mark = _mark(standing, severity) if role != "absent" else None
        fill = role if role in {"absent", "outlier"} else role.replace("rank", "fill")
        if self._grid.is_dense:
            glyph = STAGES[min(stages, key=STAGES_BY_PRIORITY.index)].glyph if stages else "–"
            text, text_role = ("▸", "key") if selected else (mark[0] if mark else glyph, fill)
            lines[0].append(text, text_role).append(" " * (width - 1), fill)
            return
        digits, num_glyphs = self._cell_parts()
        if num_glyphs < len(stages):
            stages = [min(stages, key=STAGES_BY_PRIORITY.index)]
        glyphs = "".join(STAGES[stage].glyph for stage in stages).ljust(num_glyphs)
        lines[0].append("▸" if selected else " ", "key").append(f"{env.env:0{digits}d} {glyphs}", fill)
        end = lines[0].width - digits - num_glyphs - 2 + width - 1
        lines[0].append(*mark or (" ", fill)).append(" " * (end - lines[0].width), fill).append(" ")
        for number, line in enumerate(lines[1 : max(len(lines) - 1, 2)]):
            line.append("▸" if selected else " ", "key")
            text = metric.format(metric.value(env)).text.strip() if number == 0 else ""
            line.append(f"{text:^{width - 2}}"[: width - 2], fill).append(" ")

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
        rank = _describe_rank(standing, metric, metric.value(env))
        room = self.size.width - line.width - scale.width - 3
        if room >= 0:
            line.append(rank if len(rank) <= room else "", "dim")
            line.pad_to(self.size.width - scale.width - 1).extend(scale)
        return line

    def action_move_selection(self, columns: int, rows: int) -> None:
        """Move the cursor over the map: to the next cell, or to the nearest one in the next row."""
        cells = [row for row in self._grid.rows if not isinstance(row, str)]
        row = next((number for number, envs in enumerate(cells) if self.view.selected_env in envs), 0)
        if not cells:
            return
        if columns:
            order = [env for envs in cells for env in envs]
            place = order.index(self.view.selected_env) + columns
            if 0 <= place < len(order):
                self.view.selected_env = order[place]
        elif 0 <= row + rows < len(cells):
            column = cells[row].index(self.view.selected_env)
            self.view.selected_env = cells[row + rows][min(column, len(cells[row + rows]) - 1)]
        self.update()

    def action_metric(self) -> None:
        """Colour the cells by the next metric."""
        self._metric_index = (self._metric_index + 1) % len(METRICS)
        self.update()

    def action_group(self) -> None:
        """Group the cells by the next property, or no longer."""
        is_family = self.state.started is not None and bool(self.state.started.structures)
        names = list(GROUPINGS)[: None if is_family else -_NUM_FAMILY_GROUPINGS]
        self._grouping = names[(names.index(self._grouping) + 1) % len(names)] if self._grouping in names else ""
        self.update()

    def on_click(self, event: Click) -> None:
        """Select the clicked env; open it on a double click."""
        offset = event.get_content_offset(self)
        env = self._env_at(offset.x, offset.y) if offset is not None and offset.y < self.size.height - 1 else None
        if env is not None:
            self.view.selected_env = env
            self.update()
            if event.chain == 2:
                self.app.simulate_key("enter")

    def _env_at(self, x: int, y: int) -> int | None:
        """Return the env in a column and line of the content; None if there is none."""
        line, column = 0, (x - self._grid.label_width) // self._grid.cell_width
        for row in self._grid.rows[self._top :]:
            height = 1 if isinstance(row, str) else self._grid.cell_height
            if line <= y < line + height:
                return row[column] if not isinstance(row, str) and 0 <= column < len(row) else None
            line += height
        return None


def _mark(standing: EnvStanding, severity: str | None) -> tuple[str, str] | None:
    """Return glyph and role of an outlier or anomaly; None for neither."""
    if standing.is_outlier:
        return OUTLIER_GLYPH, "outlier"
    return (SEVERITIES[severity].glyph, severity) if severity else None
