"""The language of filters: its grammar, its completions and its errors.

A filter is a list of terms separated by spaces; an item must match all of them. A term is

- a comparison of a key with a value: `score<50%`, `task=recall`;
- a kind of word and the word, with a colon between them: `stage:blending`, `tag:baseline`;
- a flag: `anomaly`, `archived`;
- any other text, which is searched for in the item.

Runs and envs each have a `Vocabulary`: keys, kinds of words, flags and texts.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from esper.common.formatting import suggest

MAX_COMPLETIONS = 20
"""Maximum number of completions, and of terms that a message lists."""

ItemT = TypeVar("ItemT")
Predicate: TypeAlias = Callable[[ItemT], bool]
"""Returns True if an item matches."""
Compare: TypeAlias = Callable[[str, str, str], Predicate[ItemT]]
"""Returns the predicate of a comparison. Arguments: key, symbol and the text after it. Raises FilterError."""

_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_COMPARISON = re.compile(r"([^<>=!:]*)(<=|>=|!=|<|>|=)(.*)")


class FilterError(ValueError):
    """A filter term is invalid; the message names the term and the valid ones."""


class IncompleteFilterError(FilterError):
    """A term is the beginning of a longer one, as while the user types it."""


@dataclass(frozen=True)
class Words(Generic[ItemT]):
    """Words of items that a filter names after a colon."""

    words_of: Callable[[ItemT], Iterable[str | None]]
    """Returns the words of an item."""
    choices: Sequence[str] | None = None
    """The valid words; None if every word is."""
    synonyms: Mapping[str, str] = field(default_factory=dict[str, str])
    """Choices, keyed by other names for them in lower case."""
    fits: Callable[[str, str], bool] = operator.eq
    """Compares a word of an item with the one in the filter, both in lower case. A choice is compared as a whole."""

    def completions(self, items: Iterable[ItemT]) -> Sequence[str]:
        """Return the choices, or without choices the words of some items."""
        return self.choices or sorted({word for item in items for word in self.words_of(item) if word})

    def term(self, kind: str, value: str) -> Predicate[ItemT]:
        """Return the predicate of a word.

        Args:
            kind: Word before the colon, for messages.
            value: Word after the colon, in lower case.

        Raises:
            FilterError: The word is unknown; `IncompleteFilterError` if more text can make it a known one.
        """
        names = list(dict.fromkeys(choice.lower() for choice in self.choices or ()))
        wanted = self.synonyms.get(value, value).lower()
        if not value:
            raise IncompleteFilterError(f"'{kind}:' needs a value" + (f"; valid: {', '.join(names)}" if names else ""))
        if self.choices is not None and not any(self.fits(name, wanted) for name in names):
            is_incomplete = any(name.startswith(value) for name in (*names, *self.synonyms))
            error = IncompleteFilterError if is_incomplete else FilterError
            raise error(f"unknown {kind} '{value}'; {suggest(value, names)}")
        fits = operator.eq if wanted in names else self.fits
        return lambda item: any(fits(word.lower(), wanted) for word in self.words_of(item) if word)


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Generic[ItemT]):
    """Everything that a filter of some items can name. All names are in lower case."""

    keys: Mapping[str, Compare[ItemT]]
    kinds: Mapping[str, Words[ItemT]]
    flags: Sequence[str]
    """Words that are terms by themselves. The caller looks for them in the text; every item matches them here."""
    search: Callable[[str], Predicate[ItemT]]
    """Returns the predicate of any other text."""
    is_text: Callable[[str], bool]
    """Returns True if a text is searched for although it is the beginning of a term, or has a colon."""
    listed_keys: Sequence[str] | None = None
    """The keys that the message about an unknown one lists, if not all of them."""


def parse_filter(text: str, vocabulary: Vocabulary[ItemT]) -> Predicate[ItemT]:
    """Parse a filter; an empty filter matches every item.

    Args:
        text: Filter as the user typed it.
        vocabulary: Everything that the filter can name.

    Raises:
        FilterError: A term is invalid; `IncompleteFilterError` if more text can make it valid.
    """
    terms = [_term(word, vocabulary) for word in text.lower().split() if word not in vocabulary.flags]
    return lambda item: all(term(item) for term in terms)


def _term(word: str, vocabulary: Vocabulary[ItemT]) -> Predicate[ItemT]:
    """Return the predicate of a term. Raises FilterError."""
    if compared := _split_comparison(word):
        name, symbol, value = compared
        if name not in vocabulary.keys:
            hint = suggest(name, vocabulary.keys, listed=vocabulary.listed_keys)
            raise FilterError(f"unknown key '{name}'; {hint}")
        return vocabulary.keys[name](name, symbol, value)
    kind, colon, value = word.partition(":")
    if colon and kind in vocabulary.kinds:
        return vocabulary.kinds[kind].term(kind, value)
    if not vocabulary.is_text(word):
        if colon:
            raise FilterError(f"unknown filter '{kind}:'; {suggest(kind, vocabulary.kinds)}")
        start = word.removesuffix("!")  # of !=
        kinds, keys = (f"{kind}:…" for kind in vocabulary.kinds), (f"{key}<…" for key in vocabulary.keys)
        if longer := [term for term in (*kinds, *vocabulary.flags, *keys) if term.startswith(start)]:
            raise IncompleteFilterError(f"'{word}' is incomplete; possible: {', '.join(longer[:MAX_COMPLETIONS])}")
    return vocabulary.search(word)


def complete_filter(
    text: str, vocabulary: Vocabulary[ItemT], items: Iterable[ItemT], values: Callable[[str], Iterable[str]]
) -> list[str]:
    """Return possible replacements of the last term of a filter, at most `MAX_COMPLETIONS`.

    Before a symbol or a colon, these are the beginnings of terms; after it, terms with the values that exist. Values
    with spaces are left out, because a term has none.

    Args:
        text: Filter as the user typed it.
        vocabulary: Everything that the filter can name.
        items: Items whose words complete a term with a colon.
        values: Returns the values of a key, which complete a comparison.
    """
    last = "" if not text or text[-1].isspace() else text.split()[-1].lower()
    kind, colon, _ = last.partition(":")
    if compared := _split_comparison(last):
        key, symbol, _ = compared
        found = [f"{key}{symbol}{value}" for value in values(key) if key in vocabulary.keys]
    elif colon:
        words = vocabulary.kinds.get(kind)
        found = [f"{kind}:{word}" for word in words.completions(items)] if words else []
    else:
        found = [*(f"{kind}:" for kind in vocabulary.kinds), *vocabulary.flags, *vocabulary.keys]
    return [term for term in found if term.lower().startswith(last) and not re.search(r"\s", term)][:MAX_COMPLETIONS]


def _split_comparison(word: str) -> tuple[str, str, str] | None:
    """Return name, symbol and value of a comparison; None if the term is none."""
    found = _COMPARISON.fullmatch(word)
    return (found[1], found[2], found[3]) if found else None


def parse_number(name: str, text: str, *, example: str = "0.5") -> float:
    """Parse the number in a comparison: 0.5, 50%, 2^15 or nan.

    Args:
        name: Name before the symbol, for messages.
        text: Text after the symbol.
        example: A valid number, for messages.

    Raises:
        FilterError: The text is no number; `IncompleteFilterError` if more text can make it one.
    """
    base, power, exponent = text.partition("^")
    try:
        number = math.pow(float(base), float(exponent)) if power else float(text.removesuffix("%"))
    except (ValueError, OverflowError):
        error = IncompleteFilterError if not text or text.endswith("^") else FilterError
        raise error(f"expected a number after '{name}', as in {name}<{example}; got '{text}'") from None
    return number / 100 if text.endswith("%") else number


def parse_fraction(name: str, text: str) -> float:
    """Parse a fraction that is shown in %: 0.5, 50% or 50. Raises as `parse_number` does."""
    number = parse_number(name, text, example="50%")
    return number / 100 if number > 1 and not text.endswith("%") else number


def compare_number(
    measure: Callable[[ItemT], float | None], parse: Callable[[str, str], float] = parse_number
) -> Compare[ItemT]:
    """Return the comparison of a number. NaN is equal to NaN, and different from all other numbers.

    A comparison of order with NaN is refused, because it would never be true.

    Args:
        measure: Returns the number of an item; None if it was not measured, which never matches.
        parse: Returns the number of a key and the text after the symbol.
    """

    def compare(key: str, symbol: str, text: str) -> Predicate[ItemT]:
        holds, bound = _COMPARE[symbol], parse(key, text)
        if math.isnan(bound) and symbol not in ("=", "!="):
            advice = f"write '{key}=nan' or '{key}!=nan' in place of '{key}{symbol}{text}'"
            raise FilterError(f"no number is less or greater than NaN; {advice}")

        def matches(item: ItemT) -> bool:
            measured = measure(item)
            if measured is None:
                return False
            return math.isnan(measured) == (symbol == "=") if math.isnan(bound) else holds(measured, bound)

        return matches

    return compare
