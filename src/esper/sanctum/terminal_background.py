"""The background colour of the terminal, as the terminal reports it."""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty

REPLY_TIMEOUT_S = 0.3
"""Seconds to wait for the reply of the terminal, far longer than a connection over ssh takes."""
_QUERY = b"\x1b]11;?\x1b\\\x1b[c"
"""Asks for the background colour, then for the terminal's attributes, which every terminal reports."""
_COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")
_LUMINANCE_WEIGHTS = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue in the relative luminance (ITU-R BT.709)."""


def has_light_background(terminal: int, timeout: float = REPLY_TIMEOUT_S) -> bool:
    """Return True if the background of a terminal is light; False if it is dark or not known.

    A terminal that does not report its colours may set COLORFGBG, as rxvt and Konsole do.

    Args:
        terminal: File descriptor of the terminal. What is typed before the reply is lost.
        timeout: Maximum seconds to wait for the reply.
    """
    match = _COLOUR.search(_ask(terminal, timeout))
    if match is None:
        background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
        return background == "7" or (background.isdecimal() and int(background) > 8)
    channels = (int(digits, 16) / (16 ** len(digits) - 1) for digits in match.groups())
    return sum(weight * channel for weight, channel in zip(_LUMINANCE_WEIGHTS, channels, strict=True)) > 0.5


def _ask(terminal: int, timeout: float) -> bytes:
    """Send the query, and return what the terminal replies until it has reported its attributes."""
    if os.environ.get("TERM", "dumb") in {"dumb", "linux"}:
        return b""
    reply = b""
    try:
        before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal, termios.TCSANOW)
        try:
            os.write(terminal, _QUERY)
            deadline = time.monotonic() + timeout
            while not _ATTRIBUTES.search(reply):
                if not select.select([terminal], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                    break
                reply += os.read(terminal, 1024)
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    except (OSError, termios.error):  # the terminal was closed: the dashboard will notice
        return b""
    return reply
