"""The terminal, which may be closed at any moment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App


class LastingDriver(LinuxDriver):
    """Textual's driver, for a terminal that may be closed.

    Textual writes in a thread, behind a queue with room for 30 pieces. An error would end that thread, further pieces
    would fill the queue, and the app, with its signals and its exit, would wait for room in it for ever.
    """

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._output = _Output(self._file)
        self._file = cast("TextIO", self._output)  # Textual only writes to it and flushes it

    @property
    def closed(self) -> bool:
        """Whether the terminal is gone: it takes nothing any more, or is none."""
        return self._output.closed or (self.input_tty and not os.isatty(self.fileno))

    def _sigcont_application(self, *_: object) -> None:
        # A terminal that is closed continues its processes, whether they were suspended or not. Textual would begin
        # anew, with a second thread for the keys, and end only one of them.
        if self._must_signal_resume or not self.closed:
            super()._sigcont_application()


class _Output:
    """What is written to a terminal; from the first error on, it goes nowhere."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.closed = False

    def write(self, text: str) -> None:
        """Write, where that can be done."""
        if not self.closed:
            try:
                self._file.write(text)
            except OSError:
                self.closed = True

    def flush(self) -> None:
        """Let it be seen, where that can be done."""
        if not self.closed:
            try:
                self._file.flush()
            except OSError:
                self.closed = True
