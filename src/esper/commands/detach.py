"""`--detach`: training in a process of its own, which goes on when the terminal is closed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from esper.commands.attach import watch
from esper.commands.options import DONE
from esper.commands.screen import Look, check_screen
from esper.config import ConfigError
from esper.process import Place
from esper.recording.run_lock import Holder, read_holder
from esper.recording.runs import list_runs

PERIOD = 0.1
"""Seconds between looks for the run that was started."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process which does not say otherwise."""
OUTPUT = "output.log"
"""Where in the run's directory it prints, as `--no-tui` does; output-2.log and so on where that is taken."""


def start_detached(arguments: Sequence[str], telemetry_dir: Path, *, look: Look, headless: bool) -> int:
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
    if Place.current().world_size > 1:
        raise ConfigError("--detach cannot be used under torchrun: start torchrun itself in the background")
    if not headless:
        check_screen(look.theme)
    made = _make(telemetry_dir)
    output = telemetry_dir / f"starting-{time.time_ns()}.log"
    process = _start(arguments, output)
    directory = None
    before = {number: signal.signal(number, _leave) for number in ENDING if signal.getsignal(number) is signal.SIG_DFL}
    try:
        while directory is None and process.poll() is None:
            time.sleep(PERIOD)
            directory = _find(process.pid, telemetry_dir, output)
        directory = directory or _find(process.pid, telemetry_dir, output)
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
            _unmake(made)
    if directory is None:
        return process.returncode
    output.rename(_free(directory))
    print(f"{directory.name} trains in process {process.pid}", file=sys.stderr)
    if headless:
        print(directory)
        return DONE
    return watch(directory, look=look, read_only=False)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """End this process, and first what it has started, which nobody would know of."""
    raise SystemExit(128 + number)


def _start(arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Train headless, out of reach of this terminal."""
    options = [word for word in arguments if word not in {"--detach", "--no-tui"}]
    # -P: what lies in the working directory is not taken for a module.
    command = [sys.executable, "-P", "-m", "esper", *options, "--no-tui"]
    with output.open("xb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def _find(pid: int, telemetry_dir: Path, output: Path) -> Path | None:
    """The directory of the run that a process trains; None until its first line has been printed."""
    printed = output.read_text(errors="replace")
    for run in list_runs(telemetry_dir):
        if read_holder(run) == Holder(pid=pid, host=socket.gethostname()) and f"run {run.name}: " in printed:
            return run
    return None


def _make(directory: Path) -> list[Path]:
    """Make a directory; those made, the innermost first. Raises ConfigError."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot record to {directory}: {error.strerror}") from error
    return missing


def _unmake(directories: Sequence[Path]) -> None:
    """Take away what was made, unless something is in it by now."""
    for directory in directories:
        if any(directory.iterdir()):
            return
        directory.rmdir()


def _free(directory: Path) -> Path:
    path, number = directory / OUTPUT, 2
    while path.exists():
        path, number = directory / f"output-{number}.log", number + 1
    return path
