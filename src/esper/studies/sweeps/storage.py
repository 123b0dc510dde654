"""The storage of a study: a journal file, or the URL of a database."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from esper.common.configuration.config import ConfigError
from esper.recordings.files.result_file import remove_partial_line
from esper.studies.sweeps.paths import StudyPaths

_JOURNAL_START = b'{"op_code":'
"""First bytes of each line of a journal file."""


def open_storage(text: str, paths: StudyPaths, *, create: bool) -> BaseStorage | str:
    """Return the storage of a study: a journal file, or the URL of a database.

    Args:
        text: Path or URL; empty for the default journal file.
        create: Create a journal file that does not exist.

    Raises:
        ConfigError: The journal file does not exist or cannot be written, or the kind of storage is not supported.
    """
    if text.startswith("redis"):
        raise ConfigError(
            "a redis storage is not supported, because Optuna unpickles what it reads from it; use a database"
        )
    if "://" in text:
        return text
    path = Path(text) if text else paths.journal
    if not create and not path.exists():
        raise ConfigError(f"the study has no storage at {path} yet; start the sweep first")
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        with path.open("rb") as file:
            start = file.read(len(_JOURNAL_START))
        if not _JOURNAL_START.startswith(start):  # an incomplete line of another file must not be removed
            raise ValueError("it begins with another text")
        return JournalStorage(JournalFileBackend(str(path), _JournalLock(str(path))))
    except OSError as error:
        raise ConfigError(f"cannot use the storage {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a journal file of Optuna ({error}); give another storage") from None


@contextmanager
def storage_errors() -> Generator[None]:
    """Raise ConfigError instead of the errors of a database, or of a file that cannot be read or written."""
    try:
        yield
    except StorageInternalError as error:
        reason = " ".join(str(error.__cause__ or error).split())
    except OSError as error:
        reason = (error.strerror or str(error)) + (f": {error.filename}" if error.filename else "")
    else:
        return
    raise ConfigError(f"the storage of the study fails ({reason}); start the sweep again to continue")


class _JournalLock(JournalFileOpenLock):
    """Lock of a journal file. Acquiring it removes an incomplete last line.

    A loss of power or a full disk can cut the last line. Optuna would append the next line to it, and could never read
    the file again. Optuna's default lock is a symbolic link, which is broken if the path of the file is relative; then
    the lock of a process that was killed is never released.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, and return True."""
        super().acquire()
        try:
            remove_partial_line(Path(self._path))
        except BaseException:
            self.release()
            raise
        return True
