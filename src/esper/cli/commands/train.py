"""`esper-sanctum [options]`: trains a run with the dashboard, headless, or in a detached background process."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import msgspec

from esper.checkpoint.catalog import find_checkpoint, run_directory_of
from esper.checkpoint.manifest import (
    CheckpointError,
    check_compatible,
    config_from_manifest,
    read_manifest,
    read_verified_files,
)
from esper.cli.commands import COMMANDS
from esper.cli.dashboard import (
    DEFAULT_THEME,
    DisplayOptions,
    add_screen_options,
    check_terminal,
    check_theme,
    show_dashboard,
)
from esper.cli.options import (
    EXIT_FAILED,
    EXIT_OK,
    NarrationDetail,
    Parser,
    add_accept_changed_task_option,
    add_run_options,
    check_own_code_is_named,
    given_options,
    print_usage_error,
)
from esper.cli.streams import CLOSED_ERRNOS, FROZEN_AFTER_S, discard_broken_output, is_frozen
from esper.config import Config, ConfigError
from esper.config_files import read_config_file, resolve_config
from esper.control import RequestKind
from esper.domain import VERSION
from esper.engine.start_checks import check_start
from esper.process import NamedThread, RankInfo
from esper.recording.run_lock import LockHolder, read_holder
from esper.recording.runs import list_runs, resolve_run
from esper.tasks import is_own_task, with_task_settings

if TYPE_CHECKING:
    from esper.engine.thread import EngineThread
    from esper.telemetry.state import RunState


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_DEBOUNCE_S = 0.5
"""Repeated signals within this time count as one: `timeout` signals both the process and its group."""
TERMINATING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process by default."""
START_POLL_S = 0.1
"""Seconds between checks whether the detached run has started."""
OUTPUT_LOG = "output.log"
"""File in the run directory that receives the output of a detached run; `output-2.log` and so on if it exists."""


def run_training(arguments: Sequence[str]) -> int:
    """Train a run, with the dashboard or without, and return the exit code."""
    options = vars(_train_parser().parse_args(arguments))
    file, resume, detach = (options.pop(name) for name in ("config", "resume", "detach"))
    accept_changed_task: bool = options.pop("accept_changed_task")
    display = DisplayOptions.from_options(options)
    narrate: NarrationDetail | None = options.pop("narrate")
    headless = options.pop("no_tui") or narrate is not None
    on_alert = options.pop("on_alert")
    config, checkpoint = _resolve_config_and_checkpoint(file, resume, given_options(options))
    rank_info = RankInfo.from_environment()
    workers = check_start(config, rank_info, is_new=checkpoint is None)
    alert_words = _split_alert_command(on_alert) if on_alert is not None else None
    if detach:
        telemetry_dir = run_directory_of(checkpoint).parent if checkpoint else Path(config.telemetry_dir)
        return start_detached(arguments, telemetry_dir, display=display, headless=headless)

    if headless and display.theme != DEFAULT_THEME:
        check_theme(display.theme)

    from esper.engine.thread import EngineThread

    engine = EngineThread(
        config, checkpoint, workers=workers, interactive=not headless, accept_changed_task=accept_changed_task
    )
    if rank_info.rank > 0:  # only rank 0 prints or shows the run
        with open(os.devnull, "w") as devnull:
            state = _run_headless(engine, devnull, narrate=narrate)
    else:
        with _alert_commands(alert_words, engine):
            state = _run_headless(engine, sys.stdout, narrate=narrate) if headless else _run_dashboard(engine, display)
    if engine.fatal_error:
        return print_usage_error(engine.fatal_error)
    if engine.run_error:
        print(engine.run_error, file=sys.stderr)
        return EXIT_FAILED
    from esper.cli.console import format_summary

    if rank_info.rank == 0 and not narrate:
        print(format_summary(state))
    return EXIT_OK


def _split_alert_command(command: str) -> list[str]:
    from esper.cli.alerts import split_alert_command  # few runs have such a command

    return split_alert_command(command)


def _alert_commands(words: list[str] | None, engine: EngineThread) -> AbstractContextManager[object]:
    """Return a context in which the command of `--on-alert`, if there is one, is run for each anomaly."""
    if words is None:
        return nullcontext()
    from esper.cli.alerts import AlertCommands

    return AlertCommands(words, engine)


