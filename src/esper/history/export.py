"""Exports a recording: CSV, Parquet or TensorBoard."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from esper.history.history import History
from esper.telemetry import events as ev
from esper.telemetry.codec import NON_FINITE_STRINGS, encode_json

Scalar: TypeAlias = str | int | float | bool
"""Value of one cell of an exported table."""
Columns: TypeAlias = dict[str, type[Scalar]]
"""Types of columns, keyed by name."""
Track: TypeAlias = Callable[[Iterator[ev.AnyEvent], str], Iterable[ev.AnyEvent]]
"""Yields all events of a recording, and shows their number as progress; the text names the operation."""

PARQUET_BATCH_ROWS = 10_000
"""Number of rows of a table that are written at once."""


class ExportError(Exception):
    """A recording cannot be exported. The text is one sentence for the user."""


def export_csv(history: History, out: Path, track: Track) -> None:
    """Write `<Event>.csv` for each event type, with one row per event and one column per value.

    Columns of nested values are named by their path: `slots.early.alpha`. Values that were not measured are empty;
    non-finite ones are NaN, Infinity or -Infinity.

    Args:
        history: Recording to export.
        out: Empty directory.
        track: Passes the events on, and shows the progress.

    Raises:
        OSError: A file cannot be written.
    """
    with ExitStack() as files:
        writers: dict[type[ev.Event], csv.DictWriter[str]] = {}
        for kind, columns in collect_columns(history, track).items():
            file = files.enter_context((out / f"{kind.__name__}.csv").open("w", newline="", encoding="utf-8"))
            writers[kind] = csv.DictWriter(file, columns)
            writers[kind].writeheader()
        for kind, row in _rows(history, track, "writing"):
            writers[kind].writerow({name: _csv_value(value) for name, value in row.items()})


def export_parquet(history: History, out: Path, track: Track) -> None:
    """Write `<Event>.parquet` for each event type, with the columns of `export_csv`.

    Values that were not measured are null.

    Args:
        history: Recording to export.
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
        raise _missing_package("parquet", "pyarrow") from None
    types: dict[type[Scalar], Any] = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }

    def schema(columns_of_kind: Columns) -> Any:
        return pyarrow.schema([(name, types[value_type]) for name, value_type in columns_of_kind.items()])

    columns = collect_columns(history, track)
    pending: dict[type[ev.Event], list[dict[str, Scalar]]] = {kind: [] for kind in columns}
    with ExitStack() as files:
        writers: dict[type[ev.Event], Any] = {
            kind: files.enter_context(parquet.ParquetWriter(out / f"{kind.__name__}.parquet", schema(columns_of_kind)))
            for kind, columns_of_kind in columns.items()
        }

        def write_batch(kind: type[ev.Event]) -> None:
            writers[kind].write_table(pyarrow.Table.from_pylist(pending[kind], schema=writers[kind].schema))
            pending[kind] = []

        for kind, row in _rows(history, track, "writing"):
            pending[kind].append({name: columns[kind][name](value) for name, value in row.items()})
            if len(pending[kind]) == PARQUET_BATCH_ROWS:
                write_batch(kind)
        for kind in columns:
            write_batch(kind)


def export_tensorboard(history: History, out: Path, track: Track) -> None:
    """Write scalars for TensorBoard, such as `PolicyUpdated/heads/op/entropy` and `EnvStepped/env 03/accuracy`.

    The x axis counts the steps of the run over all rounds. Readings of slots are left out, because they would need
    thousands of tags.

    Args:
        history: Recording to export.
        out: Empty directory.
        track: Passes the events on, and shows the progress.

    Raises:
        ExportError: tensorboard is not installed.
        OSError: A file cannot be written.
    """
    try:
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise _missing_package("tensorboard", "tensorboard") from None
    writer: Any = Writer(str(out))
    step, started = 0, history.state_at(history.length).started
    steps = started.steps if started else 0
    for event in track(history.events(), "writing"):
        if isinstance(event, ev.EnvStepped | ev.PhaseTimed):
            step = (event.round - 1) * steps + event.step
        group = _tag_group(event)
        for name, value in () if group is None else flatten_event(event, []).items():
            top = name.partition(".")[0]
            if isinstance(value, (int, float)) and not isinstance(value, bool) and top not in _INDEX_FIELDS:
                writer.add_scalar(f"{group}/{name.replace('.', '/')}", value, step, wall_time=event.time)
    writer.close()


