"""Filter and sort order of the envs, in the language of `esper.common.filters`.

The keys are numbers of an env: `score<50%`, for which the task's name of the score is another word. The kinds of words
are `stage:blending`, also by its symbol (`stage:b`), `device:cuda:1`, `blueprint:norm` and `op:cull`. The flag
`anomaly` selects envs with one. A text is an env number, or is searched for in the env's row.
A family of tasks also has its structure, by name or by number from 1 (`structure:2`), and its settings: `noise>0`,
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

from esper.common.filters import Predicate, Vocabulary, Words, compare_number, parse_fraction, parse_number
from esper.common.filters import parse_filter as parse
from esper.common.formatting import short_score_name
from esper.common.score_scale import ScoreScale
from esper.recordings.events import EnvStepped, SlotReading
from esper.recordings.state.state import EnvState, RunState
from esper.sanctum.symbols import OPS, STAGES

ANOMALY = "anomaly"
Measure: TypeAlias = Callable[[EnvState], float | None]
"""Returns a number of an env; None if it was not measured."""


@dataclass(frozen=True)
class EnvFilter:
    """A filter of envs."""

    text: str
    """Filter as the user typed it."""
    passes: Callable[[EnvState, str | None], bool]
    """Returns True if an env matches. Arguments: the env, and the severity of its worst anomaly or None."""

    def matching(self, state: RunState, severities: Mapping[int, str]) -> frozenset[int]:
        """Return the indices of the envs that match, given the result of `ViewState.severity_by_env`."""
        return frozenset(env.env for env in state.envs if self.passes(env, severities.get(env.env)))


def _of_step(value: Callable[[EnvStepped], float | None]) -> Measure:
    return lambda env: value(env.latest) if env.latest else None


NUMERIC_FIELDS: dict[str, Measure] = {
    "env": lambda env: env.env,
    "score": _of_step(lambda step: step.score),
    "best": lambda env: env.best_score,
    "reward": _of_step(lambda step: step.reward),
    "return": lambda env: env.latest_return,
    "loss": _of_step(lambda step: step.loss),
    "grad": _of_step(lambda step: step.grad_norm),
    "scale": _of_step(lambda step: step.loss_scale),
    "params": _of_step(lambda step: step.parameter_ratio),
    "value": _of_step(lambda step: step.value),
    "skipped": _of_step(lambda step: step.skipped_batches),
}
"""Numbers that a filter can compare and the table can sort by. None if not measured."""


def parse_filter(text: str, state: RunState) -> EnvFilter:
    """Parse a filter; an empty filter matches every env. The beginning of a keyword is not searched for as a text.

    The terms do not depend on the present rows, so a valid filter stays valid in the next step.

    Args:
        text: Filter as the user typed it.
        state: State of the run, whose lanes, score and family of tasks the filter can name.

    Raises:
        FilterError: A term is invalid; `IncompleteFilterError` if more text can make it valid.
    """
    holds = parse(text, _vocabulary(state))
    needs_anomaly = ANOMALY in text.lower().split()
    return EnvFilter(text, lambda env, severity: (severity is not None or not needs_anomaly) and holds(env))


def _vocabulary(state: RunState) -> Vocabulary[EnvState]:
    """Return everything that a filter of the envs of a run can name."""
    lanes, structures = (state.started.lanes, state.started.structures) if state.started else ((), ())
    contexts = [env.context for env in state.envs if env.context]
    settings = list(contexts[0].settings) if contexts else []
    score = state.score_name
    score_words = ["-".join(name.lower().split()) for name in (score, short_score_name(score))]
    scores = ("score", "best")
    parse_score = parse_fraction if state.score_scale.is_percent else parse_number
    keys = {name.lower(): compare_number(partial(_setting_number, name)) for name in settings}
    keys |= dict.fromkeys(score_words, compare_number(NUMERIC_FIELDS["score"], parse_score))
    keys |= {
        name: compare_number(measure, parse_score if name in scores else parse_number)
        for name, measure in NUMERIC_FIELDS.items()
    }
    stages = {symbol.glyph.lower(): name for name, symbol in STAGES.items()}
    kinds: dict[str, Words[EnvState]] = {
        "stage": Words(lambda env: [slot.stage for slot in _slots(env)], choices=list(STAGES), synonyms=stages),
        "device": Words(lambda env: [env.lane], choices=lanes, fits=str.startswith),
        "blueprint": Words(lambda env: [slot.blueprint for slot in _slots(env)], fits=str.__contains__),
        "op": Words(lambda env: [env.latest.op] if env.latest else [], choices=list(OPS)),
    }
    kinds |= {name.lower(): Words(partial(_setting_words, name)) for name in settings}
    if structures:
        names = [structure.name for structure in structures]
        numbers = {str(number): name for number, name in enumerate(names, 1)}
        words_of: Callable[[EnvState], list[str]] = lambda env: [env.context.structure] if env.context else []  # noqa: E731
        kinds["structure"] = Words(words_of, choices=names, synonyms=numbers)
    return Vocabulary(
        keys=keys,
        kinds=kinds,
        flags=[ANOMALY],
        is_text=lambda word: ":" in word and any(word in lane for lane in lanes),
        search=_search,
    )


def _search(word: str) -> Predicate[EnvState]:
    """Return the predicate of an env number, or of a text in the row of an env."""
    if word.isdecimal():
        number = int(word)
        return lambda env: env.env == number
    return lambda env: word in _row_text(env)


def _slots(env: EnvState) -> Sequence[SlotReading]:
    return env.latest.slots if env.latest else ()


def _setting_number(name: str, env: EnvState) -> float | None:
    found = env.context.settings.get(name) if env.context else None
    return found if isinstance(found, float) else None


def _setting_words(name: str, env: EnvState) -> list[str]:
    found = env.context.settings.get(name) if env.context else None
    return [] if found is None else [found if isinstance(found, str) else f"{found:g}"]


def _row_text(env: EnvState) -> str:
    """Return the texts in the row of an env, in lower case."""
    words = [f"{env.env:02d}", env.lane]
    if env.context is not None:
        words += [env.context.structure, *map(str, env.context.settings.values())]
    if env.latest is not None:
        words.append(env.latest.op)
    for slot in _slots(env):
        words += [slot.stage, slot.blueprint or ""]
    return " ".join(words).lower()


def sort_envs(
    envs: Sequence[EnvState], value: Callable[[EnvState], float | None], *, descending: bool, first: frozenset[int]
) -> list[int]:
    """Return env indices sorted by a value.

    Args:
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


def worst_env(envs: Sequence[EnvState], severities: Mapping[int, str], scale: ScoreScale) -> int | None:
    """Return the worst env: by severity of its anomalies, then by a NaN score, then by a bad score.

    None if there are no envs.
    """

    def badness(env: EnvState) -> tuple[int, bool, float]:
        known = severities.get(env.env)
        return 0 if known == "error" else 1 if known else 2, *_by_score(env, scale)

    return min(envs, key=badness).env if envs else None


def find_worst(envs: Sequence[EnvState], previous: Collection[int], count: int, scale: ScoreScale) -> frozenset[int]:
    """Return the envs with the worst scores, `count` at most.

    An env of the `previous` result stays while it is among the worst `2 * count`, so that the result rarely changes.
    """
    worst = nsmallest(2 * count, envs, key=lambda env: _by_score(env, scale))
    worst = [env.env for env in worst if env.latest is not None]
    return frozenset(sorted(worst, key=lambda env: env not in previous)[:count])


def _by_score(env: EnvState, scale: ScoreScale) -> tuple[bool, float]:
    """Sort key: NaN first, then the worst score; an env without a step last."""
    score = scale.gain(env.latest.score) if env.latest else math.inf
    return not math.isnan(score), score
