"""Glyphs, number cells and character sets of the dashboard.

The screens and the help screen share the tables of glyphs, so that they agree. Three values never look alike: a dash
is not measured, a bare 0 is zero, and a reversed NaN is not a number.
"""

from __future__ import annotations

import locale
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Literal, NamedTuple, TypeAlias, get_args

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from esper.common.domain import Op, Stage
from esper.common.formatting import (
    NOT_A_NUMBER,
    NOT_MEASURED,
    align_number,
    format_bytes,
    format_compact,
    format_power,
    strip_control,
)
from esper.common.score_scale import ScoreScale
from esper.recordings.health.rules.lanes import MIN_LOSS_SCALE
from esper.recordings.history.timeline import MarkKind
from esper.recordings.state.state import RunState

_CONSOLE = Console()
"""Rich needs a console to wrap a text."""
_FIGURE_AT_END = re.compile(r"(?<![^\s(±≈×])[+−-]?(\d[\d.,:/^e+−-]*|\.\d*)?$")
"""A number, a time or a power at the end of a text, or its sign."""
_FIGURE_CHARS = re.compile(r"[\d.,:/^e+−-]*\d|%")
"""Characters that continue a figure."""


@dataclass(frozen=True)
class Symbol:
    """A glyph and its meaning."""

    name: str
    glyph: str
    meaning: str


def _by_name(*symbols: Symbol) -> dict[str, Symbol]:
    return {symbol.name: symbol for symbol in symbols}


STAGES = _by_name(
    Symbol(Stage.DORMANT.label, "·", "the slot is empty"),
    Symbol(Stage.GERMINATED.label, "g", "a seed is planted; it does not train yet"),
    Symbol(Stage.TRAINING.label, "t", "the seed trains; the host's output is unchanged"),
    Symbol(Stage.BLENDING.label, "b", "the seed's output is blended in; alpha moves to its target"),
    Symbol(Stage.PROBATIONARY.label, "p", "alpha has reached its target; the seed is on trial"),
    Symbol(Stage.FOSSILIZED.label, "F", "the seed is a permanent part of the host"),
    Symbol(Stage.CULLED.label, "x", "the seed was removed"),
    Symbol(Stage.EMBARGOED.label, "z", "the slot is locked for a while after a cull"),
)
"""Stages of a slot, in the order of the lifecycle."""
STAGE_BY_LETTER = {name[0]: name for name in STAGES}
"""Stage names, keyed by the first letter, which stands for the stage in `StepTrace.stages`."""

SEVERITIES = _by_name(
    Symbol("info", "✓", "normal"),
    Symbol("warning", "▲", "check this"),
    Symbol("error", "✖", "action needed"),
)

RUN_STATES: dict[str, tuple[Symbol, str]] = {
    "starting": (Symbol("starting", "○", "torch is loading, and the envs are being built"), "bright"),
    "running": (Symbol("running", "●", "the engine trains"), "info"),
    "silent": (
        Symbol("silent", "▲", "no event for far longer than a step, or its process is stopped"),
        "warning",
    ),
    "stuck": (Symbol("stuck", "▲", "your code has not returned for long, in this env and line"), "warning"),
    "paused": (Symbol("paused", "‖", "paused between two steps"), "warning"),
    "held": (Symbol("held", "✖", "paused by a fault; the reason and the keys are shown below"), "error"),
    "done": (Symbol("done", "✓", "the run has finished"), "dim"),
    "stopped": (Symbol("stopped", "■", "stopped on request before its last round"), "dim"),
    "failed": (Symbol("failed", "✖", "ended with an error; see the log"), "error"),
    "crashed": (Symbol("crashed", "✖", "its process ended without recording the end of the run"), "error"),
    "unreadable": (Symbol("unreadable", "✖", "in the workspace: its files cannot be read"), "bad"),
    "reading": (Symbol("reading", "…", "in the workspace: its files are not read yet"), "dim"),
    "replay": (Symbol("replay", "▶", "replay of a recording"), "curve"),
    "past": (Symbol("past", "◀", "the past of a live run is shown; the live run continues"), "warning"),
}
"""Symbol and style role of each status of a run, and of what the header shows in its place."""
HELD_PLAYBACK_GLYPH = "❚❚"
"""Glyph of a playback that is paused."""

