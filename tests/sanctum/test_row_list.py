"""Choice of the columns of a list that fit into a width."""

from __future__ import annotations

import pytest

from esper.sanctum.symbols import Cell
from esper.sanctum.widgets.row_list import Column, fit_columns

ITEMS = [("a long name of an item", "12"), ("b", "3")]
COLUMNS = (
    Column[tuple[str, ...]]("name", "name", 4, 22, lambda item, _: Cell(item[0]), 0, is_elastic=True, good_cols=10),
    Column[tuple[str, ...]]("extra", "extra", 5, 9, lambda item, _: Cell(item[1]), 2),
    Column[tuple[str, ...]]("number", "n", 2, 9, lambda item, _: Cell(item[1]), 1),
)


@pytest.mark.parametrize(
    ("width", "widths"),
    [
        (6, {"name": 6}),
        (7, {"name": 4, "number": 2}),
        (18, {"name": 15, "number": 2}),
        (19, {"name": 10, "extra": 5, "number": 2}),
        (80, {"name": 22, "extra": 5, "number": 2}),
    ],
)
def test_columns_fit_by_priority_once_the_name_has_a_good_width(width: int, widths: dict[str, int]) -> None:
    placed = fit_columns(COLUMNS, ITEMS, width, last_first=1)
    assert {column.key: cols for column, cols in placed} == widths
    assert sum(widths.values()) + len(widths) - 1 <= width
