"""Comparisons in the terms of a filter, such as `score<0.5`, and the errors of filters."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence

from esper.formatting import suggest


class FilterError(ValueError):
    """A filter term is invalid; the message names the term and the valid ones."""


class IncompleteFilterError(FilterError):
    """A term is the beginning of a longer one, as while the user types it."""


_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_COMPARISON = re.compile(r"([^<>=!:]*)(<=|>=|!=|<|>|=)(.*)")


def split_comparison(word: str) -> tuple[str, str, str] | None:
    """Return name, symbol and value of a comparison; None if the term is none."""
    found = _COMPARISON.fullmatch(word)
    return (found[1], found[2], found[3]) if found else None


def number_test(symbol: str, bound: float) -> Callable[[float | None], bool]:
    """Return a function that compares a number with a bound. Its result is False for None, which is not measured.

    Args:
        symbol: Symbol of a comparison.
        bound: Number to compare with. NaN is equal to NaN, and different from all other numbers.
    """
    compare = _COMPARE[symbol]

    def holds(measured: float | None) -> bool:
        if measured is None:
            return False
        if math.isnan(bound):
            return math.isnan(measured) == (symbol == "=")
        return compare(measured, bound)

    return holds


def parse_number(name: str, text: str, *, is_fraction: bool) -> float:
    """Parse the number in a comparison: 0.5, 50%, 2^15 or nan.

    Args:
        name: Name before the symbol, for messages.
        text: Text after the symbol.
        is_fraction: A number above 1 is a percentage.

    Raises:
        FilterError: The text is no number; `IncompleteFilterError` if more text can make it one.
    """
    base, power, exponent = text.partition("^")
    try:
        if power:
            return float(base) ** float(exponent)
        number = float(text.removesuffix("%"))
    except (ValueError, OverflowError, ZeroDivisionError):
        error = IncompleteFilterError if not text or text.endswith("^") else FilterError
        raise error(f"expected a number after '{name}', as in {name}<0.5; got '{text}'") from None
    return number / 100 if text.endswith("%") or (is_fraction and number > 1) else number


def check_choice(value: str, known: Sequence[str], what: str) -> None:
    """Check that a value is one of the known ones.

    Args:
        value: Value that the user typed.
        known: Valid values.
        what: Kind of value, for the message.

    Raises:
        FilterError: It is unknown; `IncompleteFilterError` if more text can make it a known one.
    """
    if value not in known:
        is_incomplete = any(name.startswith(value) for name in known)
        raise (IncompleteFilterError if is_incomplete else FilterError)(
            f"unknown {what} '{value}'; {suggest(value, known)}"
        )
