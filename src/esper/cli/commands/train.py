"""`esper-sanctum [options]`: trains a run with the dashboard, headless, or in a detached background process."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from esper.cli.commands import COMMANDS
from esper.cli.dashboard import (
    DisplayOptions,
    add_screen_options,
    check_terminal,
)
from esper.cli.options import (
    EXIT_OK,
    NarrationDetail,
    Parser,
    add_accept_changed_task_option,
    add_run_options,
    check_extra,
    given_options,
    print_warnings,
)
from esper.cli.run_display import print_ending, run_headless, run_in_dashboard, run_silently
from esper.cli.start_point import AUTO, decide_start, resolve_start
from esper.cli.streams import print_text
from esper.common.configuration.config import ConfigError
from esper.common.domain import VERSION
from esper.common.system.process import RankInfo, spawn_program
from esper.common.system.stop_signals import replace_handlers, restore_handlers
from esper.recordings.files.notes import RunNotes, encode_notes
from esper.recordings.files.run_lock import LockHolder, read_holder
from esper.recordings.files.runs import LAST_ALIAS, list_runs, move_output
from esper.training.engine.start_point import RunCompleteError, RunOptions, StartPoint

if TYPE_CHECKING:
    from esper.training.engine.thread import EngineThread

    _Follower: TypeAlias = Callable[[EngineThread], AbstractContextManager[object]]


_LOCK_OPTION = "--inherited-lock"
"""Option with the file descriptor of a lock that the parent process has handed over; `--detach` sets it."""
START_POLL_S = 0.1
"""Seconds between checks whether the detached run has started."""


def run_training(arguments: Sequence[str]) -> int:
    """Train a run, with the dashboard or without, and return the exit code."""
    options = _train_parser().parse_args(arguments)
    display = DisplayOptions.from_options(options)
    notes = _notes_from_options(options)
    headless = options.no_tui or options.narrate is not None
    rank_info = RankInfo.from_environment()
    decide = partial(resolve_start, options.config, options.resume, given_options(options), notes)
    first = partial(decide, inherited_lock=options.inherited_lock)
    start, workers = decide_start(first, rank_info, is_resuming=options.resume is not None)
    followers = _followers(options.on_alert, tensorboard=options.tensorboard)
    if isinstance(start, RunCompleteError) and rank_info.world_size == 1:
        print_text(str(start))
        return EXIT_OK
    task = start.config.task if isinstance(start, StartPoint) else ""
    if options.detach:
        if rank_info.world_size > 1 or not isinstance(start, StartPoint):
            raise ConfigError("--detach cannot be used under torchrun; start torchrun itself in the background")
        return start_detached(arguments, start, display=display, headless=headless)

    from esper.training.engine.thread import EngineThread

    run_options = RunOptions(interactive=not headless, accept_changed_task=options.accept_changed_task, notes=notes)
    restart = None if options.resume == AUTO else partial(decide, restarted=True)
    engine = EngineThread(start, run_options, restart=restart, workers=workers)
    narrate: NarrationDetail | None = options.narrate
    if rank_info.rank > 0:
        run_silently(engine)
        return print_ending(engine)
    with ExitStack() as contexts:
        for follow in followers:
            contexts.enter_context(follow(engine))
        if headless:
            state = run_headless(engine, sys.stdout, narrate=narrate)
        else:
            state = run_in_dashboard(engine, display, task)
    print_warnings(engine.warnings)  # of the last moments, which the run could not log any more
    if code := print_ending(engine):
        return code
    if engine.ending and engine.ending.kind == "complete":
        print_text(engine.ending.text)
        return EXIT_OK
    from esper.cli.console import format_summary

    if not narrate:
        print_text(format_summary(state))
    return EXIT_OK


def _followers(on_alert: str | None, *, tensorboard: bool) -> list[_Follower]:
    """Check the options, and return what follows the run in threads. Few runs have any, so nothing is imported before.

    Raises:
        ConfigError: The command of `--on-alert` is invalid, or tensorboard is not installed.
    """
    followers: list[_Follower] = []
    if on_alert is not None:
        from esper.cli.alerts import AlertCommands, split_alert_command

        followers.append(partial(AlertCommands, split_alert_command(on_alert)))
    if tensorboard:
        check_extra("--tensorboard", "tensorboard", "tensorboard")
        from esper.cli.live_curves import LiveCurves

        followers.append(LiveCurves)
    return followers


def _train_parser() -> Parser:
    """Return the parser of the default command: options of the run, the dashboard and the program."""
    parser = Parser(
        commands=COMMANDS,
        prog="esper-sanctum",
        description="Train a population of growing networks and watch it in a dashboard",
        epilog=f"Other commands (each has --help): {', '.join(COMMANDS)}.",
    )
    parser.add_argument("--version", action="version", version=f"esper-sanctum {VERSION}")
    add_run_options(parser)
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="resume from a checkpoint or from a run's newest one (checkpoint path, run name, run path, or last); "
        "auto: continue the run that this command began (that of --name, or the newest unfinished one with the same "
        "settings), else begin it (default after a restart by torchrun: auto)",
    )
    add_accept_changed_task_option(parser)
    _add_notes_options(parser)
    add_screen_options(parser)
    parser.add_argument(
        "--on-alert",
        metavar="COMMAND",
        help="run this command for each new anomaly, with one JSON object on its standard input",
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write curves for TensorBoard, to RUN/tensorboard"
    )
    parser.add_argument(
        "--detach", action="store_true", help="train in a background process that outlives the dashboard"
    )
    parser.add_argument(_LOCK_OPTION, metavar="DESCRIPTOR", type=int, help=argparse.SUPPRESS)
    return parser


def _add_notes_options(parser: Parser) -> None:
    """Add the options whose values are stored as notes on the run."""
    parser.add_argument("--name", metavar="TEXT", help="name of the run in lists; commands accept it as RUN")
    parser.add_argument(
        "--tag", action="append", metavar="TAG", help="tag of the run, one word; give the option again for more tags"
    )
    parser.add_argument("--note", metavar="TEXT", help="text about the run")
    for option, metavar, kind in (("--study", "STUDY", str), ("--trial", "N", int)):  # a sweep sets both
        parser.add_argument(option, metavar=metavar, type=kind, help=argparse.SUPPRESS)


def _notes_from_options(options: argparse.Namespace) -> RunNotes | None:
    """Return the notes that the user gave; None if none were given.

    Raises:
        ConfigError: An option is empty, a tag has spaces, the notes are too long, or only one of --study and --trial is
            given.
    """
    tags: list[str] = options.tag or []
    texts = {"--name": options.name, "--note": options.note, "--study": options.study}
    for option, text in [*texts.items(), *(("--tag", tag) for tag in tags)]:
        if text is not None and not text.strip():
            raise ConfigError(f"{option} is empty; give a text or remove the option")
    if options.name in (AUTO, LAST_ALIAS):
        raise ConfigError(
            f"--name {options.name} would be ambiguous: commands use this word for other runs; give another name"
        )
    for tag in tags:
        if tag.split() != [tag]:
            raise ConfigError(f"--tag {tag!r} has spaces; a tag is one word: --tag {' --tag '.join(tag.split())}")
    if (options.study is None) != (options.trial is None):
        raise ConfigError("--study and --trial belong together; give both or neither")
    notes = RunNotes(
        name=options.name or "",
        tags=tuple(dict.fromkeys(tags)),
        note=options.note or "",
        study=options.study or "",
        trial=options.trial,
    )
    try:
        encode_notes(notes)
    except OSError as error:
        raise ConfigError(f"--note is too long: {error.strerror}") from None
    return notes if notes != RunNotes() else None


def start_detached(arguments: Sequence[str], start: StartPoint, *, display: DisplayOptions, headless: bool) -> int:
    """Start a run in a background process, wait until it trains, show it, and return the exit code.

    If the process ends before it trains, its output and exit code become those of this process.

    Args:
        arguments: Valid arguments of the program.
        start: Where the run starts. The lock of a resumed run is handed over to the process.
        display: Appearance and notifications of the dashboard.
        headless: Print the run directory instead of opening the dashboard.

    Raises:
        ConfigError: There is no terminal for the dashboard, or the telemetry directory cannot be created.
    """
    if not headless:
        check_terminal(display.theme)
    lock = start.lock
    telemetry_dir = lock.directory.path.parent if lock else Path(start.config.telemetry_dir)
    created = _create_parents(telemetry_dir)
    output = telemetry_dir / f"starting-{time.time_ns()}.log"
    directory = None
    with _received_signals() as received:
        print_text("starting a background process, which loads torch first; Ctrl+C cancels", sys.stderr)
        try:
            options = [word for word in arguments if word not in {"--detach", "--no-tui"}]
            inherited = [lock.file] if lock else []
            words = [f"{_LOCK_OPTION}={descriptor}" for descriptor in inherited]
            process = spawn_program([*options, "--no-tui", *words], output, *inherited)
            if lock:
                lock.release()  # else the run would stay locked if the process ends
        except OSError:
            _remove_output(output, created)
            raise
        try:
            while directory is None and not received and process.poll() is None:
                time.sleep(START_POLL_S)
                directory = _find_run_directory(process.pid, telemetry_dir, output)
            directory = directory or _find_run_directory(process.pid, telemetry_dir, output)
            if directory:
                move_output(output, directory)
        finally:
            if received or not directory:
                process.terminate()
                process.wait()
            if not directory:
                sys.stderr.write(output.read_text(errors="replace"))
                _remove_output(output, created)
    if received:
        raise SystemExit(128 + received[0])
    if directory is None:
        return process.returncode
    print_text(f"{directory.name} is training in process {process.pid}", sys.stderr)
    if headless:
        print_text(str(directory))
        return EXIT_OK
    from esper.cli.commands.attach import show_live_run  # imported here to keep other runs' start-up fast

    return show_live_run(directory, display=display, read_only=False, task=start.config.task)


@contextmanager
def _received_signals() -> Generator[list[int]]:
    """Collect the signals that stop a run, instead of obeying them.

    A handler that raises an exception would leave a process running if the signal arrives while `Popen` starts it.
    """
    received: list[int] = []
    previous_handlers = replace_handlers(lambda number, _: received.append(number))
    try:
        yield received
    finally:
        restore_handlers(previous_handlers)


def _find_run_directory(pid: int, telemetry_dir: Path, output: Path) -> Path | None:
    """Return the directory of the run that a process trains; None until the process has printed its first line."""
    printed = output.read_text(errors="replace")
    for run in list_runs(telemetry_dir):
        if read_holder(run) == LockHolder(pid=pid, host=socket.gethostname()) and f"run {run.name}: " in printed:
            return run
    return None


def _create_parents(directory: Path) -> list[Path]:
    """Create a directory and its parents, and return the created ones, the innermost first. Raises ConfigError."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot record to {directory}: {error.strerror}; give another --telemetry-dir") from error
    return missing


def _remove_output(output: Path, directories: Sequence[Path]) -> None:
    """Remove the output of a process that did not train, then directories, up to the first that is not empty."""
    output.unlink(missing_ok=True)
    for directory in directories:
        if any(directory.iterdir()):
            return
        directory.rmdir()
