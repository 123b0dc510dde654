"""Answers SQL statements by an in-memory DuckDB that reads nothing but the recordings of a telemetry directory.

The tables of a statement are read while it is computed: only the columns that it names, and only the runs that its
condition on `run` leaves. DuckDB passes both to Arrow data sets. A statement cannot open files, load extensions, or
change this configuration.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from esper.common.configuration.config import ConfigError
from esper.recordings.files.runs import list_runs
from esper.recordings.files.segments import ReadError
from esper.recordings.history.arrow import arrow_batch, arrow_schema
from esper.recordings.history.export import BATCH_ROWS
from esper.recordings.history.history import open_history
from esper.recordings.history.run_cache import RunCache, default_run_cache
from esper.recordings.history.run_index import RunIndex
from esper.recordings.history.run_info import UNREADABLE_STATE
from esper.recordings.history.tables import Column, Row
from esper.recordings.query.tables import RECORDING_TABLES, RUN_COLUMNS, VIEWS, RecordingTable

MAX_SECONDS = 30.0
"""Default of the maximum number of seconds of a statement."""
PACKAGES = ("duckdb", "pyarrow")
"""Packages that a query needs; the extra `sql` installs them."""
_CONFIGURATION = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # a name in a statement is never a variable of this program
    "temp_directory": "",  # nothing is moved to a disk
    "memory_limit": "1GB",
}
_FETCHED_ROWS = 1000
"""Number of rows of an answer that are fetched at once."""

ReadRuns = Callable[[Collection[str], Sequence[Column]], Iterator[Any]]
"""Yields record batches of some runs with some columns."""


class QueryResult(NamedTuple):
    """Result of a statement."""

    table: Any
    """Arrow table of the rows."""
    is_truncated: bool
    """True if the statement has further rows, which were left out."""
    problems: Sequence[str]
    """Sentences about runs that were left out, and damaged or missing parts of recordings."""


def answer_query(sql: str, telemetry_dir: Path, *, max_rows: int, max_seconds: float = MAX_SECONDS) -> QueryResult:
    """Answer a SELECT statement about the runs of a telemetry directory, live ones included.

    Args:
        sql: The statement, over `runs`, `candidates`, `effects`, `VIEWS`, and the tables of `export`.
        telemetry_dir: Directory of the runs.
        max_rows: Maximum number of rows of the answer.
        max_seconds: Maximum number of seconds, those for reading recordings included.

    Raises:
        ConfigError: The text is not one SELECT statement, the statement is wrong, or a limit was reached.
        ImportError: A package of `PACKAGES` is not installed.
    """
    if max_rows < 1 or not 0 < max_seconds <= threading.TIMEOUT_MAX:
        raise ConfigError("the maximum number of rows and that of seconds must be above 0")
    if not telemetry_dir.is_dir():
        raise ConfigError(f"directory {telemetry_dir} not found; give that of your runs as the telemetry directory")
    duckdb, lib = import_module("duckdb"), import_module("pyarrow.lib")
    with closing(duckdb.connect(":memory:", config=_CONFIGURATION)) as connection:
        reader = _RunReader(telemetry_dir)
        timer = threading.Timer(max_seconds, lambda: (reader.stop.set(), connection.interrupt()))
        timer.daemon = True
        timer.start()
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise ConfigError("a query is one SELECT statement, without others before or after it")
            for name, (columns, read) in reader.tables().items():
                connection.register(name, _make_dataset(columns, list(reader.runs), read))
            for name, statement in VIEWS.items():
                connection.execute(f"CREATE VIEW {name} AS {statement}")
            connection.execute("SET TimeZone = 'UTC'; SET lock_configuration = true")
            table, is_truncated = _fetch(connection.sql(sql), max_rows)
        except (duckdb.Error, lib.ArrowException, OSError) as error:
            if reader.stop.is_set():
                raise ConfigError(
                    f"the query was stopped after {max_seconds:g} s; ask about fewer runs, or raise the limit"
                ) from None
            raise ConfigError(f"the query failed: {_first_sentence(error)}") from None
        finally:
            timer.cancel()
    return QueryResult(table, is_truncated, list(reader.problems.values()))


def _first_sentence(error: Exception) -> str:
    """Return the message of DuckDB without the lines that quote the statement."""
    text = str(error).partition("\n\nLINE ")[0]
    return " ".join(text.split())


def _fetch(relation: Any, max_rows: int) -> tuple[Any, bool]:
    """Return the first rows of a relation as a table, and True if there are more."""
    pyarrow = import_module("pyarrow")
    batches: list[Any] = []
    count = 0
    with relation.to_arrow_reader(_FETCHED_ROWS) as rows:
        for batch in rows:
            batches.append(batch)
            count += batch.num_rows
            if count > max_rows:
                break
        table = pyarrow.Table.from_batches(batches, rows.schema)
    return _plain_numbers(table.slice(0, max_rows)), count > max_rows


def _plain_numbers(table: Any) -> Any:
    """Return a table without decimals, as which DuckDB returns sums of integers: as integers if they are, else floats.

    An integer of more than 64 bits becomes a float.
    """
    pyarrow = import_module("pyarrow")
    for index, field in enumerate(table.schema):
        if pyarrow.types.is_decimal(field.type):
            column = table.column(index)
            try:
                plain = column.cast(pyarrow.int64())
            except pyarrow.ArrowInvalid:
                plain = column.cast(pyarrow.float64())
            table = table.set_column(index, field.name, plain)
    return table


def _make_dataset(columns: Sequence[Column], runs: Sequence[str], read: ReadRuns) -> Any:
    """Return a data set that reads its columns and runs when DuckDB scans it.

    DuckDB calls `scanner` with the names of the columns and the part of the condition that is an Arrow expression.
    """
    arrow: Any = import_module("pyarrow.dataset")
    local = import_module("pyarrow.fs").LocalFileSystem()

    class RunDataset(arrow.InMemoryDataset):
        def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **options: Any) -> Any:
            condition = str(filter)
            needed = [
                column
                for column in all_columns
                if columns is None or column.name in columns or re.search(rf"\b{re.escape(column.name)}\b", condition)
            ]
            batches = read(self._runs_of(filter), needed)
            return arrow.Scanner.from_batches(
                batches, schema=arrow_schema(needed), columns=columns, filter=filter, **options
            )

        def _runs_of(self, condition: Any) -> Sequence[str]:
            """Return the runs that can have rows under a condition: each is a part of the data set, without rows."""
            if condition is None:
                return runs
            file_format, name = arrow.ParquetFileFormat(), arrow.field("run")
            parts = [
                file_format.make_fragment(str(index), filesystem=local, partition_expression=name == run)
                for index, run in enumerate(runs)
            ]
            found = arrow.FileSystemDataset(parts, self.schema, file_format).get_fragments(condition)
            return [runs[int(part.path)] for part in found]

    all_columns = columns
    return RunDataset(arrow_schema(columns).empty_table())


class _RunReader:
    """Reads the tables of a telemetry directory. DuckDB calls it in its own threads."""

    def __init__(self, telemetry_dir: Path) -> None:
        self.runs: dict[str, Path] = {}
        """Paths of the runs, keyed by name, the one written to last at the end."""
        self.stop = threading.Event()
        """Set when the time is over."""
        self.problems: dict[str, str] = {}
        """Sentences for the user, keyed by themselves."""
        self._telemetry_dir = telemetry_dir
        for path in reversed(list_runs(telemetry_dir)):
            try:
                path.name.encode()
            except UnicodeEncodeError:
                self._leave_out(path.name, "its name is not UTF-8")
            else:
                self.runs[path.name] = path

    def tables(self) -> Mapping[str, tuple[Sequence[Column], ReadRuns]]:
        """Return columns and reader of each table, keyed by its name."""
        return {
            "runs": (RUN_COLUMNS, self._read_index),
            **{table.name: (table.columns, self._reader_of(table)) for table in RECORDING_TABLES},
        }

    def _read_index(self, runs: Collection[str], columns: Sequence[Column]) -> Iterator[Any]:
        """Yield a batch for each run. The information about ended runs is cached, as by the command `runs`."""
        index, wanted = RunIndex(self._telemetry_dir, RunCache(default_run_cache())), set(runs)
        index.poll()
        for info in index.runs:
            if info.run not in wanted:
                continue
            if info.state == UNREADABLE_STATE:
                self._leave_out(info.run, info.problem)
            else:
                yield from self._batches(info.run, columns, lambda info=info: iter([Row(info.run, info)]))

    def _reader_of(self, table: RecordingTable) -> ReadRuns:
        def read(runs: Collection[str], columns: Sequence[Column]) -> Iterator[Any]:
            for run in runs:
                yield from self._batches(run, columns, lambda run=run: self._rows(table, run))

        return read

    def _rows(self, table: RecordingTable, run: str) -> Iterator[Row]:
        history = open_history(self.runs[run])
        for notice in history.notices:
            self._tell(f"{run}: {notice}")
        yield from table.read(history, run)

    def _batches(self, run: str, columns: Sequence[Column], read: Callable[[], Iterator[Row]]) -> list[Any]:
        """Return the rows of a run as batches; none if it cannot be read, which is then a problem."""
        if self.stop.is_set():
            raise TimeoutError
        batches: list[Any] = []
        try:
            rows = read()
            while some := list(islice(rows, BATCH_ROWS)):
                batches.append(arrow_batch(columns, some))
        except (ReadError, ConfigError, OSError, ValueError, TypeError, OverflowError) as error:
            self._leave_out(run, error)
            return []
        return batches

    def _leave_out(self, run: str, reason: object) -> None:
        self._tell(f"{run} cannot be read, and is left out: {reason}")

    def _tell(self, text: str) -> None:
        self.problems[text] = text
