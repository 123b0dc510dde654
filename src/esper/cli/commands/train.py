"""`esper-sanctum [options]`: train, with dashboard, headless or detached."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
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
from esper.cli.options import EXIT_FAILED, EXIT_OK, Parser, add_run_options, given_options, print_usage_error
from esper.cli.streams import CLOSED_ERRNOS, FROZEN_AFTER_S, discard_broken_output, is_frozen
from esper.config import Config, ConfigError
from esper.config_files import read_config_file, resolve_config
from esper.control import RequestKind
from esper.domain import VERSION
from esper.process import RankInfo
from esper.recording.run_lock import LockHolder, read_holder
from esper.recording.runs import list_runs, resolve_run
from esper.tasks import check_task_name, with_task_settings

if TYPE_CHECKING:
    from esper.engine.thread import EngineThread
    from esper.telemetry.state import RunState


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_DEBOUNCE_S = 0.5
"""Seconds after a signal within which another is the same: nobody is impatient so soon."""


def run_training(arguments: Sequence[str]) -> int:
    """`esper-sanctum [options]`: train, with the dashboard or without."""
    chosen = vars(_train_parser().parse_args(arguments))
    file, resume, detach = (chosen.pop(name) for name in ("config", "resume", "detach"))
    look, narrate = DisplayOptions.from_options(chosen), chosen.pop("narrate")
    headless = chosen.pop("no_tui") or narrate
    config, checkpoint = _resolve_config_and_checkpoint(file, resume, given_options(chosen))
    check_task_name(config.task)
    if detach:
        telemetry_dir = run_directory_of(checkpoint).parent if checkpoint else Path(config.telemetry_dir)
        return start_detached(arguments, telemetry_dir, look=look, headless=headless)

    if headless and look.theme != DEFAULT_THEME:
        check_theme(look.theme)

    from esper.engine.thread import EngineThread

    place = RankInfo.from_environment()
    engine = EngineThread(config, checkpoint, interactive=not headless)
    if place.rank > 0:  # rank 0 shows the run
        with open(os.devnull, "w") as nobody:
            state = _run_headless(engine, nobody, narrate=narrate)
    elif headless:
        state = _run_headless(engine, sys.stdout, narrate=narrate)
    else:
        state = _run_dashboard(engine, look)
    if engine.fatal_error:
        return print_usage_error(engine.fatal_error)
    if engine.run_error:
        print(engine.run_error, file=sys.stderr)
        return EXIT_FAILED
    from esper.cli.console import format_summary

    if place.rank == 0 and not narrate:
        print(format_summary(state))
    return EXIT_OK


def _resolve_config_and_checkpoint(
    file: Path | None, resume: str | None, options: dict[str, Any]
) -> tuple[Config, Path | None]:
    if resume is None:
        return resolve_config(file, options), None
    table = read_config_file(file)
    telemetry_dir = Path(resolve_config(file, options, table=table).telemetry_dir)
    options.pop("telemetry_dir", None)  # only where it is looked for: a run goes on where it is
    checkpoint = find_checkpoint(resolve_run(resume, telemetry_dir))
    run = run_directory_of(checkpoint)
    try:
        manifest = read_manifest(checkpoint)
        saved = config_from_manifest(manifest, checkpoint)
        read_verified_files(checkpoint, manifest)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; `esper-sanctum checkpoints {run}` tells which are whole") from None
    config = resolve_config(file, options, base=msgspec.to_builtins(saved), table=table)
    check_compatible(with_task_settings(saved), with_task_settings(config), checkpoint)
    if manifest.round >= config.rounds:
        raise ConfigError(
            f"{resume} is finished: all its {manifest.round} rounds are done; --rounds N with a greater N continues it"
        )
    return config, checkpoint


def _run_headless(engine: EngineThread, stream: TextIO, *, narrate: bool) -> RunState:
    from esper.cli.console import Narrator, RunPrinter, drain
    from esper.telemetry.state import RunState

    def stop() -> None:
        engine.control.put(RequestKind.STOP, "signal")
        threading.Thread(target=_exit_when_terminal_frozen, args=(engine, stream), daemon=True).start()

    state = RunState()
    with _StopSignals(stop):
        engine.start()
        try:
            printer = Narrator(stream) if narrate else RunPrinter(stream)
            state = printer.run(drain(engine.records, lambda: engine.is_engine_alive))
        except OSError as error:  # nobody listens any more, or the terminal is gone: the engine saves what it has
            engine.control.put(RequestKind.STOP, "signal")
            engine.join()
            if error.errno not in CLOSED_ERRNOS:
                raise
            discard_broken_output()
        engine.join()
    return state


def _exit_when_terminal_frozen(engine: EngineThread, stream: TextIO) -> None:
    """Once the engine has ended, end the process, where it prints to a terminal of which nobody reads anything."""
    engine.join()
    while not is_frozen(stream):
        time.sleep(FROZEN_AFTER_S)
    os._exit(EXIT_FAILED if engine.run_error or engine.fatal_error else EXIT_OK)


def _run_dashboard(engine: EngineThread, look: DisplayOptions) -> RunState:
    from esper.sanctum.source import LiveSource

    source = LiveSource(engine)
    requests = source.requests

    def save() -> None:
        """Whatever ended the dashboard, its terminal too: the engine saves what it has."""
        signals.stop_requested = requests.stop_requested
        if not requests.stop_requested:
            requests.ask(RequestKind.STOP, origin="dashboard")
        engine.join()

    with _StopSignals(lambda: requests.ask(RequestKind.STOP, origin="signal")) as signals:
        try:
            code = show_dashboard(source, look)
        except OSError:
            save()
            raise
        if code in {EXIT_OK, EXIT_FAILED}:
            save()
        if code:
            raise SystemExit(code)
    source.tick(0.0)
    return source.live_state


class _StopSignals:
    """While it lasts, the first INT, TERM or HUP asks for a checkpoint and an end; a second ends the process at once.

    At once, but not before the terminal is as it was: the second raises SystemExit, and that ends the process here,
    without waiting for the engine's threads. A HUP is never the second: who closes a terminal is not impatient, and
    its shell sends one as well. Nor is the echo of the first: `timeout` sends one to the process, and one to its group.
    """

    def __init__(self, ask_to_stop: Callable[[], None]) -> None:
        self._ask_to_stop = ask_to_stop
        self._first_signal_at = -math.inf
        """When the first came."""
        self.stop_requested = False
        """Whether the end was asked for, by a signal or in another way: then a signal is the second."""

    def __enter__(self) -> _StopSignals:
        # Whom nohup started is to outlive the terminal.
        heard = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            os._exit(error.code)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self.stop_requested:
            self.stop_requested, self._first_signal_at = True, time.monotonic()
            self._ask_to_stop()
        elif number != signal.SIGHUP and time.monotonic() > self._first_signal_at + SIGNAL_DEBOUNCE_S:
            raise SystemExit(128 + number)


def _train_parser() -> Parser:
    """The options of a run, and those of the program itself."""
    parser = Parser(
        commands=COMMANDS,
        prog="esper-sanctum",
        description="Train a population of growing networks and watch it in a dashboard",
        epilog=f"Other commands, each with its --help: {', '.join(COMMANDS)}.",
    )
    parser.add_argument("--version", action="version", version=f"esper-sanctum {VERSION}")
    add_run_options(parser)
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="resume from a checkpoint or from a run's newest one (checkpoint path, run name, run path, or last)",
    )
    add_screen_options(parser)
    parser.add_argument(
        "--detach", action="store_true", help="train in a background process that outlives the dashboard"
    )
    return parser


START_POLL_S = 0.1
"""Seconds between looks for the run that was started."""
TERMINATING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process which does not say otherwise."""
OUTPUT_LOG = "output.log"
"""Where in the run's directory it prints, as `--no-tui` does; output-2.log and so on where that is taken."""


