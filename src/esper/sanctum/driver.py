"""The terminal, which may be closed at any moment, or cease to take anything."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.messages import ExitApp

if TYPE_CHECKING:
    from textual.app import App

MAX_PENDING_CHARS = 1 << 20
"""Characters that wait for a terminal: those of several frames of a large one. What is more is dropped."""
EXIT_DRAIN_S = 1.0
"""Seconds for which a terminal is waited for that is to be left as it was."""


class ResilientDriver(LinuxDriver):
    """Textual's driver, for a terminal that may be closed, or frozen: open, but nobody reads what is written to it.

    Textual's own writes in a thread, behind a queue with room for 30 pieces. An error would end that thread, and a
    frozen terminal hold it up; further pieces would fill the queue, and the app, with its signals and its exit, would
    wait for room in it for ever. Here that thread has nothing to do.
    """

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert self._file is not None  # it is stderr, as it was when the process began
        self._output = OutputThread(self._file.fileno(), self._file.encoding)

    def write(self, data: str) -> None:
        """Have it written, soon."""
        self._output.write(data)

    @property
    def closed(self) -> bool:
        """Whether the terminal is gone: it takes nothing any more, or is none."""
        return self._output.closed or (self.input_tty and not os.isatty(self.fileno))

    def consume_dropped(self) -> bool:
        """Whether frames were dropped since the last time, and the terminal takes them again: it has to be redrawn."""
        return self._output.consume_dropped()

    def close(self) -> None:
        """Leave the terminal: what was written has come to it, unless it is frozen."""
        super().close()
        self._output.drain(EXIT_DRAIN_S)

    def _sigcont_application(self, *_: object) -> None:
        # A terminal that is closed continues its processes, whether they were suspended or not. Textual would begin
        # anew, with a second thread for the keys, and end only one of them.
        if self._must_signal_resume or not self.closed:
            super()._sigcont_application()


class BrowserDriver(WebDriver):
    """Textual's driver, for a page whose server may be killed: without one, a dashboard would go on for nobody."""

    def run_input_thread(self) -> None:
        """Take what is typed, until it is left or the pipe of the server ends: then nobody looks on."""
        super().run_input_thread()
        self._app.post_message(ExitApp())


class OutputThread:
    """What is written to a terminal, by a thread of its own, so that nobody who writes is held up.

    What waits for longer than there is room for it is dropped, in whole pieces, so that no sequence is torn. From the
    first error on, everything goes nowhere.

    Args:
        descriptor: of the terminal.
        encoding: of what is written.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        self.closed = False
        self._descriptor = descriptor
        self._encoding = encoding
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._size = 0
        self._busy = False
        self._lost = False
        # A daemon, since nothing can end the write to a frozen terminal; it holds no lock in it that an exit waits for.
        threading.Thread(target=self._run, name="terminal", daemon=True).start()

    def write(self, text: str) -> None:
        """Have it written, soon."""
        with self._changed:
            if self._size + len(text) > MAX_PENDING_CHARS:
                self._waiting, self._size, self._lost = [], 0, True
            self._waiting.append(text)
            self._size += len(text)
            self._changed.notify_all()

    def consume_dropped(self) -> bool:
        """Whether anything was dropped since the last time; told once all that is left of it was written."""
        with self._changed:
            lost = self._lost and self._idle
            self._lost = self._lost and not lost
            return lost

    def drain(self, seconds: float) -> None:
        """Wait until everything was written, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle, seconds)

    @property
    def _idle(self) -> bool:
        return not self._waiting and not self._busy

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                text = "".join(self._waiting)
                self._waiting, self._size, self._busy = [], 0, True
            if not self.closed:
                self._send(text.encode(self._encoding, "backslashreplace"))

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            self.closed = True
