"""The lock a live run holds in its directory: tells whether the run is alive."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from esper.recording.recorder import RecordingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK_FILE = "run.lock"
"""File in the run's directory. It stays when the run has ended: what counts is whether it is locked."""
LOCK_TIMEOUT_S = 1.0
"""Seconds for which a lock is tried: `is_live` holds it for an instant."""


class LockHolder(msgspec.Struct):
    """The process that trains a run, or was the last to do so."""

    pid: int
    host: str


def is_live(directory: Path) -> bool:
    """Whether a process trains the run in this directory now; False where the system or the disk knows no locks.

    Raises OSError if the lock is there, but may not be opened.
    """
    if fcntl is None:
        return False
    try:
        file = os.open(directory / LOCK_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here: `RunLock.problem` has told
        return False
    finally:
        os.close(file)
    return False


def live_since(directory: Path) -> float:
    """When the process that trains a live run began to, seconds since the epoch. Raises OSError."""
    return (directory / LOCK_FILE).stat().st_mtime


def read_holder(directory: Path) -> LockHolder | None:
    """Who holds the lock of a run, or was the last to; None where that was not written down."""
    try:
        return msgspec.json.decode((directory / LOCK_FILE).read_bytes(), type=LockHolder)
    except (OSError, msgspec.DecodeError):
        return None


def writer_has_exited(directory: Path) -> bool:
    """Whether it is known that whoever recorded in this directory last does so no longer: a process of this machine.

    Raises OSError as `is_live` does.
    """
    holder = read_holder(directory)
    return holder is not None and holder.host == socket.gethostname() and not is_live(directory)


class RunLock:
    """Makes a run count as alive until it is released, or the process ends.

    Raises:
        RecordingError: another process trains the run, or the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.warning: str | None = None
        """Why the run does not count as alive although it is: a sentence for people."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RecordingError(f"cannot record to {directory}: {error.strerror}") from error
        try:
            self._lock(directory)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, msgspec.json.encode(LockHolder(pid=os.getpid(), host=socket.gethostname())), 0)
        except OSError as error:
            self.warning = f"nobody can see that this run is alive: {directory / LOCK_FILE}: {error.strerror}"
        except RecordingError:
            os.close(self._file)
            raise

    def _lock(self, directory: Path) -> None:
        """Raises RecordingError if another process has it, OSError if there are no locks."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RecordingError(_locked_message(directory)) from None
                time.sleep(0.01)
        self.warning = "nobody can see that this run is alive: this system has no file locks"

    def release(self) -> None:
        """The run is over."""
        os.close(self._file)


def _locked_message(directory: Path) -> str:
    holder = read_holder(directory)
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return f"{directory} is being trained by {who}: stop that run first, or watch it with esper-sanctum attach"
