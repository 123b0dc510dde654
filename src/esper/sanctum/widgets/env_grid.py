"""Places of the cells of the env heat map: groups of envs, and the largest size at which all cells fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from rich.cells import cell_len

from esper.common.formatting import pluralise, strip_control
from esper.recordings.events.sentences import describe_context
from esper.recordings.state.state import EnvState
from esper.sanctum.symbols import ellipsise
from esper.sanctum.widgets.env_columns import STAGES_BY_PRIORITY

_MAX_CELL_COLS, _MAX_CELL_ROWS = 24, 6
"""Maximum size of a cell, with the gaps to its neighbours."""
_MIN_HIGH_CELL_ROWS = 3
"""Minimum height of a cell with its value below its index: a cell with both in one line takes fewer lines than two."""
_VALUE_COLS = 6
"""Columns for a value beside the index of an env, with the gap between them."""
_DENSE_CELL_COLS = (3, 2, 1)
"""Widths of a cell without the index of its env."""


class Grouping(NamedTuple):
    """A way to divide the envs into groups."""

    name: str
    group_of: Callable[[EnvState], str]
    """Name of an env's group."""
    is_for_families: bool = False
    """True if only a family of hosts has such groups."""


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


GROUPINGS = (
    Grouping("stage", _stage_group),
    Grouping("blueprints", _blueprint_group),
    Grouping("structure", _structure_group, is_for_families=True),
    Grouping("context", _context_group, is_for_families=True),
)
"""Groupings that the user can choose: by the most advanced stage, by the set of blueprints, by host and its context."""


def group_envs(envs: Sequence[EnvState], grouping: Grouping | None) -> dict[str, list[int]]:
    """Return the indices of the envs of each group: stages from the most advanced one, other groups by name.

    Without a grouping, all envs are one group without a name.
    """
    groups: dict[str, list[int]] = {}
    for env in envs:
        groups.setdefault(grouping.group_of(env) if grouping else "", []).append(env.env)
    stages = {stage: place for place, stage in enumerate(STAGES_BY_PRIORITY)}
    return dict(sorted(groups.items(), key=lambda item: (stages.get(item[0], len(stages)), item[0])))


class GridRow(NamedTuple):
    """A row of cells, or the name of a group above its rows."""

    label: str
    """Text before the cells, or of a row without cells."""
    envs: Sequence[int]
    """Indices of the envs."""


class Grid(NamedTuple):
    """Rows of cells of one size."""

    rows: Sequence[GridRow]
    label_width: int
    """Columns before the first cell of a row."""
    cell_width: int
    cell_height: int
    """Lines per row of cells; if there are several, the last one separates the rows."""
    has_indices: bool
    """True if the index of the env is in its cell."""

    def height(self, first: int = 0, last: int | None = None) -> int:
        """Return the number of lines of the rows from `first` up to, but without, `last`."""
        return sum(self.cell_height if row.envs else 1 for row in self.rows[first:last])

    def row_of(self, env: int) -> int:
        """Return the number of the row with the cell of an env; 0 if there is none."""
        return next((number for number, row in enumerate(self.rows) if env in row.envs), 0)

    def first_row(self, previous: int, env: int, room: int) -> int:
        """Return the first visible row if `room` lines are visible, so that the cell of an env is among them.

        Args:
            previous: GridRow that was the first visible one, which changes as little as possible.
            env: Index of the env.
            room: Number of lines.
        """
        selected = self.row_of(env)
        first = min(previous, selected)
        if 0 < first == selected and not self.rows[selected - 1].envs:
            first -= 1  # the name of the group
        while first < selected and self.height(first, selected + 1) > room:
            first += 1
        while first > 0 and self.height(first - 1) <= room:
            first -= 1
        return first

    def env_at(self, x: int, y: int, first: int) -> int | None:
        """Return the env of the cell at a column and line; None if there is none. `first` is the first visible row."""
        column = (x - self.label_width) // self.cell_width
        for row in self.rows[first:]:
            height = self.cell_height if row.envs else 1
            if y < height:
                return row.envs[column] if 0 <= column < len(row.envs) else None
            y -= height
        return None

    def next_env(self, env: int, columns: int, rows: int) -> int:
        """Return the env of a neighbouring cell; at the edge, the same env.

        `columns` counts the cells in the order in which one reads; `rows` leads to the nearest cell of another row.
        """
        cells = [row.envs for row in self.rows if row.envs]
        number = next((number for number, envs in enumerate(cells) if env in envs), None)
        if number is None:
            return env
        if columns:
            order = [index for envs in cells for index in envs]
            place = order.index(env) + columns
            return order[place] if 0 <= place < len(order) else env
        if not 0 <= number + rows < len(cells):
            return env
        target = cells[number + rows]
        return target[min(cells[number].index(env), len(target) - 1)]


