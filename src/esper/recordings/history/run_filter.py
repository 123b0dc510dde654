"""Filter and sort order of runs, in the language of `esper.common.filters`.

The keys are those of the configuration and the results: `task=recall`, `ppo.entropy-coef<0.05`, `best>90`, `age<2d`.
The heading of a result's column is another name for it: `kept>2` is `fossilized>2`.
The kinds of words are `tag:baseline`, `state:live`, `study:NAME`, `policy:ppo` and `task:recall`. The flag `archived`
selects archived runs; without it, they do not match. A text is searched for in directory, name, task, note and tags.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias, cast

import msgspec

from esper.common.configuration.config import Config
from esper.common.filters import (
    FilterError,
    IncompleteFilterError,
    Predicate,
    Vocabulary,
    Words,
    compare_number,
    parse_fraction,
    parse_number,
)
from esper.common.filters import complete_filter as complete
from esper.common.filters import parse_filter as parse
from esper.common.formatting import format_config_value, suggest
from esper.common.score_scale import PERCENT, ScoreScale, common_scale
from esper.recordings.history.measures import Measure, listed_measures
from esper.recordings.history.run_info import READING_STATE, UNREADABLE_STATE, RunInfo
from esper.recordings.history.run_status import LIVE_STATES
from esper.recordings.history.summary import flat_config

RUN_STATES = (*LIVE_STATES, "done", "stopped", "failed", "crashed", UNREADABLE_STATE, READING_STATE)
"""States of runs, in the order in which they are sorted."""
ARCHIVED_TERM = "archived"

RunNumber: TypeAlias = Callable[[RunInfo], float | None]
"""Returns a number of a run; None if it was not measured."""

_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?)(min|[smhdw])")


def _age(info: RunInfo) -> float:
    return time.time() - info.written


_OTHER_NUMBERS: dict[str, RunNumber] = {
    "round": lambda info: info.round,
    "rounds": lambda info: info.rounds,
    "age": _age,
    "seed": lambda info: info.seed,
    "trial": lambda info: info.trial,
}
"""Numbers that a filter can compare, besides the measures and those of the configuration."""
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
    matches: Predicate[RunInfo]
    """Returns True if the filter selects a run."""


def parse_run_filter(text: str, runs: Sequence[RunInfo]) -> RunFilter:
    """Parse a filter; an empty filter matches every run that is not archived.

    Args:
        text: Filter as the user typed it.
        runs: Runs whose configuration keys the filter can name, besides those of this version.

    Raises:
        FilterError: A term is invalid; `IncompleteFilterError` if more text can make it valid.
    """
    holds = parse(text, _vocabulary(runs, config_keys(runs)))
    shows_archived = ARCHIVED_TERM in text.lower().split()
    return RunFilter(text, lambda info: info.archived == shows_archived and holds(info))


def complete_filter(text: str, runs: Sequence[RunInfo]) -> list[str]:
    """Return possible replacements of the last term of a filter. Keys that differ between the runs come first."""
    keys = sorted(config_keys(runs), key=lambda key: not _differs(key, runs))
    return complete(text, _vocabulary(runs, keys), runs, partial(_recorded_values, runs))


def config_keys(runs: Iterable[RunInfo]) -> list[str]:
    """Return the configuration keys of this version and of the runs, like `ppo.gamma`."""
    return list(dict.fromkeys([*_default_keys(), *(key for info in runs for key in info.config)]))


@cache
def _default_keys() -> tuple[str, ...]:
    return tuple(flat_config(msgspec.to_builtins(Config())))


def _names_by_heading() -> dict[str, str]:
    """Return the names of the measures whose columns have another heading, keyed by it. A term has no spaces."""
    return {
        measure.short: name
        for name, measure in listed_measures().items()
        if measure.short != name and " " not in measure.short
    }


def _vocabulary(runs: Sequence[RunInfo], keys: Sequence[str]) -> Vocabulary[RunInfo]:
    """Return everything that a filter of runs can name.

    Args:
        keys: Configuration keys, in the order in which they are completed.
    """
    settings = dict.fromkeys(keys, partial(_compare_setting, runs))
    parse_score = parse_fraction if common_scale(info.score_scale for info in runs).is_percent else parse_number
    parsers = {"score": parse_score, "s": _parse_duration}
    numbers = {
        name: compare_number(measure.of, parsers.get(measure.unit, parse_number))
        for name, measure in listed_measures().items()
    }
    numbers |= {
        name: compare_number(number, _parse_duration if name == "age" else parse_number)
        for name, number in _OTHER_NUMBERS.items()
    }
    settings = {key: compare for key, compare in settings.items() if key not in numbers}
    states = ("live", *RUN_STATES)
    return Vocabulary(
        keys=numbers | settings | {heading: numbers[name] for heading, name in _names_by_heading().items()},
        kinds={kind: Words(words_of, choices=states if kind == "state" else None) for kind, words_of in _WORDS.items()},
        flags=[ARCHIVED_TERM],
        is_text=lambda word: any(word in _searched_text(info) for info in runs),
        search=lambda word: lambda info: word in _searched_text(info),
        listed_keys=[*numbers, "or any configuration key"],
    )


def _parse_duration(name: str, text: str) -> float:
    """Return a duration in seconds. Raises FilterError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        error = IncompleteFilterError if re.fullmatch(r"[\d.]*(mi)?", text) else FilterError
        raise error(f"expected a number with a unit after '{name}' (s, min, h, d, w), as in {name}<2d; got '{text}'")
    return float(found[1]) * _SECONDS[found[2]]


