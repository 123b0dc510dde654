"""Events as tables. The columns of a table depend on the type of its events alone, so that tables of all runs combine.

Each event type is a table with a row per event, and a column per value. A field with a fixed set of keys has a column
per key: `decision_tempo_choice`. A field with any number of entries is a table of its own, with a row per entry:
`SlotReading`, `GateCheck`, `Metric` and `Phase`. Every row has the `seq` and the `time` of its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect

from esper.domain import HEADS, Op
from esper.telemetry import events as ev
from esper.telemetry.codec import encode_json


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


class Rows(NamedTuple):
    """Rows of a table: lists of equal length."""

    events: Sequence[Any]
    """Event of each row."""
    names: Sequence[str] = ()
    """Slot, metric or phase of each row, in a table of entries."""
    entries: Sequence[Any] = ()
    """Entry of each row, in a table of entries."""


class Column(NamedTuple):
    """Name and type of a column, and its values for some rows."""

    name: str
    type: ColumnType
    values: Callable[[Rows], list[Any]]


class Table(NamedTuple):
    """A table of events, or of their entries."""

    name: str
    events: frozenset[type[ev.Event]]
    """Types of the events that have rows in it."""
    columns: tuple[Column, ...]
    rows: Callable[[Sequence[Any], Sequence[str]], Rows]
    """Returns the rows of some events; the texts are the names of the run's slots."""


