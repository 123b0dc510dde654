"""Ctrl+Z in a shell with job control: alone, and below a wrapper such as `uv run`, which the shell waits for."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from esper.common.control import RequestKind
from tests.runs import LiveRun
from tests.terminals import ENTER_SCREEN, LEAVE_SCREEN, PROGRAM, Terminal, wait_until

BASH = shutil.which("bash") or ""
PROMPT = "at the prompt: "
WRAPPERS = {"alone": "{}", "below a wrapper": "sh -c {}\\;:"}
QUERY = "\x1b]11;?"
"""Start of the question for the background, before the dashboard is imported."""
REPLY = "\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?6c"

pytestmark = pytest.mark.skipif(not BASH, reason="needs bash")


@contextmanager
def shell(cwd: Path) -> Iterator[Terminal]:
    """Start an interactive bash."""
    program = (BASH, "--norc", "--noprofile", "-i")
    with Terminal(program=program, cwd=cwd, controlling=True) as terminal:
        terminal.type(f"PS1='{PROMPT[:2]}''{PROMPT[2:]}'\n")
        terminal.wait_for(PROMPT)
        try:
            yield terminal
        finally:
            for process in jobs(terminal):
                process.kill()


def start(terminal: Terminal, wrapper: str, *arguments: str) -> None:
    """Start this program."""
    command = shlex.join([*PROGRAM, *arguments])
    terminal.type(WRAPPERS[wrapper].format(shlex.quote(command) if wrapper != "alone" else command) + "\n")


def jobs(terminal: Terminal) -> list[psutil.Process]:
    """Return the wrapper, if there is one, and the program, but none that has ended and waits for the shell."""
    found: list[psutil.Process] = []
    for process in psutil.Process(terminal.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def assert_suspended(terminal: Terminal) -> None:
    """Assert that the whole job is stopped, and that the prompt was drawn after the terminal had been restored."""
    terminal.wait_for(PROMPT)
    wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in jobs(terminal)))
    assert jobs(terminal)
    assert terminal.output.count(LEAVE_SCREEN) == terminal.output.count(ENTER_SCREEN)
    assert terminal.output.endswith(PROMPT.encode())


def return_and_quit(terminal: Terminal) -> None:
    """Assert that `fg` shows the dashboard again, that `q` leaves it, and that the shell reads what is typed then."""
    terminal.type("fg\n")
    terminal.wait_for(ENTER_SCREEN.decode())
    terminal.wait_for("overview")
    terminal.type("q")
    terminal.wait_for(PROMPT)
    terminal.type("echo a''b\n")
    terminal.wait_for("ab\r\n")
    terminal.wait_for(PROMPT)
    assert not jobs(terminal)


def test_ctrl_z_restores_the_terminal_and_stops_the_whole_job(tmp_path: Path) -> None:
    with shell(tmp_path) as terminal:
        start(terminal, "below a wrapper", "demo")
        terminal.wait_for("overview")
        for _ in range(2):
            terminal.type("\x1a")
            assert_suspended(terminal)
            terminal.type("fg\n")
            terminal.wait_for(ENTER_SCREEN.decode())
            terminal.wait_for("overview")
        terminal.type("\x1a")
        assert_suspended(terminal)
        return_and_quit(terminal)


@pytest.mark.parametrize("moment", [QUERY, ENTER_SCREEN.decode()], ids=["import of the dashboard", "first frame"])
def test_ctrl_z_during_the_start_suspends_the_dashboard(moment: str, tmp_path: Path) -> None:
    with shell(tmp_path) as terminal:
        start(terminal, "below a wrapper", "demo")
        terminal.wait_for(moment)
        terminal.type("\x1a" + REPLY * (moment == QUERY))  # the shell would read the reply of a process that is stopped
        assert_suspended(terminal)
        return_and_quit(terminal)


@pytest.mark.slow
def test_ctrl_z_at_any_moment_of_the_start_suspends_the_job(tmp_path: Path) -> None:
    with shell(tmp_path) as terminal:
        for attempt in range(12):
            start(terminal, [*WRAPPERS][attempt % 2], "demo")
            wait_until(lambda: bool(jobs(terminal)))
            time.sleep(attempt / 10)
            terminal.type("\x1a")
            assert_suspended(terminal)
            return_and_quit(terminal)


@pytest.mark.slow
def test_ctrl_z_leaves_the_shell_a_viewer_but_not_its_run(tmp_path: Path) -> None:
    live = LiveRun(tmp_path).start_paused()
    with shell(tmp_path) as terminal:
        start(terminal, "below a wrapper", "attach", str(live.run.directory))
        terminal.wait_for("PAUSED")
        terminal.type("\x1a")
        assert_suspended(terminal)
        return_and_quit(terminal)
    live.control.put(RequestKind.RESUME, "test")
    assert live.finish().status == "done"


def test_suspended_dashboard_that_is_ended_leaves_the_terminal_to_the_shell(tmp_path: Path) -> None:
    with shell(tmp_path) as terminal:
        start(terminal, "alone", "demo")
        terminal.wait_for("overview")
        terminal.type("\x1a")
        assert_suspended(terminal)
        suspended = len(terminal.output)
        terminal.type("kill %1\n")
        terminal.wait_for("demo --faults` shows faults")
        wait_until(lambda: not jobs(terminal))
        assert b"\x1b[H" not in terminal.output[suspended:]
        terminal.type("echo a''b\n")
        terminal.wait_for("ab\r\n")


def test_job_that_nothing_can_continue_is_not_stopped(tmp_path: Path) -> None:
    with Terminal("demo", cwd=tmp_path, controlling=True) as terminal:  # no shell, as in `tmux new esper-sanctum`
        terminal.wait_for("overview")
        terminal.type("\x1a")
        terminal.wait_for(LEAVE_SCREEN.decode())
        terminal.wait_for("overview")
        terminal.type("q")
        assert terminal.leave() == 0
        terminal.assert_restored()
