"""What a terminal can draw: everything the dashboard draws is in braille and blocks, and is translated at the end.

Each character becomes one character of the same width, so that nothing moves.
"""

from __future__ import annotations

import locale
import os
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

Charset: TypeAlias = Literal["auto", "braille", "block", "ascii"]
CHARSETS: tuple[str, ...] = get_args(Charset)

_QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
"""By the bits of the quarters that are set: upper left 1, upper right 2, lower left 4, lower right 8."""
_ASCII = str.maketrans(
    "─━│┃┄┈╌╸╺▏▎▍▌▋▊▉█▇▆▅▄▃▂▁░▒▓▔●○■◆▶◀▸◂▲▼✓✖❚‖–−±·…αΔ×≤≠↑↓←→↶⇧⇅↵╵╷°“”’•╭╮╰╯┌┐└┘├┤┬┴┼",
    '-=||-----||||####%*+=-_.,:%"*o#&><><!v+X||--~.~adx<#^v<><^%<||o""\'*+++++++++++++',
)
_KEYS = {"⇧": "Shift-", "←": "Left", "→": "Right", "↑": "Up", "↓": "Down", "↵": "Enter"}
"""What a key is called where its sign would be translated into that of another."""
_PLAIN_TERMINALS = frozenset({"dumb", "vt100", "vt102", "vt220", "ansi", "unknown"})


def chosen(charset: str) -> str:
    """The character set for this terminal: as asked, or by locale and TERM."""
    if charset != "auto":
        return charset
    if locale.getpreferredencoding(do_setlocale=False).lower().replace("-", "") != "utf8":
        return "ascii"
    term = os.environ.get("TERM", "")
    if term in _PLAIN_TERMINALS:
        return "ascii"
    return "block" if term == "linux" else "braille"  # the console's font has blocks, and no braille


@lru_cache(4096)
def translate(text: str, charset: str) -> str:
    """A text in the characters of a set."""
    if charset == "braille" or text.isascii():
        return text
    blocks = "".join(_quadrant(ord(c) - 0x2800) if 0x2800 <= ord(c) < 0x2900 else c for c in text)
    if charset == "block":
        return blocks
    drawn = "".join(_dots(ord(c) - 0x2800) if 0x2800 <= ord(c) < 0x2900 else c for c in text)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in drawn.translate(_ASCII))


def key_name(label: str, charset: str) -> str:
    """The label of a key in the characters of a set."""
    return "".join(_KEYS.get(c, c) for c in label) if charset == "ascii" else label


def _quadrant(dots: int) -> str:
    left, right = dots & 0x47, dots & 0xB8
    quarters = (left & 0x03, right & 0x18, left & 0x44, right & 0xA0)
    return _QUADRANTS[sum(1 << place for place, quarter in enumerate(quarters) if quarter)]


def _dots(dots: int) -> str:
    upper, lower = bool(dots & 0x1B), bool(dots & 0xE4)
    return ":" if upper and lower else "'" if upper else "." if lower else " "


class CharsetFilter(LineFilter):
    """Translates every line of the screen, whatever drew it."""

    def __init__(self, charset: str) -> None:
        super().__init__()
        self.charset = charset

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 (Textual's signature)
        """The same segments in other characters."""
        charset = self.charset
        return [Segment(translate(text, charset), style, control) for text, style, control in segments]
