"""`export RUN… --to FORMAT`: writes recordings in the format of another tool."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from esper.cli.options import EXIT_OK, Parser, add_run_argument, check_extra, print_warnings
from esper.cli.streams import print_text
from esper.common.configuration.config import ConfigError
from esper.common.formatting import suggest
from esper.common.system.process import freeze_loaded_objects
from esper.recordings.events import AnyEvent
from esper.recordings.files.runs import resolve_run, safe_run_name, stem_of
from esper.recordings.history.export import TABLE_FORMATS, NamedHistory, Track, export_tables
from esper.recordings.history.history import History, open_history
from esper.recordings.history.tensorboard import export_tensorboard
from esper.recordings.history.wandb_run import export_wandb

UPDATE_INTERVAL_S = 0.1
"""Seconds of reading between two updates of the progress bar."""
_CURVES = {"tensorboard": export_tensorboard, "wandb": export_wandb}
_FORMATS = (*TABLE_FORMATS, *_CURVES)
_PACKAGES = {"parquet": "pyarrow", "tensorboard": "tensorboard", "wandb": "wandb"}
"""Package that a format needs, which its extra installs."""


def run(arguments: Sequence[str]) -> int:
    """Write recordings to a new directory."""
    parser = Parser(
        prog="esper-sanctum export",
        description="Write recordings as tables (CSV or Parquet), or as curves (TensorBoard, or an offline run of W&B)",
    )
    add_run_argument(parser, "RUN", several=True)
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"file format: {', '.join(_FORMATS)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new directory to write to (default: NAME-FORMAT)")
    parser.add_argument("--per-env", action="store_true", help="also write the curves of single envs")
    options = parser.parse_args(arguments)
    if options.to not in _FORMATS:
        raise ConfigError(f"--to {options.to!r} is not a format; {suggest(options.to, _FORMATS)}")
    if options.per_env and options.to not in _CURVES:
        raise ConfigError(f"--per-env is for {' and '.join(_CURVES)}; the tables of {options.to} have all envs")
    if options.to in _PACKAGES:
        check_extra(f"--to {options.to}", options.to, _PACKAGES[options.to])
    paths = [resolve_run(name, options.telemetry_dir) for name in options.runs]
    out = options.out or Path(f"{stem_of(paths[0])}-{options.to}")
    freeze_loaded_objects()
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        recordings = [NamedHistory(_run_name(path, history), history) for path, history in _read_all(paths, progress)]
        [(name, count)] = Counter(run for run, _ in recordings).most_common(1)
        if count > 1:
            raise ConfigError(f"{count} of the recordings are of the run {name}; give each run once")
        if export_curves := _CURVES.get(options.to):
            export = partial(export_curves, per_env=options.per_env)
        else:
            export = partial(export_tables, to=options.to)
        left_out = _export(recordings, export, out, progress)
    print_warnings([*(text for _, history in recordings for text in history.notices), *sorted(left_out or ())])
    events = sum(history.length for _, history in recordings)
    print_text(f"wrote {events:,} events of {', '.join(map(str, paths))} to {out}")
    return EXIT_OK


def _run_name(path: Path, history: History) -> str:
    """Return the recorded name of a run, or that of its file if the recorded one cannot be a file name."""
    started = history.state_at(history.length).started
    return safe_run_name(started and started.run, stem_of(path))


def _read_all(paths: Sequence[Path], progress: Progress) -> Iterator[tuple[Path, History]]:
    """Read recordings, and show the progress."""
    for path in paths:
        task = progress.add_task("reading", total=1.0)
        history = open_history(path, UPDATE_INTERVAL_S)
        while not history.is_fully_read:
            progress.update(task, completed=history.fraction_read)
            history.poll(UPDATE_INTERVAL_S)
        progress.update(task, completed=1.0)
        yield path, history


def _export(
    recordings: Sequence[NamedHistory],
    export: Callable[[Sequence[NamedHistory], Path, Track], set[str] | None],
    out: Path,
    progress: Progress,
) -> set[str] | None:
    """Write recordings to a new directory, show the progress, and return the result. Raises ConfigError."""
    lengths = {run: history.length for run, history in recordings}

    def track(events: Iterator[AnyEvent], run: str) -> Iterable[AnyEvent]:
        return progress.track(events, total=lengths[run], description=f"writing {run}")

    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{out} exists already; choose another directory with --out") from None
    except OSError as error:
        raise ConfigError(f"cannot create directory {out}: {error.strerror}; choose another with --out") from None
    try:
        return export(recordings, out, track)
    except BaseException as error:
        shutil.rmtree(out)  # an incomplete export could be mistaken for a complete one
        if isinstance(error, OSError):
            raise ConfigError(f"cannot write to {out}: {error.strerror}") from None
        raise
