"""The places of the cells of the env heat map."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.sanctum.widgets.env_grid import Grid, choose_grid

INDEX_COLS, CELL_COLS = 3, 10
GROUPS = st.one_of(
    st.integers(1, 300).map(lambda count: {"": list(range(count))}),
    st.lists(st.integers(0, 7), min_size=1, max_size=300).map(
        lambda members: {
            f"{'conv_light + ' * group}norm": [env for env, member in enumerate(members) if member == group]
            for group in sorted(set(members))
        }
    ),
)
WIDTHS, ROOMS = st.integers(43, 200), st.integers(1, 60)


def grid_of(groups: dict[str, list[int]], width: int, room: int) -> Grid:
    return choose_grid(groups, width, room, INDEX_COLS, CELL_COLS)


@given(GROUPS, WIDTHS, ROOMS)
def test_grid_has_one_cell_per_env_within_the_panel(groups: dict[str, list[int]], width: int, room: int) -> None:
    grid = grid_of(groups, width, room)
    assert [*chain.from_iterable(row.envs for row in grid.rows)] == [*chain.from_iterable(groups.values())]
    for row in grid.rows:
        assert grid.label_width + len(row.envs) * grid.cell_width <= width
        assert len(row.label) <= (grid.label_width if row.envs else width)
    assert grid.height() <= room or grid.cell_width == 1
    if grid.has_indices:
        assert grid.cell_width >= CELL_COLS


@given(GROUPS, WIDTHS, ROOMS)
def test_each_group_begins_a_row_with_its_label(groups: dict[str, list[int]], width: int, room: int) -> None:
    rows = grid_of(groups, width, room).rows
    if "" not in groups:
        assert sum(bool(row.label) for row in rows) == len(groups)
        starts = [row for previous, row in pairwise(rows) if previous.label and not previous.envs]
        starts += [row for row in rows if row.label and row.envs]
        assert sorted(row.envs[0] for row in starts) == sorted(envs[0] for envs in groups.values())


@given(GROUPS, WIDTHS, ROOMS, st.data())
def test_selected_env_is_visible_where_a_click_selects_it(
    groups: dict[str, list[int]], width: int, room: int, data: st.DataObject
) -> None:
    grid = grid_of(groups, width, room)
    env = data.draw(st.sampled_from([*chain.from_iterable(groups.values())]))
    first = grid.first_row(data.draw(st.integers(0, len(grid.rows) - 1)), env, room)
    row = grid.row_of(env)
    y, column = grid.height(first, row), grid.rows[row].envs.index(env)
    assert y >= 0
    assert y + grid.cell_height <= max(room, grid.cell_height)
    assert grid.env_at(grid.label_width + column * grid.cell_width, y, first) == env
    assert grid.env_at(grid.label_width - 1, y, first) is None
    assert first == 0 or grid.height(first - 1) > room


@given(GROUPS, WIDTHS, ROOMS)
def test_right_and_left_lead_through_all_envs(groups: dict[str, list[int]], width: int, room: int) -> None:
    grid = grid_of(groups, width, room)
    order = [*chain.from_iterable(groups.values())]
    assert [grid.next_env(env, 1, 0) for env in order] == [*order[1:], order[-1]]
    assert [grid.next_env(env, -1, 0) for env in order] == [order[0], *order[:-1]]
    for env in order:
        below = grid.next_env(env, 0, 1)
        assert below == env or grid.row_of(below) > grid.row_of(env)


@pytest.mark.parametrize(
    ("envs", "width", "room", "cell_height", "columns"),
    [(16, 136, 40, 6, 8), (64, 80, 8, 1, 8), (64, 80, 13, 1, 5), (256, 136, 34, 1, 8), (256, 80, 13, 1, 25)],
)
def test_cells_are_as_large_as_the_room_allows(
    envs: int, width: int, room: int, cell_height: int, columns: int
) -> None:
    grid = grid_of({"": list(range(envs))}, width, room)
    assert grid.cell_height == cell_height
    assert len(grid.rows[0].envs) == columns
