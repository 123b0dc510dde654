"""SQL over all runs of a telemetry directory, for Python sessions. Importing this module needs no torch."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esper.api.recorded_run import find_frame_library
from esper.common.formatting import install_command
from esper.common.user_code.references import with_short_errors
from esper.recordings.query.database import MAX_SECONDS, PACKAGES, answer_query


@with_short_errors
def query(
    sql: str,
    telemetry_dir: str | Path = "telemetry",
    *,
    max_rows: int = 1_000_000,
    max_seconds: float = MAX_SECONDS,
) -> Any:
    """Answer a SELECT statement of SQL about all runs of a directory, as `esper-sanctum query` does.

    A warning names rows beyond the limit, and runs that were left out because they cannot be read.

    Args:
        sql: Statement over `runs`, `steps`, `decisions`, `slots`, `updates`, `anomalies`, `candidates`, `effects`, and
            the tables of `export`, such as `EnvStepped`.
        telemetry_dir: Directory of the runs, live ones included.
        max_rows: Maximum number of rows.
        max_seconds: Maximum number of seconds, with those for reading the recordings.

    Returns:
        Data frame of polars or pandas, whichever is installed, with the types of `RecordedRun.table`.

    Raises:
        ConfigError: The text is not one SELECT statement, the statement is wrong, or the time was over.
        ImportError: DuckDB, pyarrow, or a library of data frames is not installed.
    """
    library = find_frame_library()
    for package in PACKAGES:
        if find_spec(package) is None:
            raise ImportError(f"esper.query needs {package}: run `{install_command('sql')}` in the checkout")
    answer = answer_query(sql, Path(telemetry_dir), max_rows=max_rows, max_seconds=max_seconds)
    if answer.is_truncated:
        warnings.warn(f"only the first {max_rows:,} rows are returned; see max_rows", stacklevel=3)
    for problem in answer.problems:
        warnings.warn(problem, stacklevel=3)
    frames: Any = import_module(library)
    if library == "polars":
        return frames.from_arrow(answer.table)
    pyarrow = import_module("pyarrow")
    types = {pyarrow.string(): frames.StringDtype(), pyarrow.int64(): frames.Int64Dtype()}
    return answer.table.to_pandas(types_mapper={**types, pyarrow.bool_(): frames.BooleanDtype()}.get)
