"""Filter and sort order of the envs.

A filter is a list of terms separated by spaces; an env must match all of them. A term is a comparison (`score<0.5`; the
task's name of the score is another word for it, and a number above 1 is a percentage: `accuracy<50`),
`stage:blending`, `device:cuda:1`, `blueprint:norm`, `op:cull`, `anomaly`, an env number, or a text in the env's row.
For a family of tasks also its structure, by name or by number from 1 (`structure:2`), and its settings: `noise>0`,
`source:level`.
Before its first step in an episode, an env is judged by its last step in the previous episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import TypeAlias

from esper.filter_terms import (
    FilterError,
    IncompleteFilterError,
    check_choice,
    number_test,
    parse_number,
    split_comparison,
)
from esper.formatting import short_score_name, suggest
from esper.sanctum.symbols import OPS, STAGES
from esper.telemetry.events import EnvStepped, SlotReading
from esper.telemetry.state import EnvState, RunState

EnvPredicate: TypeAlias = Callable[[EnvState, str | None], bool]
"""Returns True if an env matches. Arguments: the env, and the severity of its worst anomaly or None."""


Measure: TypeAlias = Callable[[EnvState], float | None]
"""Returns a number of an env; None if it was not measured."""
KindTerm: TypeAlias = Callable[[str], EnvPredicate]
"""Returns the predicate of the text after a colon."""


@dataclass(frozen=True)
class EnvFilter:
    """A filter that the user has confirmed."""

    text: str
    passes: EnvPredicate

    def matching(self, state: RunState, severities: Mapping[int, str]) -> frozenset[int]:
        """Return the indices of the envs that match, given the result of `ViewState.severity_by_env`."""
        return frozenset(env.env for env in state.envs if self.passes(env, severities.get(env.env)))


def _of_step(value: Callable[[EnvStepped], float | None]) -> Callable[[EnvState], float | None]:
    return lambda env: value(env.latest) if env.latest else None


NUMERIC_FIELDS: dict[str, Measure] = {
    "env": lambda env: env.env,
    "score": _of_step(lambda step: step.score),
    "best": lambda env: env.best_score,
    "reward": _of_step(lambda step: step.reward),
    "return": lambda env: env.episode_return,
    "loss": _of_step(lambda step: step.loss),
    "grad": _of_step(lambda step: step.grad_norm),
    "scale": _of_step(lambda step: step.loss_scale),
    "params": _of_step(lambda step: step.parameter_ratio),
    "value": _of_step(lambda step: step.value),
    "skipped": _of_step(lambda step: step.skipped_batches),
}
"""Numbers that a filter can compare and the table can sort by. None if not measured."""
_FRACTIONS = frozenset({"score", "best"})
"""Fractions that the screens show as percentages: a filter may compare them with 0.5, 50% or 50."""


def _score_words(score: str) -> list[str]:
    """Return further words for `score` in filters: the name of the task's score, and its short form."""
    return ["-".join(name.lower().split()) for name in (score, short_score_name(score))]


def parse_filter(text: str, state: RunState) -> EnvPredicate:
    """Parse a filter; an empty filter matches every env. The beginning of a keyword is not searched for as a text.

    Args:
        text: Filter as the user typed it.
        state: State of the run, whose lanes, score and family of tasks the filter can name.

    Raises:
        FilterError: A term is invalid; `IncompleteFilterError` if more text can make it valid.
    """
    lanes, structures = (state.started.lanes, state.started.structures) if state.started else ((), ())
    contexts = [env.context for env in state.envs if env.context]
    settings = list(contexts[0].settings) if contexts else []
    numbers = {name.lower(): _setting(name) for name in settings}
    numbers |= dict.fromkeys(_score_words(state.score_name), NUMERIC_FIELDS["score"]) | NUMERIC_FIELDS
    kinds: dict[str, KindTerm] = {
        "stage": _at_stage,
        "device": partial(_on_device, lanes),
        "blueprint": _of_blueprint,
        "op": _with_op,
    }
    kinds |= {name.lower(): partial(_with_setting, name) for name in settings}
    if structures:
        kinds["structure"] = partial(_of_structure, [structure.name for structure in structures])
    terms = [_term(word, lanes, numbers, kinds) for word in text.lower().split()]
    return lambda env, severity: all(term(env, severity) for term in terms)


def _term(
    word: str, lanes: Sequence[str], numbers: Mapping[str, Measure], kinds: Mapping[str, KindTerm]
) -> EnvPredicate:
    """Return the predicate of a term.

    Args:
        word: The term.
        lanes: Lane names of the run.
        numbers: Numbers that can be compared, keyed by name.
        kinds: Terms with a colon, keyed by the word before it.
    """
    if word == "anomaly":
        return lambda _, severity: severity is not None
    if compared := split_comparison(word):
        return _comparison(*compared, numbers)
    kind, colon, value = word.partition(":")
    if colon and kind in kinds:
        return kinds[kind](value)
    if colon and not any(word in lane for lane in lanes):
        raise FilterError(f"unknown filter '{kind}:'; {suggest(kind, kinds)}")
    if word.isdecimal():
        number = int(word)
        return lambda env, _: env.env == number
    terms = (*(f"{name}<…" for name in numbers), *(f"{kind}:…" for kind in kinds), "anomaly")
    if longer := [term for term in terms if term.startswith(word.removesuffix("!"))]:
        raise IncompleteFilterError(f"'{word}' is incomplete; possible: {', '.join(longer)}")
    return lambda env, _: word in _row_text(env)


