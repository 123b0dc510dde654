"""RunDirectory: the directory that a run writes to, and no other one that is put in its place."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

from esper.common.system.disk import make_directory, write_replaced

DELETED = "the directory was deleted"
"""Why nothing can ever be written to a directory again."""


class RunDirectoryError(OSError):
    """The directory of a run is not at its path. `strerror` is the reason, for a sentence."""


class RunDirectory:
    """An existing directory of a run, held open to detect another directory at the same path.

    Where the system has /proc, files are written through the descriptor. They cannot get into another directory then,
    even if the directory is replaced between the check and the write. Any thread may use it.

    Args:
        path: Path of the directory. A later change of the working directory does not matter.

    Raises:
        OSError: The directory does not exist, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """The path as it was given, for messages and readers."""
        self._absolute = path.absolute()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._descriptor)
        held = Path(f"/proc/self/fd/{self._descriptor}")
        self.held = held if held.is_dir() else self._absolute
        """Path that leads to the directory in this process, after it was moved too; without /proc the given path."""
        self._kept: dict[str, bytes] = {}
        """Contents of the files that are written again if they are deleted, keyed by name."""

    @classmethod
    def make(cls, path: Path) -> RunDirectory:
        """Return a directory, which is created with its parents if it does not exist. Raises OSError."""
        make_directory(path)
        return cls(path)

    @property
    def is_deleted(self) -> bool:
        """True if the directory was deleted, so that nothing can ever be written to it again."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:  # of a network mount that may come back
            return False

    def check(self) -> Path:
        """Return the path for writing files to the directory, which is valid in this process only.

        Raises:
            RunDirectoryError: The directory was deleted, moved or replaced, or is on a file system that was unmounted.
            OSError: Its path cannot be followed.
        """
        if self.is_deleted:
            raise RunDirectoryError(errno.ENOENT, DELETED, str(self.path))
        try:
            found = self._absolute.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise RunDirectoryError(errno.ENOENT, "the directory was moved or unmounted", str(self.path)) from None
        if not os.path.samestat(found, os.fstat(self._descriptor)):
            raise RunDirectoryError(errno.ESTALE, "another directory is in its place", str(self.path))
        return self.held

    def keep(self, name: str, content: bytes) -> None:
        """Write a file of the run, which `restore_kept` writes again if it is deleted. Raises OSError."""
        write_replaced(self.check() / name, content)
        self._kept[name] = content

    def restore_kept(self) -> list[str]:
        """Write the deleted ones of the kept files again, and return their names. Raises OSError."""
        directory = self.check()
        missing = [name for name in self._kept if not (directory / name).exists()]
        for name in missing:
            write_replaced(directory / name, self._kept[name])
        return missing