def _compare_setting(runs: Sequence[RunInfo], key: str, symbol: str, value: str) -> Predicate[RunInfo]:
    """Return the predicate of a comparison with a configuration key. Runs without the key do not match."""
    if symbol in ("=", "!="):
        if not value:
            raise IncompleteFilterError(f"'{key}{symbol}' needs a value")
        wanted = symbol == "="
        return lambda info: key in info.config and _equals(info.config[key], value) == wanted
    recorded = [info.config[key] for info in runs if key in info.config]
    if recorded and all(_as_number(found) is None for found in recorded):
        raise FilterError(f"'{key}' is not a number in any run; compare it with = or !=")
    measure: RunNumber = lambda info: _as_number(info.config.get(key))  # noqa: E731
    return compare_number(measure)(key, symbol, value)


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


def _differs(key: str, runs: Iterable[RunInfo]) -> bool:
    """Return True if the runs have different values of a configuration key."""
    recorded = [info.config[key] for info in runs if key in info.config]
    return any(value != recorded[0] for value in recorded)


def _recorded_values(runs: Sequence[RunInfo], key: str) -> list[str]:
    """Return the different values of a key, numbers in order and before other values. Results have none."""
    measure = _OTHER_NUMBERS[key] if key in ("seed", "rounds", "trial") else None
    recorded = [measure(info) if measure else info.config.get(key) for info in runs]
    values = {format_config_value(value): value for value in recorded if value is not None}
    return sorted(values, key=lambda text: _config_order(values[text]))


# Sorting

_TIME_KEYS: dict[str, Callable[[RunInfo], Any]] = {
    "written": lambda info: info.written,
    "started": lambda info: info.started,
}
_OTHER_SORT_KEYS: dict[str, Callable[[RunInfo], Any]] = {
    "name": lambda info: info.title.lower(),
    "state": lambda info: RUN_STATES.index(info.state),
    "task": lambda info: info.task,
    "policy": lambda info: info.policy,
    "age": _age,
    "study": lambda info: info.study,
}
DEFAULT_SORT_KEY = "written"


def _sort_values() -> dict[str, Callable[[RunInfo], Any]]:
    measures = {key: partial(_value_for_order, measure) for key, measure in listed_measures().items()}
    return _TIME_KEYS | measures | _OTHER_SORT_KEYS


def _value_for_order(measure: Measure, info: RunInfo) -> float | None:
    """Return the number of a run; of a score where lower is better, with the sign changed."""
    value = measure.of(info)
    return info.score_scale.gain(value) if value is not None and measure.unit == "score" else value


def sort_keys() -> list[str]:
    """Return the keys to sort runs by, besides the configuration keys."""
    return list(_sort_values())


def is_descending(key: str, scale: ScoreScale = PERCENT) -> bool:
    """Return True if the order of a sort key begins with the largest value, unless it is reversed.

    Args:
        scale: Scale of the scores. An order by score begins with the best one.
    """
    measure = listed_measures().get(key)
    return key in _TIME_KEYS or (measure is not None and (measure.unit != "score" or scale.best == "high"))


def sort_runs(runs: Sequence[RunInfo], key: str, *, reverse: bool = False) -> list[RunInfo]:
    """Return runs in the order of a key. Equal runs keep their order; runs without a value come last, both ways.

    Args:
        key: One of `sort_keys`, or a configuration key. Times begin with the newest, scores with the best, other
            results with the largest number, and texts, states, ages and configuration values with the smallest.
        reverse: Begin at the other end.

    Raises:
        FilterError: The key is unknown.
    """
    keys, known = config_keys(runs), _sort_values()
    if key not in known and key not in keys:
        listed = [*known, "or any configuration key"]
        name = _names_by_heading().get(key)
        hint = f"did you mean {name}?" if name else suggest(key, [*known, *keys], listed=listed)
        raise FilterError(f"unknown sort key '{key}'; {hint}")
    value_of = known.get(key) or partial(_config_value, key)
    values = [(value_of(info), info) for info in runs]
    measured = [(value, info) for value, info in values if value is not None and value == value]  # NaN differs
    measured.sort(key=lambda pair: pair[0], reverse=reverse != is_descending(key))
    return [*(info for _, info in measured), *(info for value, info in values if value is None or value != value)]


def _config_value(key: str, info: RunInfo) -> tuple[bool, float, str] | None:
    value = info.config.get(key)
    return None if value is None else _config_order(value)


def _config_order(value: Any) -> tuple[bool, float, str]:
    """Return the sort key of a configuration value: numbers in order, then other values by their text."""
    number = _as_number(value)
    return (True, 0.0, format_config_value(value)) if number is None else (False, number, "")
