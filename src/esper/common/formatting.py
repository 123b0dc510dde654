"""Durations, sizes, numbers, counts, "did you mean" hints and advised commands as text."""

from __future__ import annotations

import difflib
import html
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

NOT_MEASURED = "–"
NOT_A_NUMBER = "NaN"
APPROXIMATE = "≈"
"""Sign before a number of an episode that was not reproduced exactly."""


def suggest(word: str, names: Iterable[str], *, listed: Iterable[str] | None = None, prefix: str = "") -> str:
    """Return `did you mean …?` with the nearest valid name, or the list of valid names if none is near.

    Args:
        word: The name that was given.
        names: Every valid name.
        listed: The names to list, if not all of them.
        prefix: Start that the word and the names share in the sentence; they are compared without it.
    """
    names = list(names)
    if nearest := suggest_nearest(word, names, prefix=prefix):
        return nearest
    return f"valid: {', '.join(f'{prefix}{name}' for name in (names if listed is None else listed))}"


def suggest_nearest(word: str, names: Iterable[str], *, prefix: str = "") -> str:
    """Return `did you mean …?` with the nearest valid name; empty if none is near. Arguments are as in `suggest`."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return f"did you mean {prefix}{close[0]}?" if close else ""


def join_alternatives(words: Sequence[str]) -> str:
    """Return words as alternatives: `a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def install_command(extra: str) -> str:
    """Return the command that installs an optional dependency in the checkout.

    `--inexact` keeps everything that is installed; otherwise uv removes the packages of other extras and of all groups.
    """
    return f"uv sync --inexact --extra {extra}"


def format_age(seconds: float) -> str:
    """Return an age in its largest full unit: `3 d ago`, `2 h ago`, `5 min ago`, `just now`.

    A time ahead of the clock, which was set back since then, is `in the future`.
    """
    if seconds <= -60:
        return "in the future"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def format_duration(seconds: float | None) -> str:
    """Return a duration in one or two units: 38s, 1m56s, 14m, 2h05m, 3d04h. A dash if it was not measured."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def format_clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: 01:12:40."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def format_time_of_day(timestamp: float) -> str:
    """Return the local time of a Unix timestamp: 21:14:07."""
    return time.strftime("%H:%M:%S", time.localtime(timestamp))


def format_bytes(count: int) -> str:
    """Return a number of bytes in KiB, MiB or GiB."""
    for unit, length in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 2**10:.1f} KiB"


def format_number(value: float | None, spec: str) -> str:
    """Return a number in a format specification; a dash for None, and `NaN`, `inf` or `-inf` in words."""
    if value is None:
        return NOT_MEASURED
    return f"{value:{spec}}" if math.isfinite(value) else str(value).replace("nan", NOT_A_NUMBER)


def align_number(value: float | None, before: int, after: int, *, signed: bool = False, fixed: bool = False) -> str:
    """Return a number with three significant digits and the decimal point in a fixed column.

    Args:
        value: The number; a dash for None.
        before: Columns before the decimal point.
        after: Columns after the decimal point. A number that does not fit is written as 4e-5, which needs two columns.
        signed: Mark positive numbers with a plus.
        fixed: Keep all `after` decimals, and round a smaller number to 0.00. For numbers of a known scale.
    """
    width = before + 1 + after
    if value is None:
        return NOT_MEASURED.rjust(before).ljust(width)
    if not math.isfinite(value):
        text = NOT_A_NUMBER if math.isnan(value) else "inf" if value > 0 else "−inf"
        return text.rjust(before).ljust(width)
    if value == 0:
        return "0".rjust(before).ljust(width)
    decimals = after if fixed else _num_decimals(value, after)
    sign = "−" if value < 0 else "+" if signed else ""
    digits = f"{abs(value):.{decimals}f}"
    whole, point, fraction = digits.partition(".")
    if (float(digits) == 0 and not fixed) or len(sign + whole) > before:
        mantissa, _, exponent = f"{abs(value):.0e}".partition("e")
        return f"{(sign + mantissa).rjust(before)}e{int(exponent)}".ljust(width)
    return ((sign + whole).rjust(before) + point + fraction).ljust(width)


def format_compact(value: float | None, digits: int = 3) -> str:
    """Return a number in at most `digits` significant digits, without padding and trailing zeros; a dash for None."""
    if value and math.isfinite(value) and digits - 1 - _magnitude(value) < _num_decimals(value, 4):
        value = float(f"{value:.{digits}g}")  # otherwise the number would be rounded twice
    text = align_number(value, 4, 4).strip()
    return text.rstrip("0").rstrip(".") if "." in text else text


def _magnitude(value: float) -> int:
    """Return the power of ten of the first digit of a number that is not 0."""
    return math.floor(math.log10(abs(value)))


def _num_decimals(value: float, limit: int) -> int:
    """Return the number of decimals that three significant digits need, up to a limit."""
    return min(max(2 - _magnitude(value), 0), limit)


def format_return(value: float | None) -> str:
    """Return a return or a reward with its sign and three decimals; a dash for None."""
    return align_number(value, 2, 3, signed=True, fixed=True).strip()


def format_value(value: float) -> str:
    """Return three digits of a value, or a word for one that is not finite."""
    if math.isfinite(value):
        return f"{value:.3g}"
    return "NaN" if math.isnan(value) else "infinite"


def ordinal(number: int) -> str:
    """Return a number as an ordinal: 1st, 2nd, 43rd, 111th."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def pluralise(count: int, one: str, more: str = "") -> str:
    """Return a count with its noun, for example `1 env` or `2 envs`.

    Args:
        count: Number of things.
        one: Singular of the noun.
        more: Plural of the noun, if it is not the singular and an s.
    """
    return f"{count} {one if count == 1 else more or one + 's'}"


def format_power(exponent: float) -> str:
    """Return a power of two: 2^15, or 2^11.3 if the exponent is not an integer."""
    return f"2^{exponent:.{0 if float(exponent).is_integer() else 1}f}".replace("-", "−")


def scale_exponent(scale: float | None) -> float | None:
    """Return the base-2 logarithm of a loss scale; None if the scale is absent or not positive."""
    return None if scale is None or scale <= 0 else math.log2(scale)


def html_text(text: str) -> str:
    """Return text with its line breaks as HTML, for notebooks."""
    return f"<pre>{html.escape(text)}</pre>"


def strip_control(text: str) -> str:
    """Return the text with each control character replaced by a space, because it would corrupt the screen."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def short_score_name(name: str) -> str:
    """Return the name of a score for narrow columns, at most six characters: "acc" for the accuracy."""
    return "acc" if name == "accuracy" else name[:6]


def format_config_value(value: Any) -> str:
    """Format a value of a recorded configuration: lists separated by spaces, absent values as `unset`."""
    if isinstance(value, list):
        return " ".join(map(str, cast("list[object]", value))) or "unset"
    return "unset" if value in (None, "") else str(value)
