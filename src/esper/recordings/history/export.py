"""Exports recordings as the tables of `recordings/history/tables.py`, in CSV or Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from esper.recordings.history.arrow import arrow_batch, arrow_schema
from esper.recordings.history.history import History
from esper.recordings.history.tables import TABLES, Column, ColumnType, Row, Table, keys_without_column

Track: TypeAlias = Callable[[Iterator[ev.AnyEvent], str], Iterable[ev.AnyEvent]]
"""Yields all events of a recording, and shows their number as progress; the text names the run."""
_WriteRows: TypeAlias = Callable[[Sequence[Row]], object]

BATCH_ROWS = 20_000
"""Number of rows of a table that are written at once."""
ZSTD_LEVEL = 9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NamedHistory(NamedTuple):
    """A recording and the name of its run, which no other recording of the export has."""

    run: str
    history: History


def export_tables(recordings: Sequence[NamedHistory], out: Path, track: Track, *, to: str) -> set[str]:
    """Write a file per table; of several recordings, a directory per table with a file per run.

    Args:
        out: Empty directory.
        track: Passes the events on, and shows the progress.
        to: Key of `TABLE_FORMATS`.

    Returns:
        Sentences about the keys that were left out, because a newer version recorded them.

    Raises:
        ImportError: pyarrow is not installed, and `to` is `parquet`.
        OSError: A file cannot be written.
    """
    unknown: set[str] = set()
    for run, history in recordings:
        started = history.state_at(history.length).started
        slots = started.slot_names if started else []
        with ExitStack() as files:
            tables: list[tuple[Table, _WriteRows, list[Row]]] = []
            for table in TABLES:
                path = out / f"{table.name}.{to}"
                if len(recordings) > 1:
                    (out / table.name).mkdir(exist_ok=True)
                    path = out / table.name / f"{run}.{to}"
                tables.append((table, files.enter_context(TABLE_FORMATS[to](table, path)), []))
            tables_of = {
                kind: [opened for opened in tables if kind in opened[0].events] for kind in get_args(ev.AnyEvent)
            }
            for event in track(history.events(), run):
                unknown |= keys_without_column(event)
                for table, write, rows in tables_of[type(event)]:
                    rows += table.rows(run, event, slots)
                    if len(rows) >= BATCH_ROWS:
                        write(rows)
                        rows.clear()
            for _, write, rows in tables:
                if rows:
                    write(rows)
    return {f"{key} has no column, and is left out" for key in unknown}


@contextmanager
def _open_csv(table: Table, path: Path) -> Generator[_WriteRows]:
    """Open a CSV file.

    Values that were not measured are empty. Numbers that are not finite are NaN, inf or -inf. Times are in ISO 8601,
    UTC. Lists are JSON.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in table.columns)
        yield lambda rows: writer.writerows(zip(*(_csv_cells(column, rows) for column in table.columns), strict=True))


def _csv_cells(column: Column, rows: Sequence[Row]) -> Iterable[object]:
    values = column.values(rows)
    return map(_CSV_CELLS[column.type], values) if column.type in _CSV_CELLS else values


def _csv_time(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


_CSV_CELLS: Mapping[ColumnType, Callable[[Any], object]] = {
    ColumnType.TEXTS: lambda texts: encode_json(texts).decode(),
    ColumnType.NUMBER: lambda value: "NaN" if value is not None and math.isnan(value) else value,
    ColumnType.FLAG: lambda value: None if value is None else str(value).lower(),
    ColumnType.TIME: _csv_time,
}
"""Cells of the values of a column; the other types are written as they are."""


@contextmanager
def _open_parquet(table: Table, path: Path) -> Generator[_WriteRows]:
    """Open a Parquet file.

    Values that were not measured are null. Columns of numbers have no statistics: the minimum and maximum leave NaN
    out, and readers skip row groups by them, so that a query for NaN would find nothing.
    """
    parquet = import_module("pyarrow.parquet")  # imported by name, because pyarrow has no type annotations
    schema = arrow_schema(table.columns)

    def write(rows: Sequence[Row]) -> None:
        writer.write_batch(arrow_batch(table.columns, rows))

    with parquet.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=[column.name for column in table.columns if column.type is ColumnType.TEXT],
        write_statistics=[column.name for column in table.columns if column.type is not ColumnType.NUMBER],
        sorting_columns=[parquet.SortingColumn(schema.get_field_index("seq"))],
    ) as writer:
        yield write


TABLE_FORMATS: Mapping[str, Callable[[Table, Path], AbstractContextManager[_WriteRows]]] = {
    "csv": _open_csv,
    "parquet": _open_parquet,
}
"""Functions that open a file for the rows of a table, keyed by format."""
