"""`query SQL`: answers a SELECT statement about all runs of a directory."""

from __future__ import annotations

import csv
import io
import math
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from esper.cli.options import EXIT_OK, Parser, add_telemetry_dir_option, check_extra, print_warnings
from esper.cli.streams import print_json, print_text
from esper.common.formatting import NOT_A_NUMBER, NOT_MEASURED, format_number
from esper.common.printed_table import PrintedTable
from esper.recordings.events.codec import encode_json
from esper.recordings.query.database import MAX_SECONDS, PACKAGES, answer_query
from esper.recordings.query.tables import VIEWS

MAX_ROWS = 10_000
"""Default of the maximum number of rows."""


def run(arguments: Sequence[str]) -> int:
    """Print the answer as a table, JSON or CSV."""
    options = _parser().parse_args(arguments)
    for package in PACKAGES:
        check_extra("query", "sql", package)
    answer = answer_query(
        options.sql, options.telemetry_dir, max_rows=options.max_rows, max_seconds=options.max_seconds
    )
    names, columns = answer.table.column_names, [column.to_pylist() for column in answer.table.columns]
    rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
    if options.json:
        print_json(encode_json([dict(zip(names, row, strict=True)) for row in rows]))
    elif options.csv:
        print_text(_csv_text(names, rows))
    else:
        numbers = {
            index for index, column in enumerate(columns) if any(isinstance(value, float | int) for value in column)
        }
        table = PrintedTable.from_cells(names, [[_cell(value) for value in row] for row in rows], right=numbers)
        print_text("\n".join(table.lines(shutil.get_terminal_size().columns if sys.stdout.isatty() else None)))
    if answer.is_truncated:
        print_warnings([f"only the first {options.max_rows:,} rows are shown; see --max-rows"])
    print_warnings(answer.problems)
    return EXIT_OK


def _cell(value: Any) -> str:
    """Return a value as a cell of the printed table."""
    if value is None:
        return NOT_MEASURED
    return format_number(value, ".6g") if isinstance(value, float) else str(_csv_cell(value))


def _csv_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV, with the conventions of `export`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(_csv_cell, row) for row in rows)
    return text.getvalue().removesuffix("\n")


def _csv_cell(value: Any) -> object:
    """Return a value as `export` writes it: times in UTC, lists as JSON, and NaN in its usual case."""
    if isinstance(value, float):
        return NOT_A_NUMBER if math.isnan(value) else value
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return encode_json(value).decode().strip('"')


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum query",
        description="Answer a SELECT statement of SQL about all runs of a directory, live ones included",
        epilog=f"Views: runs, {', '.join(VIEWS)}, candidates, effects, and the tables of export, such as EnvStepped; "
        "`describe steps` lists the columns of one. See docs/recordings.md.",
    )
    parser.add_argument("sql", metavar="SQL", help='statement, such as "select run, score from runs order by score"')
    add_telemetry_dir_option(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list with an object per row")
    parser.add_argument("--csv", action="store_true", help="print CSV, with the conventions of export")
    parser.add_argument(
        "--max-rows", type=int, default=MAX_ROWS, metavar="N", help=f"maximum number of rows (default: {MAX_ROWS})"
    )
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=MAX_SECONDS,
        metavar="SECONDS",
        help=f"maximum number of seconds, with those for reading the recordings (default: {MAX_SECONDS:g})",
    )
    return parser
