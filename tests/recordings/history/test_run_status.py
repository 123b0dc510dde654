"""The status of a run: every state, from its events, its process and the time since the last event."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import LOCK_FILE, LockHolder, RunLock
from esper.recordings.history import run_status
from esper.recordings.history.run_status import RunStatus, RunWriter, find_writer, judge_run
from esper.recordings.state.state import RunState
from esper.training.checkpoint.files import write_checkpoint
from tests.factory import example_run, stamp
from tests.faults.programs import example_checkpoint
from tests.recordings.files.recordings import fold

RUN = example_run()
TRAINING = fold(RUN[:60])
CADENCE_S = 0.2
STUCK = ev.CallOverdue(
    env=1, lane="cpu:0", seconds=10.0, max_seconds=30.0, function="forward", file="/home/user/slow.py", line=7
)


def after(*events: ev.AnyEvent, cadence: float = CADENCE_S) -> RunState:
    """State of a run that trains, after further events, whose steps have taken so many seconds."""
    state = fold([*RUN[:60], *stamp(events, first=61, start=RUN[59].time)])
    state.walls = [cadence] * 5
    return state


def paused(cause: str | None = None) -> ev.Paused:
    return ev.Paused(round=1, step=3, origin="engine" if cause else "keyboard", reason=cause, cause=cause)


@pytest.mark.parametrize(
    ("state", "silence", "brief"),
    [
        (RunState(), 3600.0, "starting"),
        (after(), 3.9, "running"),
        (after(), 4.5, "silent for 4s"),
        (after(), 7200.0, "silent for 2h00m"),
        (after(cadence=3.0), 29.0, "running"),  # a step is slow, not silent
        (after(cadence=3.0), 31.0, "silent for 31s"),
        (after(paused()), 3600.0, "paused"),
        (after(paused("fault")), 3600.0, "held"),
        (after(STUCK), 1.0, "stuck"),
        (after(STUCK), 60.0, "stuck"),
        (after(ev.RunEnded(outcome="done")), 3600.0, "done"),
        (after(ev.RunEnded(outcome="stopped")), 3600.0, "stopped"),
        (after(ev.RunEnded(outcome="failed", reason="no kernel")), 3600.0, "failed"),
    ],
)
def test_status_of_a_run_with_a_process(state: RunState, silence: float, brief: str) -> None:
    status = judge_run(state, RunWriter(), silence=silence)
    assert status.brief == brief
    assert status.has_ended == (status.name in {"done", "stopped", "failed"})
    is_silent = status.name == "silent" or (status.name == "stuck" and silence > 4.0)
    assert (status.anomaly is not None) == is_silent
    assert judge_run(state, RunWriter(is_starting=True), silence=silence) == RunStatus("starting")


def test_first_step_of_a_process_may_take_long() -> None:
    """Durations of steps before the resumption say nothing about it."""
    state = after(*(event for event in RUN if isinstance(event, ev.RunStarted)))
    assert judge_run(state, RunWriter(), silence=60.0).name == "running"
    state.apply(ev.PhaseTimed(seq=state.seq + 1, time=state.time + 1.0, round=1, step=4, wall=0.2, phases={}))
    assert judge_run(state, RunWriter(), silence=60.0).name == "silent"


@pytest.mark.parametrize(
    ("state", "name", "can_resume"),
    [
        (RunState(), "crashed", True),
        (after(), "crashed", True),
        (after(paused("fault")), "crashed", True),
        (after(ev.RunEnded(outcome="stopped")), "stopped", True),
        (after(ev.RunEnded(outcome="failed", reason="no kernel")), "failed", True),
        (after(ev.RunEnded(outcome="done")), "done", False),
    ],
)
def test_status_of_a_run_without_a_process(state: RunState, name: str, can_resume: bool, tmp_path: Path) -> None:
    assert judge_run(state, None, directory=tmp_path / "empty")[::2] == (name, False)
    write_checkpoint(checkpoint_path(tmp_path, 1, 1), example_checkpoint(1))
    status = judge_run(state, None, directory=tmp_path)
    assert (status.name, status.can_resume, status.has_ended) == (name, can_resume, True)
    if name == "crashed":
        assert status.brief == "crashed, can be resumed"
        assert status.anomaly is not None
        assert (status.anomaly.rule, status.anomaly.severity) == ("crashed run", "error")


def test_stopped_process_is_named_before_a_slow_step_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_status, "is_stopped", lambda pid: pid == 77)
    for state in (after(cadence=60.0), after(paused()), after(STUCK)):
        assert judge_run(state, RunWriter(pid=77), silence=0.5).name != "silent"
        assert judge_run(state, RunWriter(pid=78), silence=2.0).name != "silent"
        status = judge_run(state, RunWriter(pid=77), silence=2.0)
        assert status.brief == "silent for 2s"
        assert status.anomaly is not None
        assert status.anomaly.text == (
            "process 77 is stopped: no event from the engine for 2 s; `kill -CONT 77` continues it"
        )


HOLD = """
import sys
from pathlib import Path
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
lock = RunLock(RunDirectory(Path(sys.argv[1])))
print("locked", flush=True)
sys.stdin.readline()
lock.mark_started()
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked the run in `tmp_path`, and trains it from the next line of its input on."""
    arguments = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        yield child
        child.kill()


def test_a_run_is_followed_through_start_stop_and_kill(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    def status(silence: float = 3.0) -> str:
        return judge_run(after(), find_writer(tmp_path, 0.0, time.time()), silence=silence).name

    assert status() == "starting"
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "started\n"
    assert status() == "running"
    assert find_writer(tmp_path, 0.0, time.time()) == RunWriter(pid=process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert status() == "silent"
    os.kill(process.pid, signal.SIGCONT)
    os.waitpid(process.pid, os.WCONTINUED)
    assert status() == "running"
    process.kill()
    process.wait()
    assert status() == "crashed"


def test_process_of_another_machine_has_no_number_here(tmp_path: Path) -> None:
    lock = RunLock(RunDirectory(tmp_path))
    for host, pid in ((socket.gethostname(), 5), ("another", None)):
        (tmp_path / LOCK_FILE).write_bytes(msgspec.json.encode(LockHolder(5, host)))
        assert find_writer(tmp_path, 0.0, time.time()) == RunWriter(pid=pid)
    lock.release()
