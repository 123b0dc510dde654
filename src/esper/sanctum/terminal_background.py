"""The background colour of the terminal, as the terminal reports it."""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty
from contextlib import suppress
from typing import Any

REPLY_TIMEOUT_S = 0.3
"""Seconds to wait for the reply of the terminal, far longer than a connection over ssh takes."""
_QUERY = b"\x1b]11;?\x1b\\\x1b[c"
"""Asks for the background colour, then for the terminal's attributes, which every terminal reports."""
_COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")
_REPLY = re.compile(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|" + _ATTRIBUTES.pattern)
_LUMINANCE_WEIGHTS = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue in the relative luminance (ITU-R BT.709)."""


class BackgroundQuery:
    """Question to a terminal for its background colour.

    It is sent when the object is made, so that the terminal can answer while the dashboard is imported.

    Args:
        terminal: File descriptor of the terminal.
        timeout: Maximum seconds from the question to the reply.
    """

    def __init__(self, terminal: int, timeout: float = REPLY_TIMEOUT_S) -> None:
        self._terminal = terminal
        self._deadline = time.monotonic() + timeout
        self._before: list[Any] | None = None
        """Attributes of the terminal before the question; None if it was not asked."""
        if os.environ.get("TERM", "dumb") in {"dumb", "linux"}:
            return
        with suppress(OSError, termios.error):  # the terminal was closed: the dashboard will notice
            self._before = termios.tcgetattr(terminal)
            mode = termios.tcgetattr(terminal)
            mode[tty.LFLAG] &= ~(termios.ECHO | termios.ICANON)  # without an echo of the reply
            # Ctrl+Z is a key like others, carried out later: the shell would receive the reply of a stopped process.
            mode[tty.CC][termios.VSUSP] = bytes([os.fpathconf(terminal, "PC_VDISABLE")])
            termios.tcsetattr(terminal, termios.TCSANOW, mode)
            os.write(terminal, _QUERY)

    def close(self) -> bytes:
        """Return the input until the terminal has reported its attributes, and restore its mode.

        The input also has the keys that the user typed meanwhile; see `typed_keys`.
        """
        reply = b""
        if self._before is None:
            return reply
        with suppress(OSError, termios.error):
            try:
                while not _ATTRIBUTES.search(reply):
                    seconds = max(self._deadline - time.monotonic(), 0.0)
                    if not select.select([self._terminal], [], [], seconds)[0]:
                        break
                    reply += os.read(self._terminal, 1024)
            finally:
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._before)
        return reply


def typed_keys(reply: bytes) -> str:
    """Return the keys that the user typed before and between the replies of a terminal."""
    return _REPLY.sub(b"", reply).decode(errors="ignore")


def is_light(reply: bytes) -> bool:
    """Return True if the background in the reply of a terminal is light; False if it is dark or not known.

    A terminal that does not report its colours may set COLORFGBG, as rxvt and Konsole do.
    """
    match = _COLOUR.search(reply)
    if match is None:
        background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
        return background == "7" or (background.isdecimal() and int(background) > 8)
    channels = (int(digits, 16) / (16 ** len(digits) - 1) for digits in match.groups())
    return sum(weight * channel for weight, channel in zip(_LUMINANCE_WEIGHTS, channels, strict=True)) > 0.5