def start_detached(arguments: Sequence[str], telemetry_dir: Path, *, look: DisplayOptions, headless: bool) -> int:
    """Start a run, wait until it trains, and show it; the exit code.

    What keeps it from training is told here, as if it were to train in this process.

    Args:
        arguments: of the program; they are valid.
        telemetry_dir: where the run's directory will be.
        look: of the dashboard.
        headless: show nothing.

    Raises:
        ConfigError: it cannot be started like this, or not be shown.
    """
    if RankInfo.from_environment().world_size > 1:
        raise ConfigError("--detach cannot be used under torchrun: start torchrun itself in the background")
    if not headless:
        check_terminal(look.theme)
    made = _create_parents(telemetry_dir)
    output = telemetry_dir / f"starting-{time.time_ns()}.log"
    process = _spawn(arguments, output)
    directory = None
    before = {
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
        for number, handler in before.items():
            signal.signal(number, handler)
        if directory is None:
            sys.stderr.write(output.read_text(errors="replace"))
            output.unlink()
            _remove_empty(made)
    if directory is None:
        return process.returncode
    output.rename(_unused_log_path(directory))
    print(f"{directory.name} trains in process {process.pid}", file=sys.stderr)
    if headless:
        print(directory)
        return EXIT_OK
    from esper.cli.commands.attach import show_live_run  # only here, for the first frame of other runs

    return show_live_run(directory, look=look, read_only=False)


def _exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    """End this process, and first what it has started, which nobody would know of."""
    raise SystemExit(128 + number)


def _spawn(arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Train headless, out of reach of this terminal."""
    options = [word for word in arguments if word not in {"--detach", "--no-tui"}]
    # -P: what lies in the working directory is not taken for a module.
    command = [sys.executable, "-P", "-m", "esper", *options, "--no-tui"]
    with output.open("xb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def _find_run_directory(pid: int, telemetry_dir: Path, output: Path) -> Path | None:
    """The directory of the run that a process trains; None until its first line has been printed."""
    printed = output.read_text(errors="replace")
    for run in list_runs(telemetry_dir):
        if read_holder(run) == LockHolder(pid=pid, host=socket.gethostname()) and f"run {run.name}: " in printed:
            return run
    return None


def _create_parents(directory: Path) -> list[Path]:
    """Make a directory; those made, the innermost first. Raises ConfigError."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot record to {directory}: {error.strerror}") from error
    return missing


def _remove_empty(directories: Sequence[Path]) -> None:
    """Take away what was made, unless something is in it by now."""
    for directory in directories:
        if any(directory.iterdir()):
            return
        directory.rmdir()


def _unused_log_path(directory: Path) -> Path:
    path, number = directory / OUTPUT_LOG, 2
    while path.exists():
        path, number = directory / f"output-{number}.log", number + 1
    return path