def _comparison(name: str, symbol: str, value: str, numbers: Mapping[str, Measure]) -> EnvPredicate:
    if name not in numbers:
        raise FilterError(f"unknown number '{name}'; {suggest(name, numbers)}")
    measure = numbers[name]
    is_fraction = measure in [NUMERIC_FIELDS[name] for name in _FRACTIONS]
    holds = number_test(symbol, parse_number(name, value, is_fraction=is_fraction))
    return lambda env, _: holds(measure(env))


def _at_stage(value: str) -> EnvPredicate:
    check_choice(value, list(STAGES), "stage")
    return _any_slot(lambda slot: slot.stage == value)


def _of_blueprint(value: str) -> EnvPredicate:
    if not value:
        raise IncompleteFilterError("'blueprint:' needs a name, as in blueprint:norm")
    return _any_slot(lambda slot: value in (slot.blueprint or ""))


def _any_slot(holds: Callable[[SlotReading], bool]) -> EnvPredicate:
    return lambda env, _: env.latest is not None and any(map(holds, env.latest.slots))


def _with_op(value: str) -> EnvPredicate:
    check_choice(value, list(OPS), "op")
    return lambda env, _: env.latest is not None and env.latest.op == value


def _on_device(lanes: Sequence[str], value: str) -> EnvPredicate:
    if not value or not any(lane.startswith(value) for lane in lanes):
        error = FilterError if value else IncompleteFilterError
        raise error(f"unknown device '{value}'; {suggest(value, dict.fromkeys(lanes))}")
    exact = value in lanes
    return lambda env, _: env.lane == value if exact else env.lane.startswith(value)


def _of_structure(structures: Sequence[str], value: str) -> EnvPredicate:
    names = {name.lower(): name for name in structures} | {str(at): name for at, name in enumerate(structures, 1)}
    check_choice(value, list(names), "structure")
    return lambda env, _: env.context is not None and env.context.structure == names[value]


def _with_setting(name: str, value: str) -> EnvPredicate:
    if not value:
        raise IncompleteFilterError(f"'{name}:' needs a value")

    def holds(env: EnvState, _: str | None) -> bool:
        found = _setting_of(env, name)
        return found is not None and (found.lower() if isinstance(found, str) else f"{found:g}") == value

    return holds


def _setting(name: str) -> Measure:
    def value(env: EnvState) -> float | None:
        found = _setting_of(env, name)
        return found if isinstance(found, float) else None

    return value


def _setting_of(env: EnvState, name: str) -> float | str | None:
    return env.context.settings.get(name) if env.context else None


def _row_text(env: EnvState) -> str:
    """Return the texts in the row of an env, in lower case."""
    words = [f"{env.env:02d}", env.lane]
    if env.context is not None:
        words += [env.context.structure, *map(str, env.context.settings.values())]
    if env.latest is not None:
        words.append(env.latest.op)
        for slot in env.latest.slots:
            words += [slot.stage, slot.blueprint or ""]
    return " ".join(words).lower()


def sort_envs(
    envs: Sequence[EnvState], value: Callable[[EnvState], float | None], *, descending: bool, first: frozenset[int]
) -> list[int]:
    """Return env indices sorted by a value.

    Args:
        envs: Envs to sort.
        value: Value to sort by; None if not measured. NaN sorts before all numbers, None after them.
        descending: Put the largest number first.
        first: Envs that come before all others, such as pinned ones.
    """

    def sort_key(env: EnvState) -> tuple[bool, int, float, int]:
        measured = value(env)
        if measured is None:
            return env.env not in first, 2, 0.0, env.env
        if math.isnan(measured):
            return env.env not in first, 0, 0.0, env.env
        return env.env not in first, 1, -measured if descending else measured, env.env

    return [env.env for env in sorted(envs, key=sort_key)]


def worst_env(envs: Sequence[EnvState], severities: Mapping[int, str]) -> int | None:
    """Return the worst env: by severity of its anomalies, then by a NaN score, then by a low score.

    None if there are no envs.
    """

    def badness(env: EnvState) -> tuple[int, bool, float]:
        known = severities.get(env.env)
        return 0 if known == "error" else 1 if known else 2, *_by_score(env)

    return min(envs, key=badness).env if envs else None


def find_worst(envs: Sequence[EnvState], previous: Collection[int], count: int) -> frozenset[int]:
    """Return the envs with the lowest scores, `count` at most.

    An env of the `previous` result stays while it is among the worst `2 * count`, so that the result rarely changes.
    """
    worst = [env.env for env in nsmallest(2 * count, envs, key=_by_score) if env.latest is not None]
    return frozenset(sorted(worst, key=lambda env: env not in previous)[:count])


def _by_score(env: EnvState) -> tuple[bool, float]:
    """Sort key: NaN first, then the lowest score; an env without a step last."""
    score = env.latest.score if env.latest else math.inf
    return not math.isnan(score), score
