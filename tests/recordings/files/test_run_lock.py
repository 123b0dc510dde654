"""A run is live exactly as long as its process exists, also while the process is stopped."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from esper.recordings.files import run_lock
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import LOCK_FILE, LockHolder, RunLock, is_live, read_holder

HOLD = "import sys; from pathlib import Path; from esper.recordings.files.run_lock import RunLock; "
HOLD += "from esper.recordings.files.run_directory import RunDirectory; "
HOLD += "lock = RunLock(RunDirectory(Path(sys.argv[1]))); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def other(tmp_path: Path):
    """Another process that holds the lock of the run in `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_run_without_a_lock_is_not_live(tmp_path: Path) -> None:
    file = tmp_path / "events-00001.jsonl"
    file.touch()
    assert not is_live(tmp_path)
    assert not is_live(tmp_path / "none")
    assert not is_live(file)


def test_run_is_live_until_released(tmp_path: Path) -> None:
    lock = RunLock(RunDirectory(tmp_path))
    assert lock.warning is None
    assert is_live(tmp_path)
    assert is_live(tmp_path)  # the check does not take the lock
    lock.release()
    assert not is_live(tmp_path)


def test_run_is_locked_and_live_until_its_process_is_killed(
    tmp_path: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    with pytest.raises(RecordingError, match=f"is being trained by process {other.pid} on .*esper-sanctum attach"):
        RunLock(RunDirectory(tmp_path))
    assert is_live(tmp_path)
    holder = read_holder(tmp_path)
    assert holder is not None
    assert (holder.pid, holder.host) == (other.pid, socket.gethostname())
    os.kill(other.pid, signal.SIGSTOP)
    assert is_live(tmp_path)
    other.kill()
    other.wait()
    assert not is_live(tmp_path)
    RunLock(RunDirectory(tmp_path)).release()


def test_lock_is_handed_over_to_a_child_process_without_a_gap(tmp_path: Path) -> None:
    lock = RunLock(RunDirectory(tmp_path))
    assert read_holder(tmp_path) == LockHolder(os.getpid(), socket.gethostname(), is_starting=True)
    program = HOLD.replace("sys.argv[1]))", "sys.argv[1])), int(sys.argv[2])")
    arguments = [sys.executable, "-c", program, str(tmp_path), str(lock.file)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[lock.file]
    ) as child:
        lock.release()
        assert is_live(tmp_path)
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert read_holder(tmp_path) == LockHolder(child.pid, socket.gethostname(), is_starting=True)
        assert is_live(tmp_path)
        child.communicate("")
    assert not is_live(tmp_path)


def test_inherited_lock_of_another_run_is_refused(tmp_path: Path) -> None:
    other = RunLock(RunDirectory.make(tmp_path / "other"))
    RunLock(RunDirectory.make(tmp_path / "run")).release()
    with pytest.raises(RecordingError, match="the inherited lock is that of another run"):
        RunLock(RunDirectory(tmp_path / "run"), other.file)
    other.release()


def test_holder_is_starting_until_the_run_trains(tmp_path: Path) -> None:
    lock = RunLock(RunDirectory(tmp_path))
    lock.mark_started()
    assert read_holder(tmp_path) == LockHolder(os.getpid(), socket.gethostname())
    lock.release()


def test_lock_waits_while_another_process_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 60.0)
    RunLock(RunDirectory(tmp_path)).release()
    descriptor = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_blocking(descriptor, False)
    code = "import sys, time, os, fcntl; fcntl.flock(0, fcntl.LOCK_SH); print('locked', flush=True); time.sleep(0.3)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=descriptor, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.close(descriptor)
    RunLock(RunDirectory(tmp_path)).release()
    process.communicate()


def test_filesystem_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = RunLock(RunDirectory(tmp_path))
    assert lock.warning == (
        f"cannot lock {tmp_path / LOCK_FILE} (No locks available); `attach` and `runs` will not list this run as live"
    )
    assert not is_live(tmp_path)
    lock.release()


def test_lock_of_a_replaced_directory_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory.make(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "away")
    (tmp_path / "run").mkdir()
    with pytest.raises(RecordingError, match=r"cannot record to .*run: another directory is in its place"):
        RunLock(directory)
    assert list(tmp_path.glob("*/*")) == []
