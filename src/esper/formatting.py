"""Durations, sizes, numbers, tables and "did you mean" hints as text."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Iterable, Iterator, Sequence


def suggest(word: str, names: Iterable[str], *, listed: Iterable[str] | None = None, prefix: str = "") -> str:
    """Return `did you mean …?` with the nearest valid name, or the list of valid names if none is near.

    Args:
        word: The name that was given.
        names: Every valid name.
        listed: The names to list, if those are fewer than all.
        prefix: Start that word and names have in common, for the sentence; they are compared without it.
    """
    names = list(names)
    if close := difflib.get_close_matches(word, names, n=1):
        return f"did you mean {prefix}{close[0]}?"
    return f"valid: {', '.join(f'{prefix}{name}' for name in (names if listed is None else listed))}"


def format_age(seconds: float) -> str:
    """In the largest unit of which there is one."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def format_bytes(count: int) -> str:
    """Bytes, in KiB, MiB or GiB."""
    for unit, length in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 2**10:.1f} KiB"


def format_number(value: float | None, form: str) -> str:
    """A value in a format; what was not measured, and what is no number, by its sign."""
    if value is None:
        return NOT_MEASURED
    return f"{value:{form}}" if math.isfinite(value) else str(value).replace("nan", "NaN")


def align_columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Rows as lines of text with their cells below each other; those of the columns `right` end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds, as few as say it."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


NOT_MEASURED = "–"
NOT_A_NUMBER = "NaN"


def scale_exponent(scale: float | None) -> float | None:
    """The power of two that a loss scale is; None where there is none, or what is there is no scale."""
    return None if scale is None or scale <= 0 else math.log2(scale)


def format_power(exponent: float) -> str:
    """A power of two: 2^15; 2^11.3 where it lies between two."""
    return f"2^{exponent:.{0 if float(exponent).is_integer() else 1}f}".replace("-", "−")


def span(seconds: float | None) -> str:
    """A duration in one or two units: 38s, 1m56s, 14m, 2h05m, 3d04h."""
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


def clock(seconds: float) -> str:
    """A duration as 01:12:40."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def time_of_day(when: float) -> str:
    """Local time of an instant, as 21:14:07."""
    return time.strftime("%H:%M:%S", time.localtime(when))


def strip_control(text: str) -> str:
    """The text without the control characters that would tear the screen."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