EXPORTERS: dict[str, Callable[[History, Path, Track], None]] = {
    "csv": export_csv,
    "parquet": export_parquet,
    "tensorboard": export_tensorboard,
}
"""Functions that write a history to an empty directory, keyed by format."""

_INDEX_FIELDS = frozenset({"seq", "time", "round", "step", "env"})
"""Fields that identify the step or env of a value and are no values themselves."""


def _tag_group(event: ev.AnyEvent) -> str | None:
    """Return the prefix of an event's TensorBoard tags; None for events without scalars."""
    name = type(event).__name__
    match event:
        case ev.EnvStepped() | ev.EpisodeEnded():
            return f"{name}/env {event.env:02d}"
        case ev.DeviceSampled():
            return f"{name}/{event.device}"
        case ev.PolicyUpdated() | ev.PhaseTimed():
            return name
        case _:
            return None


def collect_columns(history: History, track: Track) -> dict[type[ev.Event], Columns]:
    """Return the columns of each event type, in the order of its fields."""
    found: dict[type[ev.Event], Columns] = {}
    for kind, row in _rows(history, track, "columns"):
        columns = found.setdefault(kind, {})
        for name, value in row.items():
            value_type = type(value)
            known = columns.setdefault(name, value_type)
            if known is not value_type:
                columns[name] = float if {known, value_type} == {int, float} else str
    return {kind: _in_order(kind, columns) for kind, columns in found.items()}


def _in_order(kind: type[ev.Event], columns: Columns) -> Columns:
    """Sort columns in the order of the type's fields, and group the values of each slot or head."""
    groups: dict[str, int] = {}
    for name in columns:
        groups.setdefault(name.rpartition(".")[0], len(groups))

    def sort_key(name: str) -> tuple[int, int]:
        return kind.__struct_fields__.index(name.partition(".")[0]), groups[name.rpartition(".")[0]]

    return {name: columns[name] for name in sorted(columns, key=sort_key)}


def _rows(history: History, track: Track, name: str) -> Iterator[tuple[type[ev.Event], dict[str, Scalar]]]:
    started = history.state_at(history.length).started
    slots = started.slots if started else []
    for event in track(history.events(), name):
        yield type(event), flatten_event(event, slots)


def flatten_event(event: ev.AnyEvent, slots: list[str]) -> dict[str, Scalar]:
    """Return the values of an event, keyed by path such as `heads.op.entropy`; without those that were not measured.

    Args:
        event: Event to flatten.
        slots: Names of the run's slots, in order.
    """
    row: dict[str, Scalar] = {}
    for field in event.__struct_fields__:
        value = getattr(event, field)
        if field == "slots" and isinstance(event, ev.EnvStepped):
            value = dict(zip(slots, value, strict=False))
        _flatten(field, value, row)
    return row


def _flatten(path: str, value: Any, row: dict[str, Scalar]) -> None:
    match value:
        case None:
            pass
        case str() | int() | float():
            row[path] = value
        case msgspec.Struct():
            for field in value.__struct_fields__:
                _flatten(f"{path}.{field}", getattr(value, field), row)
        case dict():
            for key, item in cast("dict[str, Any]", value).items():
                _flatten(f"{path}.{key}", item, row)
        case [ev.GateCheck(), *_]:
            for check in cast("list[ev.GateCheck]", value):
                fields = {"passed": check.passed, "value": check.value, "threshold": check.threshold}
                _flatten(f"{path}.{check.name}", fields, row)
        case _:
            row[path] = encode_json(value).decode()


def _csv_value(value: Scalar) -> Scalar:
    match value:
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            nan, infinity, minus_infinity = NON_FINITE_STRINGS
            return nan if math.isnan(value) else infinity if value > 0 else minus_infinity
        case _:
            return value


def _missing_package(extra: str, package: str) -> ExportError:
    return ExportError(f"{package} is not installed: pip install 'esper-sanctum[{extra}]'")
