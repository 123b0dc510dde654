"""Textual drivers for terminals and browser connections that may close or freeze at any time."""

from __future__ import annotations

import errno
import os
import signal
import sys
import termios
import threading
import tty
from typing import TYPE_CHECKING, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.events import AppFocus
from textual.messages import ExitApp

from esper.common.system.process import NamedThread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import App
    from textual.message import Message

MAX_PENDING_CHARS = 1 << 20
"""Maximum number of characters waiting for the terminal, enough for several frames of a large one."""
EXIT_DRAIN_S = 1.0
"""Maximum seconds to wait at exit until the terminal has been restored."""


def parse_input(text: str) -> Iterable[Message]:
    """Return the messages of keys, for input that was read before the driver reads the terminal."""
    return XTermParser().feed(text)


class ResilientDriver(LinuxDriver):
    """Terminal driver that survives a closed terminal, or a frozen one, whose output is not read.

    Textual's driver writes in a thread that reads from a queue of 30 items. A write error ends that thread, and a
    frozen terminal blocks it. The queue then fills up, and the app blocks forever, including its signal handlers and
    its exit. This driver leaves that queue empty, and writes with `OutputThread`.
    """

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)  # pyright: ignore[reportUnknownMemberType] (App[Any])
        assert sys.__stderr__ is not None
        if not sys.__stderr__.isatty() and sys.__stdout__ is not None:  # as in `esper-sanctum demo 2>errors.txt`
            self._file = sys.__stdout__
        self._output = OutputThread(self._file.fileno(), self._file.encoding)
        self._is_started = False
        """True while this driver has the terminal."""
        self._set_default_handlers()  # in place of Textual's

    def write(self, data: str) -> None:
        """Queue data for the terminal; discard it while another program has the terminal."""
        if self._is_started:
            self._output.write(data)

    @property
    def closed(self) -> bool:
        """True if a write has failed, or the input is no longer a terminal."""
        return self._output.closed or (self.input_tty and not os.isatty(self.fileno))

    def consume_dropped(self) -> bool:
        """Return True if the screen must be redrawn: frames were dropped, and the terminal accepts output again."""
        return self._output.consume_dropped()

    def start_application_mode(self) -> None:
        """Take over the terminal. Ctrl+Z is a key before anything else changes.

        The signal that it was would stop this process halfway, and leave such a terminal to the shell.
        """
        before = self._claim_terminal()
        self._is_started = True
        super().start_application_mode()
        self.attrs_before = before
        signal.signal(signal.SIGTSTP, self._sigtstp_application)
        signal.signal(signal.SIGCONT, self._sigcont_application)

    def disable_input(self) -> None:
        """Stop reading keys."""
        if self._is_started:
            super().disable_input()

    def stop_application_mode(self) -> None:
        """Clear the alternate screen, and restore the terminal, unless that was done.

        After a change of size, tmux shows rows of the alternate screen above the prompt.
        """
        if self._is_started:
            self._set_default_handlers()
            self.write("\x1b[H\x1b[J")
            super().stop_application_mode()
            self._is_started = False

    def resume_application_mode(self) -> None:
        """Take over the terminal again after the process was suspended, and have the screen redrawn."""
        super().resume_application_mode()
        self._output.mark_dropped()

    def _set_default_handlers(self) -> None:
        """Let a stop act at once, as before the terminal is taken over and after it is restored."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.signal(signal.SIGCONT, signal.SIG_DFL)

    def close(self) -> None:
        """Restore the terminal, and wait for the output unless the terminal is frozen."""
        super().close()
        self._output.drain(EXIT_DRAIN_S)

    def suspend(self) -> None:
        """Restore the terminal, then stop the whole process group until the shell continues it.

        A shell waits for the first process of the group, which may be a wrapper such as `uv run`. A wrapper stops at
        once, and the shell takes the terminal, which a process in the background can no longer restore.
        """
        self.suspend_application_mode()
        # Not SIGSTOP, which also stops a group that no shell can continue, as in `tmux new esper-sanctum`.
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        # After the handler of a signal that has ended the stop, as of `kill %1`: that handler uses `call_soon` too.
        self._loop.call_soon(self._loop.call_soon, self._resume)

    def _resume(self) -> None:
        if not (self.closed or self._app._exit):  # pyright: ignore[reportPrivateUsage] (nothing public says it as early)
            self.resume_application_mode()

    def _restart(self) -> None:
        self.suspend_application_mode()
        self._resume()

    def _sigtstp_application(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.suspend)

    def _sigcont_application(self, *_: object) -> None:
        # The process was stopped by SIGSTOP, and other programs have used the terminal meanwhile.
        self._loop.call_soon_threadsafe(self._restart)

    def _claim_terminal(self) -> list[Any] | None:
        """Turn the signals of keys off, once this process is in the foreground.

        In the background, the kernel stops the process group here, until the shell brings it back.

        Returns:
            The attributes of the terminal before; None if it was closed, or the input is none.
        """
        while True:
            try:
                termios.tcflow(self.fileno, termios.TCOON)  # changes nothing
                before = termios.tcgetattr(self.fileno)
                changed = [*before]
                changed[tty.LFLAG] &= ~termios.ISIG
                termios.tcsetattr(self.fileno, termios.TCSANOW, changed)
            except termios.error as error:
                if error.args[0] != errno.EINTR:
                    return None
            else:
                return before


class BrowserDriver(WebDriver):
    """Driver of a dashboard in a browser, which exits when its web server is gone."""

    def start_application_mode(self) -> None:
        """Start the app as one that has the keyboard, which the page takes when it connects.

        Textual starts it without, and could process the page's message before that.
        """
        super().start_application_mode()
        self._app.call_later(self._app.post_message, AppFocus())

    def run_input_thread(self) -> None:
        """Read the input; when the app exits or the pipe of the server closes, exit."""
        super().run_input_thread()
        self._app.post_message(ExitApp())


class OutputThread:
    """Thread that writes to a terminal, so that no caller blocks.

    If more than `MAX_PENDING_CHARS` characters wait, all waiting writes are dropped; whole writes, so that no escape
    sequence is cut. After the first write error, all output is discarded.

    Args:
        descriptor: File descriptor of the terminal.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        self.closed = False
        self._descriptor = descriptor
        self._encoding = encoding
        self._changed = threading.Condition()
        self._pending: list[str] = []
        self._pending_chars = 0
        self._busy = False
        self._dropped = False
        # A daemon, because a write to a frozen terminal cannot be interrupted. It holds no lock that the exit needs.
        NamedThread(target=self._run, name="terminal", daemon=True).start()

    def write(self, text: str) -> None:
        """Queue a text for the terminal."""
        with self._changed:
            if self._pending_chars + len(text) > MAX_PENDING_CHARS:
                self._pending, self._pending_chars, self._dropped = [], 0, True
            self._pending.append(text)
            self._pending_chars += len(text)
            self._changed.notify_all()

    def consume_dropped(self) -> bool:
        """Return True once after output was dropped, as soon as all remaining output is written."""
        with self._changed:
            dropped = self._dropped and self._idle
            self._dropped = self._dropped and not dropped
            return dropped

    def mark_dropped(self) -> None:
        """Have the screen redrawn as if frames were dropped, because another program has written to the terminal."""
        with self._changed:
            self._dropped = True

    def drain(self, seconds: float) -> None:
        """Wait until everything has been written, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle, seconds)

    @property
    def _idle(self) -> bool:
        return not self._pending and not self._busy

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._pending)
                text = "".join(self._pending)
                self._pending, self._pending_chars, self._busy = [], 0, True
            if not self.closed:
                self._send(text.encode(self._encoding, "backslashreplace"))

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            self.closed = True
