"""Events as tables. The columns of a table depend on the type of its events alone, so that tables of all runs combine.

Each event type is a table with a row per event, and a column per value. A field with a fixed set of keys has a column
per key: `decision_tempo_choice`. A field with any number of entries is a table of its own, with a row per entry:
`SlotReading`, `GateCheck`, `Metric` and `Phase`. Every row has the `run`, the `seq` and the `time` of its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect

from esper.common.domain import HEADS, Op
from esper.common.intervals import IntervalEstimate
from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from esper.recordings.history.history import History


class ColumnType(StrEnum):
    """Type of the values of a column. Every value may also be None: it was not measured."""

    TEXT = "text"
    TEXTS = "texts"
    """List of texts."""
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    TIME = "time"
    """Microseconds since the epoch, UTC. A time before 1970 or after the year 9999 is None."""


class Row(NamedTuple):
    """Row of a table."""

    run: str
    event: Any
    name: str = ""
    """Slot, metric or phase, in a table of entries."""
    entry: Any = None
    """Entry of the event, in a table of entries."""


Values = Callable[[Sequence[Row]], list[Any]]
"""Returns a value for each of some rows."""


class Column(NamedTuple):
    """Name and type of a column, and its values in some rows."""

    name: str
    type: ColumnType
    values: Values


Entries = Iterable[tuple[str, Any]]
"""Entries of an event with their names."""


class Table(NamedTuple):
    """A table of events, or of their entries."""

    name: str
    events: Sequence[type[ev.Event]]
    """Types of the events that have rows in it."""
    columns: Sequence[Column]
    entries: Callable[[Any, Sequence[str]], Entries] | None = None
    """Returns the entries of an event, each a row; the texts are the names of the run's slots. None: one row."""

    def rows(self, run: str, event: ev.Event, slots: Sequence[str]) -> list[Row]:
        """Return the rows of an event."""
        if self.entries is None:
            return [Row(run, event)]
        return [Row(run, event, name, entry) for name, entry in self.entries(event, slots)]


KEYS: Mapping[str, Sequence[str]] = {
    "reward_parts": ("score", "rent", "op", "dependence", "penalty"),
    "op_probabilities": [op.name.lower() for op in Op],
    "decision": HEADS[1:],
    "choices": HEADS,
    "heads": HEADS,
    "owners": ("hosts", "seeds", "optimizers", "policy", "data"),
    "versions": ("esper-sanctum", "python", "torch", "cpu"),
}
"""Keys of the fields that have a column per key."""
_PARTS = frozenset({"slots", "checks", "metrics", "phases"})
"""Fields whose entries are rows of a table of their own."""
_CHOICE_TYPES = {
    "tempo": (ColumnType.INTEGER, int),
    "alpha_speed": (ColumnType.INTEGER, int),
    "alpha_target": (ColumnType.NUMBER, float),
}
"""Type of the choices of a head that are numbers; those of the other heads are names."""
_TIMES = frozenset({"time", "written", "started"})
"""Fields that are a moment."""
_END_OF_DATES = 253_402_300_800.0
"""Start of the year 10000, in seconds since the epoch."""
_RENAMED = {"where": "subject"}
"""Columns of fields whose name is a keyword of SQL."""
SCALARS: Mapping[type[inspect.Type], ColumnType] = {
    inspect.StrType: ColumnType.TEXT,
    inspect.LiteralType: ColumnType.TEXT,
    inspect.IntType: ColumnType.INTEGER,
    inspect.FloatType: ColumnType.NUMBER,
    inspect.BoolType: ColumnType.FLAG,
}
"""Column type of each scalar type."""


def columns_of(kind: type[msgspec.Struct], source: str = "event") -> Iterator[Column]:
    """Yield the columns of the fields of a struct that are in the table of the struct itself.

    Args:
        kind: The struct: an event, an entry, or another one in the place of an event.
        source: Its field of `Row`.
    """
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        name, read = _RENAMED.get(field.name, field.name), _field(f"{source}.{field.name}")
        match measured_type(field.type):
            case inspect.FloatType() if name in _TIMES:
                yield Column(name, ColumnType.TIME, _moment(read))
            case scalar if type(scalar) in SCALARS:
                yield Column(name, SCALARS[type(scalar)], read)
            case _ if name == "overflows_by_owner":
                yield Column("overflows_host", ColumnType.INTEGER, _at(read, "host"))
            case _ if name in _PARTS:
                pass
            case inspect.ListType(item_type=inspect.StrType()) | inspect.VarTupleType(item_type=inspect.StrType()):
                yield Column(name, ColumnType.TEXTS, read)
            case inspect.StructType(cls=entry) if entry is IntervalEstimate:
                yield from _columns_of_entry(name, entry, read, name)
            case inspect.DictType(value_type=inspect.StructType(cls=entry)):
                for key in KEYS[name]:
                    yield from _columns_of_entry(f"{name}_{key}", entry, _at(read, key), key)
            case inspect.DictType(value_type=value_type) if name in KEYS:
                for key in KEYS[name]:
                    yield Column(f"{name}_{key.replace('-', '_')}", SCALARS[type(value_type)], _at(read, key))
            case inspect.DictType() | inspect.ListType() | inspect.StructType():
                yield Column(name, ColumnType.TEXT, _as_json(read))
            case other:
                raise TypeError(f"{kind.__name__}.{name} has no column: {other}")


