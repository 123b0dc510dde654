"""`export RUN --to FORMAT`: a recording in the format of another tool."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from esper.cli.options import EXIT_OK, Parser, add_run_argument, print_warnings
from esper.config import ConfigError
from esper.formatting import suggest
from esper.history.export import EXPORTERS, ExportError
from esper.history.history import open_history
from esper.recording.runs import resolve_run


def run(arguments: Sequence[str]) -> int:
    """Write it."""
    parser = Parser(
        prog="esper-sanctum export",
        description="Write a recording as CSV or Parquet, a file for each type of event, or as curves for TensorBoard.",
    )
    add_run_argument(parser, "RUN")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"one of: {', '.join(EXPORTERS)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new directory (default: the run's name and FORMAT)")
    chosen = parser.parse_args(arguments)
    if chosen.to not in EXPORTERS:
        raise ConfigError(f"--to {chosen.to!r} is no format: {suggest(chosen.to, EXPORTERS)}")
    path = resolve_run(chosen.run, chosen.telemetry_dir)
    out = chosen.out or Path(f"{path.resolve().name.partition('.')[0]}-{chosen.to}")
    history = open_history(path)
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {out}: {error.strerror}; choose another with --out") from None
    try:
        EXPORTERS[chosen.to](history, out)
    except BaseException as error:
        shutil.rmtree(out)  # half an export looks like a whole one
        if isinstance(error, ExportError):
            raise ConfigError(f"--to {chosen.to}: {error}") from None
        if isinstance(error, OSError):
            raise ConfigError(f"cannot write to {out}: {error.strerror}") from None
        raise
    print_warnings(history.notices)
    print(f"{history.length:,} events of {path} are in {out}")
    return EXIT_OK
