"""The program as a user starts it: a separate process, on pipes or in a terminal."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "esper")
TIMEOUT_S = 300.0
"""Timeout in seconds, far longer than any step of a test takes on a busy machine."""
SLOW_STEPS = ("--task", "synthetic", "--envs", "16", "--devices", "cpu:0")
"""Options of a run whose steps take seconds, so that a signal arrives during one."""
ENTER_SCREEN = b"\x1b[?1049h"
LEAVE_SCREEN = b"\x1b[?1049l"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the program on pipes, without input, until it exits."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the program on pipes; kill it on leaving the context if it is still running."""
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def insist(process: subprocess.Popen[Any], number: signal.Signals) -> int:
    """Send a signal repeatedly until the process ends: a second signal counts only after the first was handled."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the program does not heed {number.name}")
        process.send_signal(number)
        time.sleep(0.05)
    return process.returncode


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


_ADOPT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Program that makes the terminal its controlling terminal and then executes another program."""


class Terminal:
    """The program in a terminal of 120 × 40 cells.

    Args:
        arguments: Arguments of the program.
        cwd: Working directory.
        python: Options of the interpreter.
        program: Another program than this one.
        controlling: True if the terminal is the controlling one, like a shell's: closing it sends SIGHUP.
        stderr: File descriptor for standard error; None for the terminal.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        python: Sequence[str] = (),
        program: Sequence[str] = PROGRAM,
        controlling: bool = False,
        stderr: int | None = None,
    ) -> None:
        self._master, self._slave = os.openpty()
        shell = (sys.executable, "-c", _ADOPT)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.settings = termios.tcgetattr(self._slave)
        self.output = b""
        self._seen = 0
        """Length of the output that no wait searches any more."""
        self._closed = False
        self.process = subprocess.Popen(
            [*(shell if controlling else ()), program[0], *python, *program[1:], *arguments],
            cwd=cwd,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave if stderr is None else stderr,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        if not self._closed:
            os.close(self._master)
        os.close(self._slave)

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            self.output += os.read(self._master, 1 << 16)

    def wait_for(self, text: str) -> None:
        """Read until this text has been drawn, after the text of the previous wait and the newest keys."""
        wanted, deadline = text.encode(), time.monotonic() + TIMEOUT_S
        while (found := self.output.find(wanted, self._seen)) < 0:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"{text!r} never came; last: {self.output[-2000:]!r}")
            self._read(0.1)
        self._seen = found + len(wanted)

    def type(self, keys: str) -> None:
        """Type keys."""
        self._seen = len(self.output)
        os.write(self._master, keys.encode())

    def leave(self) -> int:
        """Read until the program has ended, and return its exit code."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                pytest.fail(f"the program does not end; last: {self.output[-2000:]!r}")
            self._read(0.1)
        while select.select([self._master], [], [], 0.1)[0]:
            self._read(0)
        return self.process.returncode

    def freeze(self) -> None:
        """Stop reading; return once the terminal's buffer is full."""
        deadline = time.monotonic() + TIMEOUT_S
        while select.select([], [self._slave], [], 0.5)[1]:  # while it is written to, it says no
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.1)

    def close(self) -> int:
        """Close the terminal, wait for the program to end, and return its exit code."""
        os.close(self._master)
        self._closed = True
        return self.process.wait(TIMEOUT_S)

    def assert_restored(self) -> None:
        """Assert that the alternate screen is empty, and that the normal screen, the cursor and echo are restored."""
        left = self.output.rfind(LEAVE_SCREEN)
        assert left > self.output.rfind(b"\x1b[H\x1b[J") > self.output.rfind(ENTER_SCREEN) >= 0
        assert self.output.rfind(b"\x1b[?25h") > self.output.rfind(b"\x1b[?25l")
        assert termios.tcgetattr(self._slave) == self.settings


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return stdout and stderr captured since the last call."""
    output = capsys.readouterr()
    return output.out, output.err


def assert_refused(code: object, output: str, errors: str, named: str) -> None:
    """Assert exit code 2 and one sentence on stderr that names the mistake."""
    assert code == 2
    assert output == ""
    assert errors.startswith("esper-sanctum: ")
    assert errors.count("\n") == 1
    assert errors.endswith("\n")
    assert named in errors
