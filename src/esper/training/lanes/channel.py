"""Channel: the connection of the main process and a worker.

A pipe announces each message; the content is in one of a few files that both processes keep open. So a message never
waits for its receiver to read it, and the main process can send the next request while the worker still trains. The
receiver of a message then owns its file, and uses it for a later message.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, cast

FILES = 3
"""Number of files: one for the first message, which is not answered, and two for requests in progress."""

MAX_KEPT_BYTES = 64 << 20
"""Size of a message above which the memory of its file is released. Below it, the next message reuses the memory."""


class Channel:
    """One end of the connection.

    Args:
        pipe: This end of the pipe.
        files: File descriptors of the files, in the same order in both processes.
        owns_files: True in the process that sends the first message.
    """

    def __init__(self, pipe: Connection, files: Sequence[int], *, owns_files: bool) -> None:
        self._pipe = pipe
        self._files = files
        self._own = deque(range(len(files) if owns_files else 0))
        """Indices of the files that belong to this process."""
        self._sending = threading.Lock()
        self.note: Any = None
        """Last note of the other process since its last message; None without one."""

    def send(self, message: object) -> None:
        """Send a message. Raises OSError."""
        content = memoryview(pickle.dumps(message, protocol=5))
        index, written = self._own.popleft(), 0
        while written < len(content):
            written += os.pwrite(self._files[index], content[written:], written)
        with self._sending:
            self._pipe.send((index, len(content)))

    def send_note(self, note: object) -> None:
        """Send a small object from another thread than the one that sends messages. Raises OSError."""
        with self._sending:
            self._pipe.send([note])

    def wait(self) -> None:
        """Wait until a message has arrived, or the other process has ended."""
        self._pipe.poll(None)

    def receive(self) -> Any:
        """Wait for a message and return it. Raises EOFError or OSError if the other process has ended."""
        while (message := self.receive_within(None)) is None:
            pass
        return message

    def receive_within(self, seconds: float | None) -> Any:
        """Return a message; None if none arrives in time, or if a note arrives first. Raises EOFError or OSError."""
        if not self._pipe.poll(seconds):
            return None
        announced = cast("tuple[int, int] | list[Any]", self._pipe.recv())
        if isinstance(announced, list):
            self.note = announced[0]
            return None
        self.note, (index, size) = None, announced
        content = bytearray()
        while len(content) < size:
            part = os.pread(self._files[index], size - len(content), len(content))
            if not part:
                raise EOFError("a message is shorter than announced")
            content += part
        if size > MAX_KEPT_BYTES:
            os.ftruncate(self._files[index], 0)
        self._own.append(index)
        return pickle.loads(content)


def open_message_file() -> IO[bytes]:
    """Return a new file without a name, in memory where the system has such files. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("message"), "r+b")
    return tempfile.TemporaryFile()
