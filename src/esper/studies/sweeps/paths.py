"""Files of a study beside its runs, and the locks by which processes of one machine detect each other.

The kernel releases the lock of a process that ends in any way, so a lock needs no process ids and no time limits.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from esper.common.configuration.config import ConfigError
from esper.common.system.disk import make_directory

STUDIES_DIR = "studies"
"""Subdirectory of the telemetry directory for journal files, locks and outputs."""
JOURNAL_SUFFIX = ".journal"


class StudyPaths:
    """Paths of the files of a study.

    Args:
        telemetry_dir: Parent of the run directories.
    """

    def __init__(self, telemetry_dir: Path, name: str) -> None:
        self.telemetry_dir = telemetry_dir
        self.journal = telemetry_dir / STUDIES_DIR / f"{name}{JOURNAL_SUFFIX}"
        """Default storage."""
        self._directory = telemetry_dir / STUDIES_DIR / name

    def create(self) -> None:
        """Create the directory. Raises ConfigError."""
        try:
            make_directory(self._directory)
        except OSError as error:
            raise ConfigError(f"cannot write {self._directory}: {error.strerror}") from None

    def owner_lock(self, trial: int) -> Path:
        """Return the path of the lock of the sweep process that works on a trial."""
        return self._directory / f"trial-{trial:05d}.owner"

    def run_lock(self, trial: int) -> Path:
        """Return the path of the lock of the process that trains the run of a trial, from its start on."""
        return self._directory / f"trial-{trial:05d}.run"

    def output(self, trial: int) -> Path:
        """Return the path of the output of a run until its directory exists."""
        return self._directory / f"trial-{trial:05d}.log"

    @contextmanager
    def planning(self) -> Generator[None]:
        """Wait until no other process of this machine adds trials to the study, and keep it from that."""
        path = self._directory / "planning"
        file = _open(path)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise _no_lock(path, error) from None
            yield
        finally:
            os.close(file)


class FileLock:
    """Exclusive lock of a file. It can be passed on to a child process, and is held until both have released it."""

    def __init__(self, file: int) -> None:
        self.file = file
        """File descriptor."""

    @classmethod
    def try_acquire(cls, path: Path) -> FileLock | None:
        """Return the lock; None if another process, or another thread, holds it.

        Raises:
            ConfigError: The file system has no locks, or the file cannot be opened.
        """
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError as error:
            os.close(file)
            raise _no_lock(path, error) from None
        return cls(file)

    def release(self) -> None:
        """Close the file. A child process that inherited the lock keeps it."""
        os.close(self.file)


def _no_lock(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot lock {path} ({error.strerror}), which a sweep needs; give another --telemetry-dir")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror}") from None
