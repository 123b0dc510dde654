"""Every glyph that the dashboard draws, and how it writes numbers.

The help screen is generated from the tables here, so that what it says is what the screens show. Three cases never
look alike: not measured is a dash, zero is a bare 0, and not a number is NaN, reversed.
"""

from __future__ import annotations

import locale
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from esper.formatting import NOT_A_NUMBER, NOT_MEASURED, format_power
from esper.history.timeline import MarkKind

_CONSOLE = Console()
"""Rich wants one to wrap a text, and asks nothing of it."""


@dataclass(frozen=True)
class Symbol:
    """A glyph and what it stands for."""

    name: str
    glyph: str
    meaning: str


STAGES: dict[str, Symbol] = {
    symbol.name: symbol
    for symbol in (
        Symbol("dormant", "·", "nothing is planted in the slot"),
        Symbol("germinated", "g", "a seed is planted, and is not called yet"),
        Symbol("training", "t", "the seed learns behind the host, which does not feel it"),
        Symbol("blending", "b", "its output is being blended in, alpha on the way to its target"),
        Symbol("probationary", "p", "blended at its target, on trial"),
        Symbol("fossilized", "F", "a permanent part of the host"),
        Symbol("culled", "x", "removed"),
        Symbol("embargoed", "z", "the slot rests after a cull"),
    )
}
"""In the order of the lifecycle."""

SEVERITIES: dict[str, Symbol] = {
    symbol.name: symbol
    for symbol in (
        Symbol("info", "✓", "fine"),
        Symbol("warning", "▲", "look at it"),
        Symbol("error", "✖", "act"),
    )
}

STATUS_SYMBOLS: dict[str, Symbol] = {
    symbol.name: symbol
    for symbol in (
        Symbol("STARTING", "○", "torch is being loaded and the envs are being built"),
        Symbol("RUNNING", "●", "the engine trains"),
        Symbol("PAUSED", "❚❚", "the engine holds between two steps"),
        Symbol("HELD", "✖", "a fault holds the run: it says below which, and what leads on"),
        Symbol("REPLAY", "▶", "this is a recording"),
        Symbol("PAST", "◀", "the past of a run that goes on; so many events have come since"),
        Symbol("DONE", "✓", "the run came to its end"),
        Symbol("STOPPED", "■", "the run was ended before its last round, as asked"),
        Symbol("FAILED", "✖", "the run ended by an error; the log says which"),
    )
}

MARK_SYMBOLS: dict[MarkKind, tuple[Symbol, str]] = {
    MarkKind.BOOKMARK: (Symbol("bookmark", "◆", "set here with m"), "key"),
    MarkKind.DIVERGENCE: (Symbol("divergence", "≠", "from here on, the run held against it computed otherwise"), "key"),
    MarkKind.ROLLBACK: (Symbol("rollback", "↶", "the governor took an env back"), "error"),
    MarkKind.NOT_FINITE: (Symbol("not finite", "✖", "an anomaly: something became NaN or infinite"), "error"),
    MarkKind.ANOMALY: (Symbol("anomaly", "▲", "a value left its range"), "warning"),
    MarkKind.CHECKPOINT: (Symbol("checkpoint", "C", "a checkpoint was written"), "bright"),
    MarkKind.PAUSE: (Symbol("pause", "‖", "the run was paused"), "bright"),
    MarkKind.SKIP: (Symbol("skip", "↓", "a gradient overflowed, and a loss scale fell"), "warning"),
    MarkKind.FOSSILIZED: (Symbol("fossilized", "F", "a seed became permanent"), "fossilized"),
    MarkKind.CULLED: (Symbol("culled", "x", "a seed was removed"), "culled"),
    MarkKind.PLANTED: (Symbol("planted", "g", "a seed was planted"), "germinated"),
}
"""Signs of the time line and their roles; where several fall into one cell, the first is shown."""

OPS: dict[str, str] = {
    "wait": "do nothing",
    "germinate": "plant a seed in an empty slot",
    "advance": "begin to blend a trained seed in",
    "set_alpha": "blend to another alpha",
    "cull": "remove a seed",
    "fossilize": "make a seed permanent",
}
"""What the policy can do in a step."""