def _columns_of_entry(prefix: str, entry: type[msgspec.Struct], read: Values, head: str) -> Iterator[Column]:
    """Yield the columns of an interval, or of the choice or the reading of a head."""
    for part in entry.__struct_fields__:
        kind, convert = ColumnType.NUMBER, None
        if part == "choice":
            kind, convert = _CHOICE_TYPES.get(head, (ColumnType.TEXT, None))
        yield Column(f"{prefix}_{part}", kind, _part(read, part, convert))


def _field(path: str) -> Values:
    """Return the values of a field of the rows, such as `event.loss`."""
    read = attrgetter(path)
    return lambda rows: list(map(read, rows))


def _part(read: Values, part: str, convert: Callable[[str], Any] | None) -> Values:
    def values(rows: Sequence[Row]) -> list[Any]:
        found = [None if entry is None else getattr(entry, part) for entry in read(rows)]
        return [None if value is None else convert(value) for value in found] if convert else found

    return values


def _moment(read: Values) -> Values:
    return lambda rows: [
        round(seconds * 1_000_000) if seconds is not None and 0 <= seconds < _END_OF_DATES else None
        for seconds in read(rows)
    ]


def _at(read: Values, key: str) -> Values:
    return lambda rows: [entries.get(key) for entries in read(rows)]


def _as_json(read: Values) -> Values:
    return lambda rows: [None if value is None else encode_json(value).decode() for value in read(rows)]


def measured_type(kind: inspect.Type) -> inspect.Type:
    """Return the type of a value that was measured, without its annotations."""
    if isinstance(kind, inspect.Metadata):
        return measured_type(kind.type)
    if isinstance(kind, inspect.UnionType):
        (kind,) = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    return kind


RUN = Column("run", ColumnType.TEXT, _field("run"))
"""Column of the name of the run."""
_NAME = _field("name")
_ENTRY = _field("entry")
_STEP = ("round", "step", "env")


def _event_columns(event: type[ev.Event]) -> Iterator[Column]:
    yield RUN
    yield from (column for column in columns_of(event) if column.name != RUN.name)


def _key_columns(event: type[ev.Event], *keys: str) -> list[Column]:
    """Return the columns that tell where an entry belongs: those of every table, and some fields of the event."""
    return [column for column in _event_columns(event) if column.name in {"run", "seq", "time", *keys}]


def _slots_of(event: ev.EnvStepped, slots: Sequence[str]) -> Entries:
    return zip(slots, event.slots, strict=False)


def _metrics_of(event: ev.EnvStepped, _: Sequence[str]) -> Entries:
    return event.metrics.items()


def _phases_of(event: ev.PhaseTimed, _: Sequence[str]) -> Entries:
    return event.phases.items()


def _checks_of(event: ev.GateRefused | ev.GateOpened, _: Sequence[str]) -> Entries:
    return [(check.name, check) for check in event.checks]


def _is_opened(rows: Sequence[Row]) -> list[bool]:
    return [isinstance(row.event, ev.GateOpened) for row in rows]


def _overflows_of_slot(rows: Sequence[Row]) -> list[int | None]:
    return [row.event.overflows_by_owner.get(row.name) for row in rows]


TABLES = (
    *(Table(event.__name__, [event], list(_event_columns(event))) for event in get_args(ev.AnyEvent)),
    Table(
        "SlotReading",
        [ev.EnvStepped],
        [
            *_key_columns(ev.EnvStepped, *_STEP),
            Column("slot", ColumnType.TEXT, _NAME),
            *columns_of(ev.SlotReading, "entry"),
            Column("overflows", ColumnType.INTEGER, _overflows_of_slot),
        ],
        _slots_of,
    ),
    Table(
        "Metric",
        [ev.EnvStepped],
        [
            *_key_columns(ev.EnvStepped, *_STEP),
            Column("metric", ColumnType.TEXT, _NAME),
            Column("value", ColumnType.NUMBER, _ENTRY),
        ],
        _metrics_of,
    ),
    Table(
        "Phase",
        [ev.PhaseTimed],
        [
            *_key_columns(ev.PhaseTimed, "round", "step"),
            Column("phase", ColumnType.TEXT, _NAME),
            Column("seconds", ColumnType.NUMBER, _ENTRY),
        ],
        _phases_of,
    ),
    Table(
        "GateCheck",
        [ev.GateRefused, ev.GateOpened],
        [
            *_key_columns(ev.GateRefused, *_STEP, "slot", "gate"),
            Column("opened", ColumnType.FLAG, _is_opened),
            *columns_of(ev.GateCheck, "entry"),
        ],
        _checks_of,
    ),
)
"""All tables."""
_KEYED = {kind: KEYS.keys() & set(kind.__struct_fields__) for kind in get_args(ev.AnyEvent)}


def event_rows(table: Table, history: History, run: str) -> Iterator[Row]:
    """Yield the rows of a recording in a table of events.

    Args:
        history: Recording, completely read.
        run: Name of the run.
    """
    started = history.state_at(history.length).started
    slots = started.slot_names if started else []
    for event in history.events():
        if isinstance(event, tuple(table.events)):
            yield from table.rows(run, event, slots)


def keys_without_column(event: ev.AnyEvent) -> set[str]:
    """Return `Event.field.key` for each key of an event that has no column, because a newer version wrote it."""
    return {
        f"{type(event).__name__}.{field}.{key}"
        for field in _KEYED[type(event)]
        for key in getattr(event, field)
        if key not in KEYS[field]
    }