def _resolve_config_and_checkpoint(
    file: Path | None, resume: str | None, options: dict[str, Any]
) -> tuple[Config, Path | None]:
    """Return the configuration of the run, and the checkpoint to resume from, which `--resume` names.

    Raises:
        ConfigError: The configuration is invalid, or the run has no rounds left.
        CheckpointError: The checkpoint is damaged, or does not fit the configuration.
        ReadError: The run does not exist.
    """
    if resume is None:
        return resolve_config(file, options), None
    table = read_config_file(file)
    telemetry_dir = Path(resolve_config(file, options, table=table).telemetry_dir)
    options.pop("telemetry_dir", None)  # used for the lookup only: a run resumes in its own directory
    checkpoint = find_checkpoint(resolve_run(resume, telemetry_dir))
    run = run_directory_of(checkpoint)
    try:
        manifest = read_manifest(checkpoint)
        saved = config_from_manifest(manifest, checkpoint)
        read_verified_files(checkpoint, manifest)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; list intact checkpoints with `esper-sanctum checkpoints {run}`") from None
    config = resolve_config(file, options, base=msgspec.to_builtins(saved), table=table)
    check_own_code_is_named(manifest.origin, saved, resume, {*options, *table})
    # The name of a task that is the user's code is known only once it is imported; the engine compares it then.
    compared = msgspec.structs.replace(config, task=saved.task) if is_own_task(config.task) else config
    check_compatible(with_task_settings(saved), with_task_settings(compared), checkpoint)
    if manifest.round >= config.rounds:
        raise ConfigError(
            f"{resume} has finished all of its {manifest.round} rounds; train more with --rounds N, "
            f"N > {manifest.round}"
        )
    return config, checkpoint


def _run_headless(engine: EngineThread, stream: TextIO, *, narrate: NarrationDetail | None) -> RunState:
    """Train and print to a stream until the run has ended; return its last state."""
    from esper.cli.console import Narrator, RunPrinter, drain
    from esper.telemetry.state import RunState

    def stop() -> None:
        engine.control.put(RequestKind.STOP, "signal")
        NamedThread(
            target=_exit_when_terminal_frozen, args=(engine, stream), name="frozen-terminal", daemon=True
        ).start()

    state = RunState()
    with _StopSignals(stop):
        engine.start()
        try:
            printer = Narrator(stream, narrate) if narrate else RunPrinter(stream)
            state = printer.run(drain(engine.records, lambda: engine.is_engine_alive))
        except OSError as error:  # the pipe or terminal was closed, or the disk is full: write a checkpoint and stop
            engine.control.put(RequestKind.STOP, "signal")
            engine.join()
            if error.errno not in CLOSED_ERRNOS:
                raise
            discard_broken_output()
        engine.join()
    return state


def _exit_when_terminal_frozen(engine: EngineThread, stream: TextIO) -> None:
    """Wait until the engine has ended, then exit the process once its terminal is frozen, which blocks the printer."""
    engine.join()
    while not is_frozen(stream):
        time.sleep(FROZEN_AFTER_S)
    os._exit(EXIT_FAILED if engine.run_error or engine.fatal_error else EXIT_OK)


def _run_dashboard(engine: EngineThread, display: DisplayOptions) -> RunState:
    """Train and show the dashboard until the run has ended; return its last state."""
    from esper.sanctum.source import LiveSource

    source = LiveSource(engine)
    requests = source.requests

    def save_and_stop() -> None:
        """Stop the engine with a checkpoint and wait for it, whatever ended the dashboard."""
        signals.stop_requested = requests.stop_requested
        if not requests.stop_requested:
            requests.ask(RequestKind.STOP, origin="dashboard")
        engine.join()

    with _StopSignals(lambda: requests.ask(RequestKind.STOP, origin="signal")) as signals:
        try:
            code = show_dashboard(source, display)
        except OSError:
            save_and_stop()
            raise
        if code in {EXIT_OK, EXIT_FAILED}:
            save_and_stop()
        if code:
            raise SystemExit(code)
    source.tick(0.0)
    return source.live_state