KEYS: Mapping[str, tuple[str, ...]] = {
    "reward_parts": ("score", "rent", "op", "contribution", "penalty"),
    "op_probabilities": tuple(op.name.lower() for op in Op),
    "decision": HEADS[1:],
    "choices": HEADS,
    "heads": HEADS,
    "owners": ("hosts", "seeds", "optimizers", "policy", "data"),
    "versions": ("esper-sanctum", "python", "torch"),
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
_TIMES = frozenset({"time", "written"})
"""Fields that are a moment."""
_END_OF_DATES = 253_402_300_800.0
"""Start of the year 10000, in seconds since the epoch."""
_RENAMED = {"where": "subject"}
"""Columns of fields whose name is a keyword of SQL."""


def _column(name: str, kind: ColumnType, read: Callable[[Any], Any], *, of_entries: bool = False) -> Column:
    """Return a column of the values of `read` for the event or the entry of each row."""
    source = _ENTRIES if of_entries else _EVENTS
    return Column(name, kind, partial(_moments if kind is ColumnType.TIME else _values, source, read))


_EVENTS, _ENTRIES = attrgetter("events"), attrgetter("entries")


def _values(source: Callable[[Rows], Sequence[Any]], read: Callable[[Any], Any], rows: Rows) -> list[Any]:
    return list(map(read, source(rows)))


def _moments(source: Callable[[Rows], Sequence[Any]], read: Callable[[Any], Any], rows: Rows) -> list[int | None]:
    return [
        round(seconds * 1_000_000) if seconds is not None and 0 <= seconds < _END_OF_DATES else None
        for seconds in map(read, source(rows))
    ]


def _keyed_column(field: str, key: str, kind: ColumnType) -> Column:
    """Return the column of a key of a dict of the event."""
    return Column(f"{field}_{key.replace('-', '_')}", kind, partial(_keyed_values, attrgetter(field), key))


def _keyed_values(read: Callable[[Any], dict[str, Any]], key: str, rows: Rows) -> list[Any]:
    return [found.get(key) for found in map(read, rows.events)]


def _keyed_part_column(
    field: str, key: str, part: str, kind: ColumnType, convert: Callable[[Any], Any] | None = None
) -> Column:
    """Return the column of a field of the struct at a key of a dict of the event."""
    read, read_part = attrgetter(field), attrgetter(part)

    def values(rows: Rows) -> list[Any]:
        found = [structs.get(key) for structs in map(read, rows.events)]
        if not any(found):
            return found
        parts = [None if each is None else read_part(each) for each in found]
        return [None if each is None else convert(each) for each in parts] if convert else parts

    return Column(f"{field}_{key}_{part}", kind, values)


def _columns_of(kind: type[msgspec.Struct], *, of_entries: bool = False) -> Iterator[Column]:
    """Yield the columns of the fields of a struct that are in the table of the struct itself.

    Args:
        kind: The struct: an event or an entry.
        of_entries: True if it is an entry.
    """
    column = partial(_column, of_entries=of_entries)
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        name, read = _RENAMED.get(field.name, field.name), attrgetter(field.name)
        match _without_none(field.type):
            case inspect.FloatType():
                yield column(name, ColumnType.TIME if name in _TIMES else ColumnType.NUMBER, read)
            case inspect.IntType():
                yield column(name, ColumnType.INTEGER, read)
            case inspect.BoolType():
                yield column(name, ColumnType.FLAG, read)
            case inspect.StrType() | inspect.LiteralType():
                yield column(name, ColumnType.TEXT, read)
            case _ if name == "overflows_by_owner":
                yield Column("overflows_host", ColumnType.INTEGER, _overflows_of_host)
            case _ if name in _PARTS:
                pass
            case inspect.ListType(item_type=inspect.StrType()):
                yield column(name, ColumnType.TEXTS, read)
            case inspect.DictType(value_type=inspect.StructType(cls=entry)):
                yield from _entry_columns(name, entry)
            case inspect.DictType(value_type=value_type) if name in KEYS:
                yield from (_keyed_column(name, key, _SCALARS[type(value_type)]) for key in KEYS[name])
            case inspect.DictType() | inspect.ListType():
                yield Column(name, ColumnType.TEXT, partial(_as_json, read))
            case other:
                raise TypeError(f"{kind.__name__}.{name} has no column: {other}")


_SCALARS: Mapping[type[inspect.Type], ColumnType] = {
    inspect.StrType: ColumnType.TEXT,
    inspect.IntType: ColumnType.INTEGER,
    inspect.FloatType: ColumnType.NUMBER,
}


def _entry_columns(field: str, entry: type[msgspec.Struct]) -> Iterator[Column]:
    """Yield the columns of a dict of choices or readings, keyed by head."""
    for key in KEYS[field]:
        if entry is ev.HeadChoice:
            kind, convert = _CHOICE_TYPES.get(key, (ColumnType.TEXT, None))
            yield _keyed_part_column(field, key, "choice", kind, convert)
            yield _keyed_part_column(field, key, "probability", ColumnType.NUMBER)
        else:
            for part in entry.__struct_fields__:
                yield _keyed_part_column(field, key, part, ColumnType.NUMBER)


def _as_json(read: Callable[[Any], Any], rows: Rows) -> list[str]:
    return [encode_json(read(event)).decode() for event in rows.events]


def _without_none(kind: inspect.Type) -> inspect.Type:
    """Return the type of a value that was measured."""
    if isinstance(kind, inspect.UnionType):
        (kind,) = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    return kind


def _event_table(event: type[ev.Event]) -> Table:
    return Table(event.__name__, frozenset({event}), tuple(_columns_of(event)), _whole_events)


def _entry_table(
    name: str,
    events: Sequence[type[ev.Event]],
    keys: Sequence[str],
    values: Sequence[Column],
    rows: Callable[[Sequence[Any], Sequence[str]], Rows],
) -> Table:
    """Return a table of entries.

    Args:
        name: Name of the table.
        events: Types of the events that have the entries.
        keys: Fields of the event that tell where it happened.
        values: Columns of an entry.
        rows: Returns the entries.
    """
    whole = {column.name: column for column in _columns_of(events[0])}
    return Table(name, frozenset(events), (*(whole[key] for key in ("seq", "time", *keys)), *values), rows)


def _whole_events(events: Sequence[Any], _: Sequence[str]) -> Rows:
    return Rows(events)


def _overflows_of_host(rows: Rows) -> list[int | None]:
    return [event.overflows_by_owner.get("host") for event in rows.events]


def _overflows_of_slot(rows: Rows) -> list[int | None]:
    return [event.overflows_by_owner.get(name) for event, name in zip(rows.events, rows.names, strict=True)]


def _is_opened(rows: Rows) -> list[bool]:
    return [isinstance(event, ev.GateOpened) for event in rows.events]


def _names(rows: Rows) -> list[str]:
    return list(rows.names)


def _entries(rows: Rows) -> list[Any]:
    return list(rows.entries)


def _slot_rows(events: Sequence[Any], slots: Sequence[str]) -> Rows:
    return Rows(
        [event for event in events for _ in zip(slots, event.slots, strict=False)],
        [name for event in events for name, _ in zip(slots, event.slots, strict=False)],
        [reading for event in events for _, reading in zip(slots, event.slots, strict=False)],
    )


def _check_rows(events: Sequence[Any], _: Sequence[str]) -> Rows:
    return Rows(
        [event for event in events for _ in event.checks],
        entries=[check for event in events for check in event.checks],
    )


def _dict_rows(field: str, events: Sequence[Any], _: Sequence[str]) -> Rows:
    found = list(map(attrgetter(field), events))
    return Rows(
        [event for event, values in zip(events, found, strict=True) for _ in values],
        list(chain.from_iterable(found)),
        list(chain.from_iterable(values.values() for values in found)),
    )


_STEP = ("round", "step", "env")
TABLES: tuple[Table, ...] = (
    *map(_event_table, get_args(ev.AnyEvent)),
    _entry_table(
        "SlotReading",
        [ev.EnvStepped],
        _STEP,
        [
            Column("slot", ColumnType.TEXT, _names),
            *_columns_of(ev.SlotReading, of_entries=True),
            Column("overflows", ColumnType.INTEGER, _overflows_of_slot),
        ],
        _slot_rows,
    ),
    _entry_table(
        "Metric",
        [ev.EnvStepped],
        _STEP,
        [Column("metric", ColumnType.TEXT, _names), Column("value", ColumnType.NUMBER, _entries)],
        partial(_dict_rows, "metrics"),
    ),
    _entry_table(
        "Phase",
        [ev.PhaseTimed],
        ("round", "step"),
        [Column("phase", ColumnType.TEXT, _names), Column("seconds", ColumnType.NUMBER, _entries)],
        partial(_dict_rows, "phases"),
    ),
    _entry_table(
        "GateCheck",
        [ev.GateRefused, ev.GateOpened],
        (*_STEP, "slot", "gate"),
        [Column("opened", ColumnType.FLAG, _is_opened), *_columns_of(ev.GateCheck, of_entries=True)],
        _check_rows,
    ),
)
"""All tables."""


def keys_without_column(events: Sequence[ev.AnyEvent]) -> set[str]:
    """Return `Event.field.key` for each key of events of one type that has no column: another version wrote it."""
    found: set[str] = set()
    kind = type(events[0])
    for field in _KEYED[kind]:
        known, read = frozenset(KEYS[field]), attrgetter(field)
        if not all(map(known.issuperset, map(read, events))):
            unknown = set[str]().union(*map(read, events)) - known
            found |= {f"{kind.__name__}.{field}.{key}" for key in unknown}
    return found


_KEYED: Mapping[type[ev.Event], Sequence[str]] = {
    kind: [field for field in kind.__struct_fields__ if field in KEYS] for kind in get_args(ev.AnyEvent)
}
"""Fields with fixed keys of each event type."""
