"""`export RUN --to FORMAT`: writes a recording in the format of another tool."""

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
    """Write a recording to a new directory."""
    parser = Parser(
        prog="esper-sanctum export",
        description="Write a recording as CSV or Parquet (one file per event type), or as TensorBoard curves",
    )
    add_run_argument(parser, "RUN")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"file format: {', '.join(EXPORTERS)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new directory to write to (default: NAME-FORMAT)")
    options = parser.parse_args(arguments)
    if options.to not in EXPORTERS:
        raise ConfigError(f"--to {options.to!r} is not a format: {suggest(options.to, EXPORTERS)}")
    path = resolve_run(options.run, options.telemetry_dir)
    out = options.out or Path(f"{path.resolve().name.partition('.')[0]}-{options.to}")
    history = open_history(path)
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot create directory {out}: {error.strerror}; choose another with --out") from None
    try:
        EXPORTERS[options.to](history, out)
    except BaseException as error:
        shutil.rmtree(out)  # an incomplete export could be mistaken for a complete one
        if isinstance(error, ExportError):
            raise ConfigError(f"--to {options.to}: {error}") from None
        if isinstance(error, OSError):
            raise ConfigError(f"cannot write to {out}: {error.strerror}") from None
        raise
    print_warnings(history.notices)
    print(f"wrote {history.length:,} events of {path} to {out}")
    return EXIT_OK
