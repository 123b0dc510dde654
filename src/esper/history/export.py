"""Exports recordings as the tables of `history/tables.py`, in CSV or Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

from esper.formatting import install_command
from esper.history.history import History
from esper.history.tables import TABLES, Column, ColumnType, Table, keys_without_column
from esper.telemetry import events as ev
from esper.telemetry.codec import encode_json

Track: TypeAlias = Callable[[Iterator[ev.AnyEvent], str], Iterable[ev.AnyEvent]]
"""Yields all events of a recording, and shows their number as progress; the text names the run."""
Notices: TypeAlias = set[str]
"""Sentences for the user about values that could not be exported."""

BATCH_EVENTS = 20_000
"""Number of events of a table that are written at once."""
ZSTD_LEVEL = 9
_RUN = "run"
"""First column of every table: the name of the run."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ExportError(Exception):
    """A recording cannot be exported. The text is one sentence for the user."""


class NamedHistory(NamedTuple):
    """A recording and the name of its run, which no other recording of the export has."""

    run: str
    history: History


def export_csv(recordings: Sequence[NamedHistory], out: Path, track: Track) -> Notices:
    """Write a CSV file per table; of several recordings, a directory per table with a file per run.

    Values that were not measured are empty. Numbers that are not finite are NaN, inf or -inf. Times are in ISO 8601,
    UTC. Lists are JSON.

    Args:
        recordings: Recordings to export.
        out: Empty directory.
        track: Passes the events on, and shows the progress.

    Raises:
        OSError: A file cannot be written.
    """
    notices: Notices = set()
    for recording in recordings:
        with ExitStack() as files:
            writers: dict[str, Any] = {}
            for table in TABLES:
                path = _path(out, table, recording, recordings, "csv")
                writers[table.name] = csv.writer(files.enter_context(path.open("w", newline="", encoding="utf-8")))
                writers[table.name].writerow(name for name, _ in _header(table))
            for table, columns in _batches(recording, track, notices):
                types = [kind for _, kind in _header(table)]
                cells = [map(_CSV_VALUES[kind], values) for kind, values in zip(types, columns, strict=True)]
                writers[table.name].writerows(zip(*cells, strict=True))
    return notices


def export_parquet(recordings: Sequence[NamedHistory], out: Path, track: Track) -> Notices:
    """Write a Parquet file per table; of several recordings, a directory per table with a file per run.

    Values that were not measured are null. Columns of numbers have no statistics: the minimum and maximum leave NaN
    out, and readers skip row groups by them, so that a query for NaN would find nothing.

    Args:
        recordings: Recordings to export.
        out: Empty directory.
        track: Passes the events on, and shows the progress.

    Raises:
        ExportError: pyarrow is not installed.
        OSError: A file cannot be written.
    """
    try:
        # Imported by name, because pyarrow has no type annotations.
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise missing_package("parquet", "pyarrow") from None
    types: Mapping[ColumnType, Any] = {
        ColumnType.TEXT: pyarrow.string(),
        ColumnType.TEXTS: pyarrow.list_(pyarrow.string()),
        ColumnType.INTEGER: pyarrow.int64(),
        ColumnType.NUMBER: pyarrow.float64(),
        ColumnType.FLAG: pyarrow.bool_(),
        ColumnType.TIME: pyarrow.timestamp("us", tz="UTC"),
    }
    schemas = {table.name: pyarrow.schema([(name, types[kind]) for name, kind in _header(table)]) for table in TABLES}
    notices: Notices = set()
    for recording in recordings:
        with ExitStack() as files:
            writers: dict[str, Any] = {}
            for table in TABLES:
                header = _header(table)
                writers[table.name] = files.enter_context(
                    parquet.ParquetWriter(
                        _path(out, table, recording, recordings, "parquet"),
                        schemas[table.name],
                        compression="zstd",
                        compression_level=ZSTD_LEVEL,
                        use_dictionary=[name for name, kind in header if kind is ColumnType.TEXT],
                        write_statistics=[name for name, kind in header if kind is not ColumnType.NUMBER],
                        sorting_columns=[parquet.SortingColumn(schemas[table.name].get_field_index("seq"))],
                    )
                )
            for table, columns in _batches(recording, track, notices):
                schema = schemas[table.name]
                arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
                writers[table.name].write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
    return notices


def missing_package(extra: str, package: str) -> ExportError:
    """Return the error of an export that needs a package which is not installed."""
    return ExportError(f"{package} is not installed: run `{install_command(extra)}` in the checkout")


def _header(table: Table) -> list[tuple[str, ColumnType]]:
    """Return the name and the type of each column of the exported table."""
    return [(_RUN, ColumnType.TEXT), *((column.name, column.type) for column in _own_columns(table))]


def _own_columns(table: Table) -> list[Column]:
    return [column for column in table.columns if column.name != _RUN]


def _path(out: Path, table: Table, recording: NamedHistory, recordings: Sequence[NamedHistory], suffix: str) -> Path:
    if len(recordings) == 1:
        return out / f"{table.name}.{suffix}"
    (out / table.name).mkdir(exist_ok=True)
    return out / table.name / f"{recording.run}.{suffix}"


def _batches(recording: NamedHistory, track: Track, notices: Notices) -> Iterator[tuple[Table, list[list[Any]]]]:
    """Yield the columns of the tables of a recording, some events at a time, in the order of the events."""
    history = recording.history
    started = history.state_at(history.length).started
    slots = started.slot_names if started else []
    pending: dict[frozenset[type[ev.Event]], list[ev.AnyEvent]] = {table.events: [] for table in TABLES}
    tables = {kinds: [table for table in TABLES if table.events == kinds] for kinds in pending}
    of_kind = {
        kind: [(kinds, events) for kinds, events in pending.items() if kind in kinds] for kind in get_args(ev.AnyEvent)
    }

    def tables_of(kinds: frozenset[type[ev.Event]], events: list[ev.AnyEvent]) -> Iterator[tuple[Table, list[Any]]]:
        if len(kinds) == 1:
            notices.update(f"{key} has no column, and is left out" for key in keys_without_column(events))
        for table in tables[kinds]:
            rows = table.rows(events, slots)
            columns = [column.values(rows) for column in _own_columns(table)]
            yield table, [[recording.run] * len(rows.events), *columns]
        events.clear()

    for event in track(history.events(), recording.run):
        for kinds, events in of_kind[type(event)]:
            events.append(event)
            if len(events) == BATCH_EVENTS:
                yield from tables_of(kinds, events)
    for kinds, events in pending.items():
        if events:
            yield from tables_of(kinds, events)


def _csv_number(value: float | None) -> object:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else str(value)  # inf or -inf


def _csv_flag(value: bool | None) -> str | None:
    return None if value is None else "true" if value else "false"


def _csv_time(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _csv_texts(values: list[str]) -> str:
    return encode_json(values).decode()


def _unchanged(value: object) -> object:
    return value


_CSV_VALUES: Mapping[ColumnType, Callable[[Any], object]] = {
    ColumnType.TEXT: _unchanged,
    ColumnType.TEXTS: _csv_texts,
    ColumnType.INTEGER: _unchanged,
    ColumnType.NUMBER: _csv_number,
    ColumnType.FLAG: _csv_flag,
    ColumnType.TIME: _csv_time,
}
