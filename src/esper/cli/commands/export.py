"""`export RUN --to FORMAT`: writes a recording in the format of another tool."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from esper.cli.options import EXIT_OK, Parser, add_run_argument, print_warnings
from esper.config import ConfigError
from esper.formatting import suggest
from esper.history.export import EXPORTERS, ExportError
from esper.history.history import History, open_history
from esper.recording.runs import resolve_run
from esper.telemetry.events import AnyEvent

UPDATE_INTERVAL_S = 0.1
"""Seconds of reading between two updates of the progress bar."""


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
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        history = _read(path, progress)
        _export(history, options.to, out, progress)
    print_warnings(history.notices)
    print(f"wrote {history.length:,} events of {path} to {out}")
    return EXIT_OK


def _read(path: Path, progress: Progress) -> History:
    """Read a recording, and show the progress."""
    task = progress.add_task("reading", total=1.0)
    history = open_history(path, UPDATE_INTERVAL_S)
    while not history.is_fully_read:
        progress.update(task, completed=history.fraction_read)
        history.poll(UPDATE_INTERVAL_S)
    progress.update(task, completed=1.0)
    return history


def _export(history: History, file_format: str, out: Path, progress: Progress) -> None:
    """Write a recording to a new directory, and show the progress. Raises ConfigError."""

    def track(events: Iterator[AnyEvent], name: str) -> Iterable[AnyEvent]:
        return progress.track(events, total=history.length, description=name)

    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot create directory {out}: {error.strerror}; choose another with --out") from None
    try:
        EXPORTERS[file_format](history, out, track)
    except BaseException as error:
        shutil.rmtree(out)  # an incomplete export could be mistaken for a complete one
        if isinstance(error, ExportError):
            raise ConfigError(f"--to {file_format}: {error}") from None
        if isinstance(error, OSError):
            raise ConfigError(f"cannot write to {out}: {error.strerror}") from None
        raise
