"""Filter and sort order of runs.

A filter is a list of terms separated by spaces; a run must match all of them. A term is

- a comparison with a configuration key or a result: `task=recall`, `ppo.entropy-coef<0.05`, `best>90`, `age<2d`;
- `tag:baseline`, `state:live`, `study:NAME`, `policy:ppo` or `task:recall`: exactly this word, in any case;
- `archived`: an archived run. Without this term, archived runs do not match;
- any other text, which is searched for in directory, name, task, note and tags.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

import msgspec

from esper.config import Config
from esper.filter_terms import (
    FilterError,
    IncompleteFilterError,
    check_choice,
    number_test,
    parse_number,
    split_comparison,
)
from esper.formatting import format_config_value, suggest
from esper.history.run_info import READING_STATE, UNREADABLE_STATE, RunInfo
from esper.history.run_status import LIVE_STATES
from esper.history.summary import flat_config

RUN_STATES = (*LIVE_STATES, "done", "stopped", "failed", "crashed", UNREADABLE_STATE, READING_STATE)
"""States of runs, in the order in which they are sorted."""
STATE_WORDS = ("live", *RUN_STATES)
"""States that a filter can name: `live` stands for those of a run that a process trains."""
MAX_COMPLETIONS = 20
SMOOTHED_ROUNDS = 5
"""Number of last rounds over which the smoothed score is the mean."""
ARCHIVED_TERM = "archived"

RunPredicate: TypeAlias = Callable[[RunInfo], bool]
Measure: TypeAlias = Callable[[RunInfo], float | None]
"""Returns a number of a run; None if it was not measured."""

_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AGE = re.compile(r"(\d+(?:\.\d*)?)(min|[smhdw])")


def _age(info: RunInfo) -> float:
    return time.time() - info.written


def _smoothed(info: RunInfo) -> float | None:
    recent = info.scores[-SMOOTHED_ROUNDS:]
    return statistics.fmean(recent) if recent else None


NUMBERS: dict[str, Measure] = {
    "best": lambda info: info.best_score,
    "last": lambda info: info.last_score,
    "smoothed": _smoothed,
    "return": lambda info: info.last_return,
    "parameters": lambda info: info.parameter_ratio,
    "round": lambda info: info.round,
    "rounds": lambda info: info.rounds,
    "anomalies": lambda info: info.anomalies,
    "age": _age,
    "seed": lambda info: info.seed,
    "trial": lambda info: info.trial,
}
"""Numbers that a filter can compare, besides those of the configuration."""
_FRACTIONS = ("best", "last", "smoothed")
"""Fractions that are shown as percentages: a filter may compare them with 0.5, 50% or 50."""
_WORDS: dict[str, Callable[[RunInfo], Sequence[str | None]]] = {
    "tag": lambda info: info.tags,
    "state": lambda info: ("live", info.state) if info.state in LIVE_STATES else (info.state,),
    "study": lambda info: (info.study,),
    "policy": lambda info: (info.policy,),
    "task": lambda info: (info.task,),
}
"""Words of a run that a term with a colon names."""


@dataclass(frozen=True)
class RunFilter:
    """A filter of runs."""

    text: str
    """Filter as the user typed it."""
    terms: tuple[RunPredicate, ...]
    shows_archived: bool

    def matches(self, info: RunInfo) -> bool:
        """Return True if a run matches all terms."""
        return info.archived == self.shows_archived and all(term(info) for term in self.terms)


def parse_run_filter(text: str, runs: Iterable[RunInfo]) -> RunFilter:
    """Parse a filter; an empty filter matches every run that is not archived.

    Args:
        text: Filter as the user typed it.
        runs: Runs whose configuration keys the filter can name, besides those of this version.

    Raises:
        FilterError: A term is invalid; `IncompleteFilterError` if more text can make it valid.
    """
    runs, words = list(runs), text.lower().split()
    keys = config_keys(runs)
    terms = tuple(_term(word, runs, keys) for word in words if word != ARCHIVED_TERM)
    return RunFilter(text, terms, shows_archived=ARCHIVED_TERM in words)


def config_keys(runs: Iterable[RunInfo]) -> list[str]:
    """Return the configuration keys of this version and of the runs, like `ppo.gamma`."""
    return list(dict.fromkeys([*_default_keys(), *(key for info in runs for key in info.config)]))


@cache
def _default_keys() -> tuple[str, ...]:
    return tuple(flat_config(msgspec.to_builtins(Config())))


def _term(word: str, runs: Sequence[RunInfo], keys: Sequence[str]) -> RunPredicate:
    """Return the predicate of a term. Raises FilterError."""
    if compared := split_comparison(word):
        name, symbol, value = compared
        if name in NUMBERS:
            return _number_term(name, symbol, value)
        if name in keys:
            return _config_term(name, symbol, value, runs)
        results = [*NUMBERS, "or any configuration key"]
        raise FilterError(f"unknown key '{name}'; {suggest(name, [*NUMBERS, *keys], listed=results)}")
    kind, colon, value = word.partition(":")
    if colon:
        if kind not in _WORDS:
            raise FilterError(f"unknown filter '{kind}:'; {suggest(kind, _WORDS)}")
        if not value:
            raise IncompleteFilterError(f"'{kind}:' needs a value")
        if kind == "state":
            check_choice(value, STATE_WORDS, kind)
        words_of = _WORDS[kind]
        return lambda info: value in [(found or "").lower() for found in words_of(info)]
    longer = [term for term in _term_names(keys) if term.startswith(word)]
    if longer and not any(word in _searched_text(info) for info in runs):
        possible = ", ".join(longer[:MAX_COMPLETIONS])
        raise IncompleteFilterError(f"'{word}' is incomplete; possible: {possible}")
    return lambda info: word in _searched_text(info)


def _number_term(name: str, symbol: str, value: str) -> RunPredicate:
    measure = NUMBERS[name]
    bound = _parse_age(value) if name == "age" else parse_number(name, value, is_fraction=name in _FRACTIONS)
    holds = number_test(symbol, bound)
    return lambda info: holds(measure(info))


def _parse_age(text: str) -> float:
    """Return an age in seconds. Raises FilterError."""
    found = _AGE.fullmatch(text)
    if found is None:
        error = IncompleteFilterError if re.fullmatch(r"[\d.]*(mi)?", text) else FilterError
        raise error(f"expected a number with a unit after 'age' (s, min, h, d, w), as in age<2d; got '{text}'")
    return float(found[1]) * _SECONDS[found[2]]


def _config_term(key: str, symbol: str, value: str, runs: Sequence[RunInfo]) -> RunPredicate:
    """Return the predicate of a comparison with a configuration key. Runs without the key do not match."""
    if symbol in ("=", "!="):
        if not value:
            raise IncompleteFilterError(f"'{key}{symbol}' needs a value")
        wanted = symbol == "="
        return lambda info: key in info.config and _equals(info.config[key], value) == wanted
    recorded = [info.config[key] for info in runs if key in info.config]
    if recorded and all(_as_number(found) is None for found in recorded):
        raise FilterError(f"'{key}' is not a number in any run; compare it with = or !=")
    holds = number_test(symbol, parse_number(key, value, is_fraction=False))
    return lambda info: holds(_as_number(info.config.get(key)))


def _equals(recorded: Any, value: str) -> bool:
    """Return True if a value of a configuration is the one that the user typed, or a list that contains it."""
    if isinstance(recorded, list):
        items = cast("list[object]", recorded)
        return any(_equals(item, value) for item in items) or (not items and _equals(None, value))
    if (number := _as_number(recorded)) is not None:
        try:
            return number == float(value)
        except ValueError:
            return False
    return format_config_value(recorded).lower() == value


def _as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _searched_text(info: RunInfo) -> str:
    return "\n".join([info.run, info.name or "", info.task or "", info.note or "", *info.tags]).lower()


def _term_names(keys: Iterable[str]) -> list[str]:
    """Return the beginnings of all terms: a word with a colon, or a name to compare."""
    return list(dict.fromkeys([*(f"{kind}:" for kind in _WORDS), ARCHIVED_TERM, *NUMBERS, *keys]))


def complete_filter(text: str, runs: Sequence[RunInfo]) -> list[str]:
    """Return possible replacements of the last term of a filter, at most MAX_COMPLETIONS.

    Before a symbol or a colon, these are keys, first those whose values differ between the runs; after it, terms with
    the values that exist. Values with spaces are left out, because a term has none.
    """
    last = "" if not text or text[-1].isspace() else text.split()[-1]
    folded = last.lower()
    kind, colon, _ = folded.partition(":")
    if compared := split_comparison(folded):
        key, symbol, _ = compared
        found = [f"{key}{symbol}{value}" for value in _recorded_values(key, runs)]
    elif colon:
        words_of = _WORDS.get(kind, lambda _: ())
        values = STATE_WORDS if kind == "state" else {word for info in runs for word in words_of(info) if word}
        found = [f"{kind}:{value}" for value in (values if kind == "state" else sorted(values))]
    else:
        keys = config_keys(runs)
        differing = [key for key in keys if _differs(key, runs)]
        found = _term_names([*differing, *keys])
    fitting = [term for term in found if term.lower().startswith(folded) and not re.search(r"\s", term)]
    return fitting[:MAX_COMPLETIONS]


def _differs(key: str, runs: Iterable[RunInfo]) -> bool:
    """Return True if the runs have different values of a configuration key."""
    recorded = [info.config[key] for info in runs if key in info.config]
    return any(value != recorded[0] for value in recorded)


def _recorded_values(key: str, runs: Iterable[RunInfo]) -> list[str]:
    """Return the different values of a configuration key, numbers in order and before other values."""
    if key in ("seed", "rounds", "trial"):
        recorded: list[Any] = [NUMBERS[key](info) for info in runs]
    else:
        recorded = [info.config.get(key) for info in runs]
    values = {format_config_value(value): value for value in recorded if value is not None}
    return sorted(values, key=lambda text: _config_order(values[text]))


# Sorting

_TEXTS: dict[str, Callable[[RunInfo], str | None]] = {
    "name": lambda info: info.title.lower(),
    "task": lambda info: info.task,
    "policy": lambda info: info.policy,
    "study": lambda info: info.study,
}
_DESCENDING: dict[str, Measure] = {
    "written": lambda info: info.written,
    "started": lambda info: info.started,
    **{name: NUMBERS[name] for name in ("best", "last", "smoothed", "return", "parameters", "anomalies")},
}
DESCENDING_KEYS = frozenset(_DESCENDING)
"""Sort keys whose order begins with the largest value, unless it is reversed."""
_ASCENDING: dict[str, Measure] = {"state": lambda info: RUN_STATES.index(info.state), "age": _age}

SORT_KEYS = (
    "written",
    "started",
    "name",
    "state",
    "task",
    "policy",
    "best",
    "last",
    "smoothed",
    "return",
    "parameters",
    "age",
    "anomalies",
    "study",
)
"""Keys to sort runs by, besides the configuration keys."""


def sort_runs(runs: Sequence[RunInfo], key: str, *, reverse: bool = False) -> list[RunInfo]:
    """Return runs in the order of a key. Equal runs keep their order; runs without a value come last, both ways.

    Args:
        runs: Runs to sort.
        key: One of SORT_KEYS, or a configuration key. Times begin with the newest, results with the largest number,
            and texts, states, ages and configuration values with the smallest.
        reverse: Begin at the other end.

    Raises:
        FilterError: The key is unknown.
    """
    value: Callable[[RunInfo], Any]
    if key in SORT_KEYS:
        value = next(table[key] for table in (_TEXTS, _DESCENDING, _ASCENDING) if key in table)
    elif key in (known := config_keys(runs)):
        value = lambda info: _config_order(info.config[key]) if info.config.get(key) is not None else None  # noqa: E731
    else:
        listed = [*SORT_KEYS, "or any configuration key"]
        raise FilterError(f"unknown sort key '{key}'; {suggest(key, [*SORT_KEYS, *known], listed=listed)}")
    measured: list[tuple[Any, RunInfo]] = []
    unmeasured: list[RunInfo] = []
    for info in runs:
        found = value(info)
        if found is None or (isinstance(found, float) and math.isnan(found)):
            unmeasured.append(info)
        else:
            measured.append((found, info))
    measured.sort(key=lambda pair: pair[0], reverse=reverse != (key in _DESCENDING))
    return [*(info for _, info in measured), *unmeasured]


def _config_order(value: Any) -> tuple[bool, float, str]:
    """Return the sort key of a configuration value: numbers in order, then other values by their text."""
    number = _as_number(value)
    return (True, 0.0, format_config_value(value)) if number is None else (False, number, "")