class _Layout(NamedTuple):
    """A possible grid, before the envs are divided into rows."""

    min_cell_width: int
    cell_height: int
    has_indices: bool
    label_width: int
    has_names_above: bool
    """True if the name of each group is in a line above its cells."""
    columns: int
    """Maximum number of cells per row."""
    height: int
    """Number of lines."""


def choose_grid(groups: Mapping[str, Sequence[int]], width: int, room: int, index_cols: int, cell_cols: int) -> Grid:
    """Return the grid with the largest cells that fit into `room` lines; with the smallest ones if none fit.

    Args:
        groups: Indices of the envs of each group. The name of an only group is empty.
        width: Width of labels and cells, columns.
        room: Number of lines.
        index_cols: Columns for the index of an env.
        cell_cols: Minimum width of a cell with the index.
    """
    layouts = list(_layouts(groups, width, index_cols, cell_cols))
    layout = next((layout for layout in layouts if layout.height <= room), layouts[-1])
    columns, cell_width = layout.columns, layout.min_cell_width
    if layout.has_indices:
        largest = max(map(len, groups.values()))
        # A single group gets rows of equal length.
        columns = -(-largest // -(-largest // columns)) if len(groups) == 1 else min(columns, largest)
        cell_width = min((width - layout.label_width) // columns, _MAX_CELL_COLS)
    rows: list[GridRow] = []
    for name, envs in groups.items():
        label = _label(name, len(envs), layout.label_width or width) if name else ""
        if layout.has_names_above:
            rows.append(GridRow(label, ()))
            label = ""
        for first in range(0, len(envs), columns):
            if not name and layout.label_width:
                label = f"{first:0{index_cols}d}"
            rows.append(GridRow(label, envs[first : first + columns]))
            label = ""
    return Grid(rows, layout.label_width, cell_width, layout.cell_height, layout.has_indices)


def _layouts(groups: Mapping[str, Sequence[int]], width: int, index_cols: int, cell_cols: int) -> Iterator[_Layout]:
    """Yield possible grids, from the largest to the smallest cells."""
    counts = [len(envs) for envs in groups.values()]
    is_grouped = "" not in groups
    longest = max(cell_len(_label(name, len(envs), width)) for name, envs in groups.items()) + 2
    is_whole = longest <= width // 2
    beside = min(longest, width // 2)
    for shapes in _shapes(cell_cols):
        places = [*product(shapes, (False, True) if is_whole and is_grouped else (is_grouped,))]
        if not is_whole:
            places += product(shapes, (False,))  # shortened names, if cells with as much text do not fit otherwise
        for (cell_width, cell_height, has_indices), is_above in places:
            label_width = 0 if is_above else beside if is_grouped else 0 if has_indices else index_cols + 2
            columns = max((width - label_width) // cell_width, 1)
            if not is_grouped and not has_indices:
                columns = columns // 5 * 5 or columns  # round indices before the rows
            height = is_above * len(counts) + cell_height * sum([-(-count // columns) for count in counts])
            yield _Layout(cell_width, cell_height, has_indices, label_width, is_above, columns, height)


def _shapes(cell_cols: int) -> Iterator[list[tuple[int, int, bool]]]:
    """Yield minimum width and height of cells, and whether they have an index; cells with equal text together."""
    high = [(cell_cols, height, True) for height in range(_MAX_CELL_ROWS, _MIN_HIGH_CELL_ROWS - 1, -1)]
    yield [*high, (cell_cols + _VALUE_COLS, 1, True)]
    yield [(cell_cols, 1, True)]
    for cell_width in _DENSE_CELL_COLS:
        yield [(cell_width, 1, False)]


def _label(name: str, count: int, width: int) -> str:
    """Return the name of a group, shortened if necessary, and the number of its envs."""
    number = f": {pluralise(count, 'env')}"
    return f" {ellipsise(name, width - 2 - len(number))}{number}"