MARK_SYMBOLS: dict[MarkKind, tuple[Symbol, str]] = {
    MarkKind.BOOKMARK: (Symbol("bookmark", "◆", "a moment that the user has marked"), "key"),
    MarkKind.DIVERGENCE: (Symbol("divergence", "≠", "first event that differs from the ghost run"), "key"),
    MarkKind.ROLLBACK: (Symbol("rollback", "↶", "an env broke down; its last good state was restored"), "error"),
    MarkKind.NOT_FINITE: (Symbol("not finite", "✖", "a value became NaN or infinite"), "error"),
    MarkKind.ANOMALY: (Symbol("anomaly", "▲", "a value left its healthy range"), "warning"),
    MarkKind.CHECKPOINT: (Symbol("checkpoint", "C", "a checkpoint was written"), "bright"),
    MarkKind.PAUSE: (Symbol("pause", "‖", "the run was paused"), "bright"),
    MarkKind.SKIP: (Symbol("skip", "↓", "a gradient overflowed; the loss scale was lowered"), "warning"),
    MarkKind.FOSSILIZED: (Symbol("fossilized", "F", "a seed became permanent"), "fossilized"),
    MarkKind.CULLED: (Symbol("culled", "x", "a seed was removed"), "culled"),
    MarkKind.PLANTED: (Symbol("planted", "g", "a seed was planted"), "germinated"),
    MarkKind.ROUND: (Symbol("round", "┼", "a round started; of many rounds, only some are marked"), "dim"),
}
"""Symbol and style role of each kind of mark on the timeline. Of several marks in a cell, the first kind is shown."""

SCALE_TOO_SMALL = "too small"
"""Stands beside a loss scale below `MIN_LOSS_SCALE`, which only loses precision."""

OPS: dict[str, str] = {
    Op.WAIT.label: "do nothing",
    Op.GERMINATE.label: "plant a seed in an empty slot",
    Op.ADVANCE.label: "start to blend in a trained seed",
    Op.SET_ALPHA.label: "change a seed's alpha",
    Op.CULL.label: "remove a seed",
    Op.FOSSILIZE.label: "make a seed permanent",
}
"""Ops of the policy and their meaning."""


class HeadSymbol(NamedTuple):
    """Labels of a policy head, and its meaning."""

    label: str
    short: str
    """Label where there is no room for the other one."""
    meaning: str


HEADS: dict[str, HeadSymbol] = {
    "op": HeadSymbol("op", "op", "The op head chooses what to do in this step, such as to plant or to remove a seed."),
    "slot": HeadSymbol("slot", "slot", "The slot head chooses the slot on which the op acts."),
    "blueprint": HeadSymbol("blueprint", "bp", "The blueprint head chooses the architecture of a new seed."),
    "style": HeadSymbol("style", "style", "The style head chooses how a seed's output is blended into the host's."),
    "tempo": HeadSymbol(
        "tempo", "tempo", "The tempo head chooses the number of steps in which a new seed is blended in."
    ),
    "alpha_target": HeadSymbol("alpha target", "αt", "The alpha target head chooses the alpha at which blending ends."),
    "alpha_speed": HeadSymbol(
        "alpha speed", "αs", "The alpha speed head chooses the number of steps of a change of alpha."
    ),
    "alpha_curve": HeadSymbol("alpha curve", "αc", "The alpha curve head chooses the shape of a change of alpha."),
}
"""Keyed by head name."""


def head_label(head: str, *, short: bool = False) -> str:
    """Return the label of a policy head; the name of an unknown head is its label."""
    symbol = HEADS.get(head)
    return head if symbol is None else symbol.short if short else symbol.label


class Cell(NamedTuple):
    """Text of fixed width and its style role (see `theme.Palette`)."""

    text: str
    role: str = "normal"


def number_cell(value: float | None, before: int, after: int, *, signed: bool = False, fixed: bool = False) -> Cell:
    """Format a number as `align_number` does, in the role of a missing value, of a bad one, of zero, or of others."""
    return Cell(align_number(value, before, after, signed=signed, fixed=fixed), _number_role(value))


def _number_role(value: float | None) -> str:
    if value is None:
        return "absent"
    return "bad" if not math.isfinite(value) else "dim" if value == 0 else "normal"


