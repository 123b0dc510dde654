"""Rows of the tables of `recordings/history/tables.py` as Arrow, which Parquet files and SQL queries are made from."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from esper.recordings.history.tables import Column, ColumnType, Row


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Return the schema of some columns. Raises ImportError if pyarrow is not installed."""
    pyarrow = import_module("pyarrow")  # imported by name, because it has no type annotations
    types = {
        ColumnType.TEXT: pyarrow.string(),
        ColumnType.TEXTS: pyarrow.list_(pyarrow.string()),
        ColumnType.INTEGER: pyarrow.int64(),
        ColumnType.NUMBER: pyarrow.float64(),
        ColumnType.FLAG: pyarrow.bool_(),
        ColumnType.TIME: pyarrow.timestamp("us", tz="UTC"),
    }
    return pyarrow.schema([(column.name, types[column.type]) for column in columns])


def arrow_batch(columns: Sequence[Column], rows: Sequence[Row]) -> Any:
    """Return some rows as a record batch. Values that were not measured are null.

    Raises:
        ValueError: A value does not have the type of its column.
        OverflowError: An integer has more than 64 bits.
    """
    pyarrow, schema = import_module("pyarrow"), arrow_schema(columns)
    arrays = [pyarrow.array(column.values(rows), kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
