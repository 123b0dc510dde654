"""The lock of a run: held by the process that trains it, so that other processes can detect a live run."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec

from esper.disk import read_regular
from esper.recording.recorder import RecordingError
from esper.recording.run_directory import RunDirectory
from esper.telemetry.codec import DECODE_ERRORS

LOCK_FILE = "run.lock"
"""Name of the lock file in the directory of a run. The file outlives the run; only the lock on it shows a live run."""
MAX_LOCK_BYTES = 4096
LOCK_TIMEOUT_S = 1.0
"""Seconds for which locking is retried, because `is_live` of another process holds the lock for an instant."""


class LockHolder(msgspec.Struct):
    """The process that trains a run, or trained it last."""

    pid: int
    host: str


def is_live(directory: Path) -> bool:
    """Return True if a process trains the run; False also where the filesystem has no file locks.

    Raises:
        OSError: The lock file exists, but cannot be opened.
    """
    try:
        file = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place would block
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no file locks here: `RunLock.warning` reports it
        return False
    finally:
        os.close(file)
    return False


def check_not_live(directory: Path) -> None:
    """Raise RecordingError if a process trains the run."""
    if is_live(directory):
        raise RecordingError(_locked_message(directory))


def live_since(directory: Path) -> float:
    """Return when the process that trains a live run started to, in seconds since the epoch. Raises OSError."""
    return (directory / LOCK_FILE).stat().st_mtime


def read_holder(directory: Path) -> LockHolder | None:
    """Return the current or last holder of the lock of a run; None if the lock file does not name it."""
    try:
        return msgspec.json.decode(read_regular(directory / LOCK_FILE, limit=MAX_LOCK_BYTES), type=LockHolder)
    except (OSError, *DECODE_ERRORS):
        return None


class RunLock:
    """Lock that marks a run as live until it is released or the process exits.

    Args:
        directory: Directory of the run.

    Raises:
        RecordingError: Another process trains the run, or the directory is not at its path or cannot be written.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.warning: str | None = None
        """Why the run is not shown as live although it is, one sentence for the user; None if it is locked."""
        try:
            self._file = os.open(directory.check() / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RecordingError(f"cannot record to {directory.path}: {error.strerror}") from error
        try:
            self._lock(directory.path)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, msgspec.json.encode(LockHolder(pid=os.getpid(), host=socket.gethostname())), 0)
        except OSError as error:
            problem = f"cannot lock {directory.path / LOCK_FILE} ({error.strerror})"
            self.warning = f"{problem}; `attach` and `runs` will not list this run as live"
        except RecordingError:
            os.close(self._file)
            raise

    def _lock(self, directory: Path) -> None:
        """Acquire the lock.

        Raises:
            RecordingError: Another process holds the lock.
            OSError: The filesystem has no file locks.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RecordingError(_locked_message(directory)) from None
                time.sleep(0.01)

    def release(self) -> None:
        """Release the lock, which ends the run."""
        os.close(self._file)


def _locked_message(directory: Path) -> str:
    holder = read_holder(directory)
    trainer = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return f"{directory} is being trained by {trainer}; stop that run first, or watch it with `esper-sanctum attach`"