HEADS: dict[str, tuple[str, str]] = {
    "op": ("op", "op"),
    "slot": ("slot", "slot"),
    "blueprint": ("blueprint", "bp"),
    "style": ("style", "style"),
    "tempo": ("tempo", "tempo"),
    "alpha_target": ("α target", "αt"),
    "alpha_speed": ("α speed", "αs"),
    "alpha_curve": ("α curve", "αc"),
}
"""Long and short label of each policy head."""


def head_label(head: str, *, short: bool = False) -> str:
    """Label of a policy head; one that is not in the table goes by its own name."""
    return HEADS.get(head, (head, head))[short]


class Cell(NamedTuple):
    """A text of fixed width, and the role of its style (see `theme.Palette`)."""

    text: str
    role: str = "normal"


def number_cell(value: float | None, before: int, after: int, *, signed: bool = False, fixed: bool = False) -> Cell:
    """Three significant digits, the decimal point always in the same column.

    The text is `before` columns, the point, and `after` columns. A value that is too small or too large for them is
    written as 4e-5, which needs two columns after the point. `signed` marks positive values with a plus. `fixed` keeps
    all `after` decimals, and lets what is too small for them be 0.00: for values of a known scale.
    """
    width = before + 1 + after
    if value is None:
        return Cell(NOT_MEASURED.rjust(before).ljust(width), "absent")
    if not math.isfinite(value):
        text = NOT_A_NUMBER if math.isnan(value) else "inf" if value > 0 else "−inf"
        return Cell(text.rjust(before).ljust(width), "bad")
    if value == 0:
        return Cell("0".rjust(before).ljust(width), "dim")
    decimals = after if fixed else min(max(2 - math.floor(math.log10(abs(value))), 0), after)
    sign = "−" if value < 0 else "+" if signed else ""
    digits = f"{abs(value):.{decimals}f}"
    whole, point, fraction = digits.partition(".")
    if (float(digits) == 0 and not fixed) or len(sign + whole) > before:
        mantissa, _, exponent = f"{abs(value):.0e}".partition("e")
        return Cell(f"{(sign + mantissa).rjust(before)}e{int(exponent)}".ljust(width))
    return Cell(((sign + whole).rjust(before) + point + fraction).ljust(width))


def percent_cell(value: float | None) -> Cell:
    """A share as per cent with one decimal, 5 columns."""
    return number_cell(None if value is None else value * 100, 3, 1, fixed=True)


def compact_cell(value: float | None, digits: int = 3, *, tight: bool = False) -> Cell:
    """A number where no column has to be kept: so many significant digits at most, no padding, no zeros behind it.

    `tight` leaves out the zero before the point too, for where each column counts.
    """
    cell = number_cell(value if value is None else float(f"{value:.{digits}g}"), 4, 4)
    text = cell.text.strip()
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return Cell(text.removeprefix("0") if tight and "." in text else text, cell.role)


def scale_cell(value: float | None) -> Cell:
    """A loss scale as 2^15, 5 columns, the exponents below each other."""
    if value is None:
        return Cell(f"  {NOT_MEASURED}  ", "absent")
    if math.isnan(value):
        return Cell(f"{NOT_A_NUMBER:<5}", "bad")
    if value <= 0 or math.isinf(value):
        return Cell(f"{value:<5.2g}", "bad")
    return Cell(format_power(math.log2(value)).ljust(5))


def ellipsise(text: str, width: int) -> str:
    """The text, or as much of it as fits into so many cells, with an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def wrap_cells(text: str, width: int) -> list[str]:
    """Lines of at most so many cells, broken between words; `textwrap` counts characters, of which some take two."""
    return [line.plain.rstrip() for line in Text(text).wrap(_CONSOLE, width)]


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


def detect_charset(charset: str) -> str:
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
    drawn = "".join(_ascii_dots(ord(c) - 0x2800) if 0x2800 <= ord(c) < 0x2900 else c for c in text)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in drawn.translate(_ASCII))


def key_name(label: str, charset: str) -> str:
    """The label of a key in the characters of a set."""
    return "".join(_KEYS.get(c, c) for c in label) if charset == "ascii" else label


def _quadrant(dots: int) -> str:
    left, right = dots & 0x47, dots & 0xB8
    quarters = (left & 0x03, right & 0x18, left & 0x44, right & 0xA0)
    return _QUADRANTS[sum(1 << place for place, quarter in enumerate(quarters) if quarter)]


def _ascii_dots(dots: int) -> str:
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