def percent_cell(value: float | None) -> Cell:
    """Format a fraction as a percentage with one decimal, 5 columns."""
    return number_cell(None if value is None else value * 100, 3, 1, fixed=True)


def score_cell(value: float | None, scale: ScoreScale) -> Cell:
    """Format a score, 5 columns: in percent with one decimal, or with three significant digits."""
    if scale.is_percent:
        return percent_cell(value)
    return Cell(format_compact(value).rjust(5), "absent" if value is None else "normal")


def score_text(value: float, scale: ScoreScale) -> str:
    """Return a score with its unit, in a sentence."""
    return scale.with_unit(scale.number(value))


def gain_cell(gain: float | None, scale: ScoreScale, *, is_error: bool = False) -> Cell:
    """Format a gain in score, such as the dependence on a seed: signed, 6 columns; its standard error, 4 columns."""
    if scale.is_percent:
        points = None if gain is None else gain * 100
        return number_cell(points, 2 if is_error else 4, 1, signed=not is_error, fixed=True)
    sign = "+" if gain and gain > 0 and not is_error else ""
    return Cell((sign + format_compact(gain)).rjust(4 if is_error else 6), "absent" if gain is None else "normal")


def lost_without(state: RunState) -> str:
    """Return what a dependence is: `accuracy lost without it, pp`."""
    scale = state.score_scale
    words = f"{strip_control(state.score_name)} {'lost' if scale.best == 'high' else 'gained'} without it"
    return f"{words}, {scale.difference_unit}".rstrip(", ")


def score_heading(name: str, scale: ScoreScale) -> str:
    """Return the name of a score with its unit, for headings and titles."""
    return scale.with_unit(strip_control(name))


def return_cell(value: float | None) -> Cell:
    """Format a return or a reward with three decimals and its sign, 6 columns."""
    return number_cell(value, 2, 3, signed=True, fixed=True)


def norm_cell(norm: float | None) -> Cell:
    """Format a gradient norm with at most three decimals, 7 columns."""
    return number_cell(norm, 3, 3)


def size_cell(count: int | None, width: int = 0) -> Cell:
    """Format a number of bytes with its unit, right-aligned."""
    if count is None:
        return Cell(NOT_MEASURED.rjust(width), "absent")
    return Cell(format_bytes(count).rjust(width))


def compact_cell(value: float | None, digits: int = 3, *, tight: bool = False) -> Cell:
    """Format a number without padding and trailing zeros.

    Args:
        value: The number; None if not measured.
        digits: Maximum number of significant digits.
        tight: Leave out the zero before the decimal point, to save a column.
    """
    text = format_compact(value, digits)
    return Cell(text.removeprefix("0") if tight and "." in text else text, _number_role(value))


def scale_cell(value: float | None) -> Cell:
    """Format a loss scale as a power of two, such as 2^15, in 5 columns; bad if it is too small."""
    if value is None:
        return Cell(f"  {NOT_MEASURED}  ", "absent")
    if math.isnan(value):
        return Cell(f"{NOT_A_NUMBER:<5}", "bad")
    if value <= 0 or math.isinf(value):
        return Cell(f"{value:<5.2g}", "bad")
    return Cell(format_power(math.log2(value)).ljust(5), "bad" if is_scale_too_small(value) else "normal")


def is_scale_too_small(value: float | None) -> bool:
    """Return True for a loss scale that the rule `loss scale below 1` reports."""
    return value is not None and value < MIN_LOSS_SCALE


def ellipsise(text: str, width: int, *, keep_end: bool = False) -> str:
    """Shorten a text to `width` cells, with an ellipsis if anything is cut off. A figure is never cut inside.

    Args:
        keep_end: Cut off the beginning, for names that differ at their end.
    """
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    if keep_end:
        return "…" + ellipsise(text[::-1], width)[-2::-1]
    kept = set_cell_size(text, width - 1)
    figure = _FIGURE_AT_END.search(kept)
    is_inside = figure is not None and _FIGURE_CHARS.match(text, len(kept)) is not None
    return (kept[: figure.start()] if figure is not None and is_inside else kept) + "…"


