"""Exports a recording: CSV, Parquet, TensorBoard, or an excerpt around a moment."""

from __future__ import annotations

import csv
import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import zstandard

from esper.history.history import History
from esper.recording.segments import ZSTD_LEVEL
from esper.telemetry import events as ev
from esper.telemetry.codec import NON_FINITE_STRINGS, encode_json, encode_lines
from esper.telemetry.state import Keyframe

Scalar: TypeAlias = str | int | float | bool
Columns: TypeAlias = dict[str, type[Scalar]]

PARQUET_BATCH_ROWS = 10_000
"""Rows of a table kept until they are written."""


class ExportError(Exception):
    """An export that cannot be made. One sentence for people."""


def export_csv(history: History, out: Path) -> None:
    """Write `<Event>.csv` for each type of event, a row an event, a column a value.

    Values inside of others have their path as a name: `slots.early.alpha`. What was not measured is empty; what is not
    finite is NaN, Infinity or -Infinity.
    """
    with ExitStack() as files:
        writers: dict[type[ev.Event], csv.DictWriter[str]] = {}
        for kind, columns in collect_columns(history).items():
            file = files.enter_context((out / f"{kind.__name__}.csv").open("w", newline="", encoding="utf-8"))
            writers[kind] = csv.DictWriter(file, columns)
            writers[kind].writeheader()
        for kind, row in _rows(history):
            writers[kind].writerow({name: _csv_value(value) for name, value in row.items()})


def export_parquet(history: History, out: Path) -> None:
    """Write `<Event>.parquet` for each type of event, with the columns of `export_csv`; what was not measured is null.

    Raises ExportError if pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise _missing("parquet", "pyarrow") from None
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    columns = collect_columns(history)
    waiting: dict[type[ev.Event], list[dict[str, Scalar]]] = {kind: [] for kind in columns}
    with ExitStack() as files:
        writers = {
            kind: files.enter_context(
                pyarrow.parquet.ParquetWriter(
                    out / f"{kind.__name__}.parquet", pyarrow.schema([(name, types[of]) for name, of in named.items()])
                )
            )
            for kind, named in columns.items()
        }

        def write(kind: type[ev.Event]) -> None:
            writers[kind].write_table(pyarrow.Table.from_pylist(waiting[kind], schema=writers[kind].schema))
            waiting[kind] = []

        for kind, row in _rows(history):
            waiting[kind].append({name: columns[kind][name](value) for name, value in row.items()})
            if len(waiting[kind]) == PARQUET_BATCH_ROWS:
                write(kind)
        for kind in columns:
            write(kind)


def export_tensorboard(history: History, out: Path) -> None:
    """Write scalars for TensorBoard: `PolicyUpdated/heads/op/entropy`, `EnvStepped/env 03/accuracy`, and the like.

    The x axis counts the steps of the run over all its rounds. Readings of slots are left out: their tags would be
    thousands. Raises ExportError if tensorboard is not installed.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise _missing("tensorboard", "tensorboard") from None
    writer = Writer(str(out))
    step, started = 0, history.state_at(history.length).started
    steps = started.steps if started else 0
    for event in history.events():
        if isinstance(event, ev.EnvStepped | ev.PhaseTimed):
            step = (event.round - 1) * steps + event.step
        group = _tag_group(event)
        for name, value in () if group is None else flatten_event(event, []).items():
            top = name.partition(".")[0]
            if isinstance(value, (int, float)) and not isinstance(value, bool) and top not in _INDEX_FIELDS:
                writer.add_scalar(f"{group}/{name.replace('.', '/')}", value, step, wall_time=event.time)
    writer.close()


EXPORTERS: dict[str, Callable[[History, Path], None]] = {
    "csv": export_csv,
    "parquet": export_parquet,
    "tensorboard": export_tensorboard,
}
"""What writes a history into an empty directory, by the name of the format."""

_INDEX_FIELDS = frozenset({"seq", "time", "round", "step", "env"})
"""Fields that say where a value belongs."""


def _tag_group(event: ev.AnyEvent) -> str | None:
    """What stands before the name of a value in TensorBoard; None for events that have no curves."""
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


