"""Filters, completions and sort orders of runs."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.filters import FilterError, IncompleteFilterError
from esper.common.score_scale import ScoreScale
from esper.recordings.history.run_filter import (
    RUN_STATES,
    complete_filter,
    is_descending,
    parse_run_filter,
    sort_keys,
    sort_runs,
)
from esper.recordings.history.run_info import RunInfo
from esper.recordings.history.run_status import LIVE_STATES

NOW = time.time()


def info(run: str, **fields: Any) -> RunInfo:
    return RunInfo(**{"run": run, "path": run, "state": "done", "written": NOW - 30.0, **fields})


def config(task: str, coef: float, **others: Any) -> dict[str, Any]:
    return {"task": task, "ppo.entropy-coef": coef, "envs": 8, **others}


RUNS = [
    info(
        "a",
        task="recall",
        policy="ppo",
        config=config("recall", 0.01),
        measures={"best": 0.9},
        seed=1,
        tags=("Baseline",),
    ),
    info(
        "b",
        name="low entropy",
        task="recall",
        policy="ppo",
        config=config("recall", 0.05, plan="", devices=["cpu:0", "cpu:1"]),
        measures={
            "best": 0.5,
            "score": 0.6,
            "smoothed": 0.4,
            "planted": 3.0,
            "fossilized": 1.0,
            "parameters": 1.2,
            "duration": 7200.0,
        },
        seed=2,
        note="Halved the bonus",
        study="S1",
        trial=0,
    ),
    info(
        "c",
        state="running",
        task="digits",
        policy="static",
        config=config("digits", 0.1),
        seed=3,
        measures={"anomalies": 2.0},
    ),
    info("d", written=NOW - 3 * 86400, state="reading"),
    info("e", archived=True, task="recall", config=config("recall", 0.01)),
]


def matching(text: str) -> str:
    run_filter = parse_run_filter(text, RUNS)
    assert run_filter.text == text
    return "".join(run.run for run in RUNS if run_filter.matches(run))


@pytest.mark.parametrize(
    ("text", "names"),
    {
        "": "abcd",
        "task=recall": "ab",
        "TASK=Recall ppo.entropy-coef<0.05": "a",
        "ppo.entropy-coef=1e-2": "a",
        "ppo.entropy-coef!=0.01": "bc",
        "ppo.gamma<1": "",  # a key of this version that no run has
        "plan=unset": "b",
        "devices=cpu:1": "b",
        "best>60": "a",
        "best>=50%": "ab",
        "best=nan": "",
        "score!=0": "b",
        "last>50%": "b",
        "kept>=1": "b",
        "×host<1.5": "b",
        "recorded>1h": "b",
        "planted>2 duration>1h": "b",
        "duration<90min": "",
        "smoothed>0.39 smoothed<0.41": "b",
        "trial=0": "b",
        "age<1d": "abc",
        "age>2.5d": "d",
        "seed>1": "bc",
        "anomalies<3": "c",
        "tag:baseline": "a",
        "tag:base": "",
        "state:live": "c",
        "study:s1 policy:ppo": "b",
        "halved": "b",
        "entropy": "b",
        "base": "a",
        "best!=nan best>0.6": "a",
        "archived": "e",
        "archived task=digits": "",
    }.items(),
)
def test_filter_matches(text: str, names: str) -> None:
    assert matching(text) == names


def test_live_runs_include_paused_ones() -> None:
    runs = [info(state, state=state) for state in RUN_STATES]
    assert [run.state for run in runs if parse_run_filter("state:live", runs).matches(run)] == list(LIVE_STATES)
    assert [run.state for run in runs if parse_run_filter("state:paused", runs).matches(run)] == ["paused"]


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "ppo.entropy-cef<1": "unknown key 'ppo.entropy-cef'; did you mean ppo.entropy-coef?",
        "entropy-coef<1": "unknown key 'entropy-coef'; did you mean ppo.entropy-coef?",
        "zzz=1": "unknown key 'zzz'; valid: score, return, smoothed, parameters, best, .*, or any configuration key",
        "task<3": "'task' is not a number in any run; compare it with = or !=",
        "keptt>1": r"unknown key 'keptt'; did you mean kept\?",
        "score<nan": "no number is less or greater than NaN; write 'score=nan' or 'score!=nan' in place of 'score<nan'",
        "envs>=nan": "no number is less or greater than NaN; write 'envs=nan' or 'envs!=nan' in place of 'envs>=nan'",
        "best<x": "expected a number after 'best', as in best<50%; got 'x'",
        "age<2y": r"expected a number with a unit after 'age' \(s, min, h, d, w\), as in age<2d; got '2y'",
        "tags:x": "unknown filter 'tags:'; did you mean tag?",
        "state:over": "unknown state 'over'; valid: live, starting, running",
    }.items(),
)
def test_invalid_filter_is_refused(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=f"^{message}") as caught:
        parse_run_filter(text, RUNS)
    assert not isinstance(caught.value, IncompleteFilterError)


@pytest.mark.parametrize("text", ["ta", "ppo.", "task=", "best<", "age<2", "age<2mi", "tag:", "state:li", "arch"])
def test_beginning_of_a_term_is_incomplete(text: str) -> None:
    with pytest.raises(IncompleteFilterError):
        parse_run_filter(text, RUNS)


@given(st.text("abtsk=<>!:.%^0129 -é", max_size=12))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    with contextlib.suppress(FilterError):
        assert set(matching(text)) <= set("abcde")
    assert len(complete_filter(text, RUNS)) <= 20


def test_completions_are_keys_then_values() -> None:
    assert complete_filter("", RUNS)[:7] == ["tag:", "state:", "study:", "policy:", "task:", "archived", "score"]
    assert len(complete_filter("", RUNS)) == 20
    assert complete_filter("task=recall ta", RUNS) == ["tag:", "task:", "task"]
    assert complete_filter("ppo.e", RUNS)[:2] == ["ppo.entropy-coef", "ppo.epochs"], "the first differs between runs"
    assert complete_filter("ppo.entropy-coef<", RUNS) == [f"ppo.entropy-coef<{value}" for value in (0.01, 0.05, 0.1)]
    assert complete_filter("TASK=R", RUNS) == ["task=recall"]
    assert complete_filter("tag:", RUNS) == ["tag:Baseline"]
    assert complete_filter("state:p", RUNS) == ["state:paused"]
    assert complete_filter("seed>", RUNS) == ["seed>1", "seed>2", "seed>3"]
    assert complete_filter("devices=", RUNS) == [], "a value with spaces is no term"
    assert complete_filter("zzz:", RUNS) == complete_filter("zzz=", RUNS) == complete_filter("zzz", RUNS) == []


def order(key: str, *, reverse: bool = False, runs: list[RunInfo] = RUNS) -> str:
    return "".join(run.run for run in sort_runs(runs, key, reverse=reverse))


def test_unmeasured_runs_are_last_both_ways() -> None:
    assert order("best") == "abcde"
    assert order("best", reverse=True) == "bacde"
    assert order("ppo.entropy-coef") == "aebcd"
    assert order("ppo.entropy-coef", reverse=True) == "cbaed"
    assert order("study") == order("study", reverse=True) == "bacde"
    broken = info("x", measures={"score": math.nan})
    assert order("score", runs=[broken, *RUNS]) == order("score", runs=[broken, *RUNS], reverse=True) == "bxacde"


@pytest.mark.parametrize(
    ("key", "names"),
    {
        "written": "abced",
        "age": "abced",
        "state": "cabed",
        "name": "acdeb",
        "task": "cabed",
        "smoothed": "bacde",
    }.items(),
)
def test_sort_orders(key: str, names: str) -> None:
    assert order(key) == names


def test_sorting_by_a_score_begins_with_the_best_one() -> None:
    low = ScoreScale(best="low", low=0.0, high=None)
    runs = [info(name, score_scale=low, measures={"score": score}) for name, score in (("x", 0.4), ("y", 0.2))]
    assert order("score", runs=runs) == "yx"
    assert order("score", runs=runs, reverse=True) == "xy"
    assert [is_descending("score"), is_descending("score", low), is_descending("planted", low)] == [True, False, True]


def test_every_sort_key_sorts_and_others_are_refused() -> None:
    every = [info(state, state=state) for state in RUN_STATES]
    assert all(len(sort_runs([*RUNS, *every], key)) == len(RUNS) + len(every) for key in sort_keys())
    with pytest.raises(FilterError, match=r"^unknown sort key 'bst'; did you mean best\?$"):
        sort_runs(RUNS, "bst")
    with pytest.raises(FilterError, match=r"^unknown sort key 'last'; did you mean score\?$"):  # a heading
        sort_runs(RUNS, "last")
