"""The program as a person meets it: a process of its own, on pipes or in a terminal."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PROGRAM = (sys.executable, "-m", "esper")
PATIENCE = 300.0
"""Seconds after which a process that says nothing is given up: far more than anything takes on a busy machine."""
SLOW_STEPS = ("--task", "synthetic", "--envs", "16", "--devices", "cpu:0")
"""Seconds each: long enough that a signal comes in the middle of one."""
ENTER_SCREEN = b"\x1b[?1049h"
LEAVE_SCREEN = b"\x1b[?1049l"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, on pipes and without input."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """The program on pipes; it is killed if it has not ended by then."""
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
    """Send a signal until it is obeyed. One is not enough if the second must come after the first was seen."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the program does not heed {number.name}")
        process.send_signal(number)
        time.sleep(0.05)
    return process.returncode


_ADOPT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes the terminal the controlling one of this process, and becomes another program."""


class Terminal:
    """The program in a terminal of 120 × 40.

    Args:
        arguments: of the program.
        cwd: where it runs.
        python: options of the interpreter.
        controlling: whether the terminal sends signals to the program, as a shell's does; a HUP when it is closed.
    """

    def __init__(self, *arguments: str, cwd: Path, python: Sequence[str] = (), controlling: bool = False) -> None:
        self._master, self._slave = os.openpty()
        shell = (sys.executable, "-c", _ADOPT)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.settings = termios.tcgetattr(self._slave)
        self.output = b""
        self._closed = False
        self.process = subprocess.Popen(
            [*(shell if controlling else ()), PROGRAM[0], *python, *PROGRAM[1:], *arguments],
            cwd=cwd,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
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
        """Read until this has been drawn, after what was waited for before."""
        wanted, deadline = text.encode(), time.monotonic() + PATIENCE
        seen = len(self.output)
        while wanted not in self.output[max(seen - len(wanted), 0) :]:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"{text!r} never came; last: {self.output[-2000:]!r}")
            self._read(0.1)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def leave(self) -> int:
        """Read until the program has ended; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                pytest.fail(f"the program does not end; last: {self.output[-2000:]!r}")
            self._read(0.1)
        while select.select([self._master], [], [], 0.1)[0]:
            self._read(0)
        return self.process.returncode

    def freeze(self) -> None:
        """Read nothing any more; returns once it has taken all that it can."""
        deadline = time.monotonic() + PATIENCE
        while select.select([], [self._slave], [], 0.5)[1]:  # while it is written to, it says no
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.1)

    def close(self) -> int:
        """Close it under the program, and wait for that to end; its exit code."""
        os.close(self._master)
        self._closed = True
        return self.process.wait(PATIENCE)

    def assert_restored(self) -> None:
        """The screen was given back, the cursor is shown, and what is typed is echoed again."""
        assert self.output.rfind(LEAVE_SCREEN) > self.output.rfind(ENTER_SCREEN) >= 0
        assert self.output.rfind(b"\x1b[?25h") > self.output.rfind(b"\x1b[?25l")
        assert termios.tcgetattr(self._slave) == self.settings


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """On stdout and stderr, since this was asked before."""
    output = capsys.readouterr()
    return output.out, output.err


def assert_refused(code: int, output: str, errors: str, named: str) -> None:
    """A request was wrong, and one sentence says so and names it."""
    assert code == 2
    assert output == ""
    assert errors.startswith("esper-sanctum: ")
    assert errors.count("\n") == 1
    assert errors.endswith("\n")
    assert named in errors