def collect_columns(history: History) -> dict[type[ev.Event], Columns]:
    """The columns that the events of each type need, in the order of the type's fields, and what they hold."""
    found: dict[type[ev.Event], Columns] = {}
    for kind, row in _rows(history):
        columns = found.setdefault(kind, {})
        for name, value in row.items():
            of = type(value)
            known = columns.setdefault(name, of)
            if known is not of:
                columns[name] = float if {known, of} == {int, float} else str
    return {kind: _in_order(kind, columns) for kind, columns in found.items()}


def _in_order(kind: type[ev.Event], columns: Columns) -> Columns:
    """Columns in the order of the type's fields, with the values of one slot, or one head, beside each other."""
    groups: dict[str, int] = {}
    for name in columns:
        groups.setdefault(name.rpartition(".")[0], len(groups))

    def place(name: str) -> tuple[int, int]:
        return kind.__struct_fields__.index(name.partition(".")[0]), groups[name.rpartition(".")[0]]

    return {name: columns[name] for name in sorted(columns, key=place)}


def _rows(history: History) -> Iterator[tuple[type[ev.Event], dict[str, Scalar]]]:
    started = history.state_at(history.length).started
    slots = started.slots if started else []
    for event in history.events():
        yield type(event), flatten_event(event, slots)


def flatten_event(event: ev.AnyEvent, slots: list[str]) -> dict[str, Scalar]:
    """The values of an event by their path; those that were not measured are left out.

    Args:
        event: any.
        slots: names of the run's slots, in order.
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
            for key, item in value.items():
                _flatten(f"{path}.{key}", item, row)
        case list() if value and isinstance(value[0], ev.GateCheck):
            for check in value:
                known = {"passed": check.passed, "value": check.value, "threshold": check.threshold}
                _flatten(f"{path}.{check.name}", known, row)
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


def _missing(extra: str, package: str) -> ExportError:
    return ExportError(f"{package} is not installed: pip install 'esper-sanctum[{extra}]'")


EXCERPT_MARGIN_S = 120.0
"""Recorded seconds that are kept before and after the moment."""
_BATCH = 1_000


def write_excerpt(history: History, position: int, directory: Path) -> Path:
    """Write the minutes around a moment to a packed file that opens by itself: a Keyframe, and the events after it.

    It begins and ends with whole steps. Where the run was resumed within it, another Keyframe says so.

    Args:
        history: of the run.
        position: of the moment.
        directory: where the file is made; none that is there is touched.

    Returns:
        The path of the file, named after the run and the step.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
        ReadError: the history cannot be read.
    """
    state = history.state_at(position)
    start, stop = _whole_steps(history, history.elapsed(position - 1, state.time) if position else 0.0)
    run = history.path.resolve().name.partition(".")[0]
    path, descriptor = _new_file(directory, f"{run}-step{state.steps_done}")
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file) as packer,
        ):
            for first, last in history.contiguous_ranges(start, stop):
                packer.write(encode_json(Keyframe.from_state(history.state_at(first))) + b"\n")
                events = history.events(first, last)
                while batch := list(islice(events, _BATCH)):
                    packer.write(encode_lines(batch))
    except BaseException:
        path.unlink()
        raise
    return path


def _whole_steps(history: History, elapsed: float) -> tuple[int, int]:
    """The positions of the first and the last end of a step that hold the minutes around a moment between them."""
    steps = history.steps
    before = bisect_right(steps, history.position_at(elapsed - EXCERPT_MARGIN_S)) if elapsed > EXCERPT_MARGIN_S else 0
    after = bisect_left(steps, history.position_at(elapsed + EXCERPT_MARGIN_S))
    return steps[before - 1] if before else 0, steps[after] if after < len(steps) else history.length


def _new_file(directory: Path, name: str) -> tuple[Path, int]:
    """Make a file that was not there; a number goes with the name where it is taken. Raises OSError."""
    for number in count(1):
        path = directory / f"{name}{f'-{number}' if number > 1 else ''}.jsonl.zst"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue
    raise AssertionError("count does not end")
