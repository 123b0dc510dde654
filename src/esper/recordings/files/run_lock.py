"""The lock of a run: held by the process that trains it, so that other processes can detect a live run."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import weakref
from contextlib import suppress
from pathlib import Path

import msgspec

from esper.common.system.disk import read_regular
from esper.recordings.events.codec import DECODE_ERRORS
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.run_directory import RunDirectory

LOCK_FILE = "run.lock"
"""Name of the lock file in the directory of a run. The file outlives the run; only the lock on it shows a live run."""
MAX_LOCK_BYTES = 4096
LOCK_TIMEOUT_S = 1.0
"""Seconds for which locking is retried, because `is_live` of another process holds the lock for an instant."""


class LockHolder(msgspec.Struct):
    """The process that trains a run, or trained it last."""

    pid: int
    host: str
    is_starting: bool = False
    """True from the moment when the run is locked until it trains: torch is loaded and the envs are built meanwhile."""


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


def is_starting(directory: Path) -> bool:
    """Return True if a process is about to train the run, and does not accept requests yet. Raises OSError."""
    holder = read_holder(directory)
    return holder is not None and holder.is_starting and is_live(directory)


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
    """Lock that marks a run as live until it is released, is no longer referenced, or the process exits.

    A process can hand its lock over to a child process, which inherits the open lock file: the run is locked without
    interruption. The lock ends when both have released it.

    Args:
        directory: Directory of the run.
        inherited: File descriptor of a lock that the parent process has handed over; None: the lock is acquired.

    Raises:
        RecordingError: Another process trains the run, the directory is not at its path or cannot be written, or the
            descriptor is not that of the run's lock file.
    """

    def __init__(self, directory: RunDirectory, inherited: int | None = None) -> None:
        self.directory = directory
        """Directory of the run, held open."""
        self.warning: str | None = None
        """Why the run is not shown as live although it is, one sentence for the user; None if it is locked."""
        try:
            path = directory.check() / LOCK_FILE
            self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644) if inherited is None else _adopt(inherited, path)
        except OSError as error:
            raise RecordingError(f"cannot record to {directory.path}: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self.file)
        try:
            self._lock(directory.path)
            self._write_holder(is_starting=True)
        except OSError as error:
            problem = f"cannot lock {directory.path / LOCK_FILE} ({error.strerror})"
            self.warning = f"{problem}; `attach` and `runs` will not list this run as live"
        except RecordingError:
            self.release()
            raise

    def mark_started(self) -> None:
        """Store that the run trains: until then, viewers show it as starting."""
        if self.warning is None:
            with suppress(OSError):  # of a disk that fails: viewers then show the run as starting, and it trains
                self._write_holder(is_starting=False)

    def _write_holder(self, *, is_starting: bool) -> None:
        content = msgspec.json.encode(LockHolder(os.getpid(), socket.gethostname(), is_starting))
        os.pwrite(self.file, content, 0)
        os.ftruncate(self.file, len(content))

    def _lock(self, directory: Path) -> None:
        """Acquire the lock.

        Raises:
            RecordingError: Another process holds the lock.
            OSError: The filesystem has no file locks.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RecordingError(_locked_message(directory)) from None
                time.sleep(0.01)

    def release(self) -> None:
        """Release the lock, which ends the run unless it was handed over to a child process."""
        self._close()


def _adopt(descriptor: int, path: Path) -> int:
    """Return the descriptor of an inherited lock file. Further child processes do not inherit it.

    Raises:
        OSError: It is not the lock file at the path.
    """
    os.set_inheritable(descriptor, False)
    if not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise OSError(errno.ESTALE, "the inherited lock is that of another run", str(path))
    return descriptor


def _locked_message(directory: Path) -> str:
    holder = read_holder(directory)
    trainer = f"process {holder.pid} on {holder.host}" if holder else "another process"
    return f"{directory} is being trained by {trainer}; stop that run first, or watch it with `esper-sanctum attach`"
