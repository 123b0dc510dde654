"""Tables and views of a query: those of `export`, and runs, candidates and effects, whose columns are struct fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from esper.common.configuration.config import Config
from esper.common.decisions import describe_decision
from esper.recordings.candidates.candidates import Candidate
from esper.recordings.effects.plantings import read_results
from esper.recordings.effects.store import EffectStore
from esper.recordings.history.history import History
from esper.recordings.history.measures import listed_measures
from esper.recordings.history.run_info import RunInfo
from esper.recordings.history.tables import (
    RUN,
    SCALARS,
    TABLES,
    Column,
    ColumnType,
    Row,
    Table,
    Values,
    columns_of,
    event_rows,
    measured_type,
)
from esper.recordings.state.series import decision_of


class KnownEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A decision whose effect was computed: the recorded episode minus the one without it."""

    round: int
    env: int
    step: int
    decision: str
    """The decision in words."""
    op: str
    slot: str | None
    blueprint: str | None
    net_return: float
    """Effect on the net return; that of a planting includes all later decisions about its seed."""
    score: float
    """Effect on the final validation score."""
    parameter_ratio: float
    """Effect on the parameters at the end, relative to those of the bare host."""
    exact: bool
    """True if every recorded value of the episode was reproduced; else the effect is approximate."""
    whole: bool
    """True if the episode had ended, and was simulated to its end."""


def _setting_columns(kind: type[msgspec.Struct] = Config, prefix: str = "") -> Iterator[Column]:
    """Yield a column for each configuration key. A value of another type, of another version, is None."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        key = prefix + field.encode_name
        match measured_type(field.type):
            case inspect.StructType(cls=table):
                yield from _setting_columns(table, f"{key}.")
            case inspect.VarTupleType():
                yield _setting_column(key, ColumnType.TEXTS)
            case scalar:
                yield _setting_column(key, SCALARS[type(scalar)])


_TYPES: Mapping[ColumnType, Any] = {
    ColumnType.TEXT: str,
    ColumnType.TEXTS: list,
    ColumnType.INTEGER: int,
    ColumnType.NUMBER: int | float,
    ColumnType.FLAG: bool,
}
"""Type in a recorded configuration, keyed by that of the column."""


def _setting_column(key: str, kind: ColumnType) -> Column:
    def values(rows: Sequence[Row]) -> list[Any]:
        found = [row.event.config.get(key) for row in rows]
        return [value if isinstance(value, _TYPES[kind]) else None for value in found]

    return Column(key.replace(".", "_").replace("-", "_"), kind, values)


def _measure(key: str) -> Values:
    return lambda rows: [row.event.measures.get(key) for row in rows]


def _run_columns() -> list[Column]:
    """Return the columns of runs: the fields of `RunInfo`, the measures that lists have, and the settings."""
    columns = [column for column in columns_of(RunInfo) if column.name not in ("run", "measures")]
    columns += [Column(key, ColumnType.NUMBER, _measure(key)) for key in listed_measures()]
    taken = {column.name for column in columns}
    return [RUN, *columns, *(column for column in _setting_columns() if column.name not in taken)]


def _read_candidates(history: History, run: str) -> Iterator[Row]:
    search = history.state_at(history.length).search
    return (Row(run, candidate) for candidate in (search.candidates if search else ()))


def _read_effects(history: History, run: str) -> Iterator[Row]:
    """Yield a row for each decision whose effect is stored. Raises OSError if the stored results cannot be read."""
    stored = EffectStore(history.path).read()
    for results in chain.from_iterable(of_round.results for of_round in read_results(history, stored)):
        episode = results.episode
        for step, worth in results.decision_effects().items():
            decision = decision_of(episode.steps[step - 1])
            effect = KnownEffect(
                round=episode.round,
                env=episode.env,
                step=step,
                decision=describe_decision(decision),
                op=decision.op,
                slot=decision.slot,
                blueprint=decision.blueprint,
                net_return=worth.net_return,
                score=worth.score,
                parameter_ratio=worth.parameter_ratio,
                exact=results.is_exact,
                whole=results.is_whole,
            )
            yield Row(run, effect)


class RecordingTable(NamedTuple):
    """A table whose rows are read from the recording of each run."""

    name: str
    columns: Sequence[Column]
    read: Callable[[History, str], Iterator[Row]]
    """Returns the rows of a recording and the name of its run. Raises ReadError and OSError."""


RUN_COLUMNS = _run_columns()
"""Columns of the table `runs`."""
RECORDING_TABLES = (
    *(RecordingTable(table.name, table.columns, partial(event_rows, table)) for table in TABLES),
    RecordingTable("candidates", [RUN, *columns_of(Candidate)], _read_candidates),
    RecordingTable("effects", [RUN, *columns_of(KnownEffect)], _read_effects),
)
"""All other tables."""


def _decision_columns(table: Table) -> str:
    """Return the columns of decisions among those of `EnvStepped`, for SQL."""
    keys = ("run", "seq", "time", "round", "step", "env", "op", "target", "value")
    return ", ".join(
        column.name for column in table.columns if column.name in keys or column.name.startswith(("op_", "decision_"))
    )


_TABLES = {table.name: table for table in TABLES}
VIEWS: Mapping[str, str] = {
    "steps": "SELECT * FROM EnvStepped",
    "decisions": f"SELECT {_decision_columns(_TABLES['EnvStepped'])} FROM EnvStepped",
    "slots": "SELECT * FROM SlotReading",
    "updates": "SELECT * FROM PolicyUpdated",
    "anomalies": "SELECT * FROM AnomalyFound",
}
"""Statement of each view, keyed by its name."""
