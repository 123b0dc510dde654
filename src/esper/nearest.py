"""What to say about a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str], *, listed: Iterable[str] | None = None, prefix: str = "") -> str:
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