class _StopSignals:
    """Context in which the first SIGINT, SIGTERM or SIGHUP stops the run with a checkpoint, and a second exits.

    The second signal raises SystemExit, so that the dashboard can restore the terminal; leaving the context then exits
    the process without waiting for the engine's threads. SIGHUP never counts as second: closing a terminal sends it,
    often twice, because the shell forwards it. Neither does a signal within `SIGNAL_DEBOUNCE_S` of the first.

    Args:
        request_stop: Requests a checkpoint and the end of the run.
    """

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self._request_stop = request_stop
        self._first_signal_at = -math.inf
        """Time of the first signal, in seconds of the monotonic clock."""
        self.stop_requested = False
        """True if a stop was requested, by a signal or otherwise, so that the next signal counts as second."""

    def __enter__(self) -> _StopSignals:
        # A run started by nohup ignores SIGHUP, and must outlive its terminal.
        handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            os._exit(error.code)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self.stop_requested:
            self.stop_requested, self._first_signal_at = True, time.monotonic()
            self._request_stop()
        elif number != signal.SIGHUP and time.monotonic() > self._first_signal_at + SIGNAL_DEBOUNCE_S:
            raise SystemExit(128 + number)


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
        help="resume from a checkpoint or from a run's newest one (checkpoint path, run name, run path, or last)",
    )
    add_accept_changed_task_option(parser)
    add_screen_options(parser)
    parser.add_argument(
        "--on-alert",
        metavar="COMMAND",
        help="run this command for each new anomaly, with one JSON object on its standard input",
    )
    parser.add_argument(
        "--detach", action="store_true", help="train in a background process that outlives the dashboard"
    )
    return parser


def start_detached(arguments: Sequence[str], telemetry_dir: Path, *, display: DisplayOptions, headless: bool) -> int:
    """Start a run in a background process, wait until it trains, show it, and return the exit code.

    If the process ends before it trains, its output and exit code become those of this process.

    Args:
        arguments: Valid arguments of the program.
        telemetry_dir: Parent of the run directory.
        display: Appearance and notifications of the dashboard.
        headless: Print the run directory instead of opening the dashboard.

    Raises:
        ConfigError: The process runs under torchrun, there is no terminal for the dashboard, or the telemetry
            directory cannot be created.
    """
    if RankInfo.from_environment().world_size > 1:
        raise ConfigError("--detach cannot be used under torchrun; start torchrun itself in the background")
    if not headless:
        check_terminal(display.theme)
    created = _create_parents(telemetry_dir)
    output = telemetry_dir / f"starting-{time.time_ns()}.log"
    process = _spawn(arguments, output)
    directory = None
    previous_handlers = {
        number: signal.signal(number, _exit_on_signal)
        for number in TERMINATING_SIGNALS
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        while directory is None and process.poll() is None:
            time.sleep(START_POLL_S)
            directory = _find_run_directory(process.pid, telemetry_dir, output)
        directory = directory or _find_run_directory(process.pid, telemetry_dir, output)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        if directory is None:
            sys.stderr.write(output.read_text(errors="replace"))
            output.unlink()
            _remove_empty(created)
    if directory is None:
        return process.returncode
    output.rename(_unused_log_path(directory))
    print(f"{directory.name} is training in process {process.pid}", file=sys.stderr)
    if headless:
        print(directory)
        return EXIT_OK
    from esper.cli.commands.attach import show_live_run  # imported here to keep other runs' start-up fast

    return show_live_run(directory, display=display, read_only=False)


def _exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    """Raise SystemExit, so that `start_detached` first ends the process that it has started."""
    raise SystemExit(128 + number)


def _spawn(arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a headless run in a new session, which signals of this terminal do not reach."""
    options = [word for word in arguments if word not in {"--detach", "--no-tui"}]
    # -P: do not import modules from the working directory.
    command = [sys.executable, "-P", "-m", "esper", *options, "--no-tui"]
    with output.open("xb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


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
        raise ConfigError(f"cannot record to {directory}: {error.strerror}") from error
    return missing


def _remove_empty(directories: Sequence[Path]) -> None:
    """Remove directories, in order, up to the first that is not empty."""
    for directory in directories:
        if any(directory.iterdir()):
            return
        directory.rmdir()


def _unused_log_path(directory: Path) -> Path:
    path, number = directory / OUTPUT_LOG, 2
    while path.exists():
        path, number = directory / f"output-{number}.log", number + 1
    return path