def shorten_name(name: str, width: int) -> str:
    """Shorten the name of a blueprint: `conv_heavy` to `…heavy`, so that it differs from `conv_light`."""
    last = f"…{name.rpartition('_')[2]}"
    return last if cell_len(name) > width >= cell_len(last) and "_" in name else ellipsise(name, width)


def slot_labels(names: Sequence[str], width: int) -> list[str]:
    """Return the names of slots; without their common beginning if not all of them fit into `width` columns."""
    labels = [strip_control(name) for name in names]
    common = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*labels, strict=False)))
    if max(map(len, labels)) > width and min(map(len, labels)) > common:
        return [label[common:] for label in labels]
    return labels


def wrap_cells(text: str, width: int) -> list[str]:
    """Wrap a text between words into lines of at most `width` cells.

    `textwrap` counts characters, but some characters take two cells.
    """
    return [line.plain.rstrip() for line in Text(text).wrap(_CONSOLE, width)]


Charset: TypeAlias = Literal["auto", "braille", "block", "ascii"]
CHARSETS: tuple[str, ...] = get_args(Charset)

_QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
"""Block characters. The index is the sum of the filled quarters: upper left 1, upper right 2, lower left 4, right 8."""
_ASCII = str.maketrans(
    "─━│┃┄┈╌╸╺▏▎▍▌▋▊▉█▇▆▅▄▃▂▁░▒▓▔●○■◆▶◀▸◂▲▼✓✖❚‖–−±·…αΔ×≤≠≈↑↓←→↶⇧⇅↵╵╷°“”’•╭╮╰╯┌┐└┘├┤┬┴┼",
    '-=||-----||||####%*+=-_.,:%"*o#&><><!v+X||--~.~adx<#~^v<><^%<||o""\'*+++++++++++++',
)
_KEYS = {"⇧": "Shift-", "←": "Left", "→": "Right", "↑": "Up", "↓": "Down", "↵": "Enter"}
"""ASCII names of key labels. Translated like other glyphs, different keys would look the same."""
_PLAIN_TERMINALS = frozenset({"dumb", "vt100", "vt102", "vt220", "ansi", "unknown"})


def detect_charset(charset: str) -> str:
    """Return `charset`, or the set that fits locale and `TERM` if it is "auto"."""
    if charset != "auto":
        return charset
    # Not `getpreferredencoding`: under LC_ALL=C, Python turns its UTF-8 mode on, although the terminal is not UTF-8.
    if locale.getencoding().lower().replace("-", "") != "utf8":
        return "ascii"
    term = os.environ.get("TERM", "")
    if term in _PLAIN_TERMINALS:
        return "ascii"
    return "block" if term == "linux" else "braille"  # the font of the Linux console has no braille


@lru_cache(4096)
def translate(text: str, charset: str) -> str:
    """Translate a text into the characters of a set."""
    if charset == "braille" or text.isascii():
        return text
    blocks = "".join(_quadrant(ord(c) - 0x2800) if 0x2800 <= ord(c) < 0x2900 else c for c in text)
    if charset == "block":
        return blocks
    drawn = "".join(_ascii_dots(ord(c) - 0x2800) if 0x2800 <= ord(c) < 0x2900 else c for c in text)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in drawn.translate(_ASCII))


def key_name(label: str, charset: str) -> str:
    """Translate the label of a key into the characters of a set."""
    return "".join(_KEYS.get(c, c) for c in label) if charset == "ascii" else label


def _quadrant(dots: int) -> str:
    left, right = dots & 0x47, dots & 0xB8
    quarters = (left & 0x03, right & 0x18, left & 0x44, right & 0xA0)
    return _QUADRANTS[sum(1 << bit for bit, quarter in enumerate(quarters) if quarter)]


def _ascii_dots(dots: int) -> str:
    upper, lower = bool(dots & 0x1B), bool(dots & 0xE4)
    return ":" if upper and lower else "'" if upper else "." if lower else " "


class CharsetFilter(LineFilter):
    """Filter that translates every line of the screen into a character set."""

    def __init__(self, charset: str) -> None:
        super().__init__()
        self.charset = charset

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 (Textual's signature)
        """Return the segments in the characters of the set."""
        charset = self.charset
        return [Segment(translate(text, charset), style, control) for text, style, control in segments]
