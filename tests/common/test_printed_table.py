"""Tables that fit the terminal, and their HTML."""

from __future__ import annotations

import pytest

from esper.common.printed_table import PrintedColumn, PrintedTable

TABLE = PrintedTable(
    [
        PrintedColumn[tuple[str, ...]](
            "plan", lambda row: row[0], shorten=lambda row, width: row[0][:width], wanted_width=8
        ),
        PrintedColumn("score", lambda row: row[1], unit="%", is_right=True),
        PrintedColumn("origin", lambda row: row[2], priority=1),
    ],
    [("norm in the middle", "9.5", "drawn"), ("conv", "10.0", "<known>\n")],
)


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, [
            "plan                score %  origin",
            "norm in the middle      9.5  drawn",
            "conv                   10.0  <known>",
        ]),
        (30, ["plan         score %  origin", "norm in the      9.5  drawn", "conv            10.0  <known>"]),
        (20, ["plan         score %", "norm in the      9.5", "conv            10.0"]),
        (5, ["plan  score %", "norm      9.5", "conv     10.0"]),
    ],
)  # fmt: skip
def test_lines_fit_by_shortening_and_by_priority(width: int | None, lines: list[str]) -> None:
    assert list(TABLE.lines(width)) == lines


def test_columns_of_equal_priority_continue_below() -> None:
    table = PrintedTable.from_cells(("", "", ""), [("run", "a", "b"), ("best", "50.0%", "7.5%")], right=(2,))
    assert list(table.lines(11)) == ["run   a", "best  50.0%", "", "run      b", "best  7.5%"]
    assert list(table.lines(17)) == ["run   a         b", "best  50.0%  7.5%"]


def test_html_has_every_column_and_is_escaped() -> None:
    assert "<tr><td>plan</td><td>score %</td><td>origin</td></tr>" in TABLE.html()
    assert "<td>&lt;known&gt;\n</td>" in TABLE.html()
