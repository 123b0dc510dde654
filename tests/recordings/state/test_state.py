"""Speed and remaining time of a run."""

from __future__ import annotations

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.state.search_state import SearchState
from esper.recordings.state.state import MAX_ANOMALIES, RunState
from tests.factory import env_stepped, growth_run, run_started, stamp
from tests.recordings.files.recordings import fold


def test_inactive_envs_do_not_raise_the_pace() -> None:
    """Two of four envs break down in step 2, which halves its work and its duration."""
    run: list[ev.AnyEvent] = [run_started(4, rounds=2, steps=2), ev.RoundStarted(round=1)]
    for step, envs, wall in ((1, 4, 0.8), (2, 2, 0.4)):
        run += [env_stepped(env, 1, step) for env in range(envs)]
        run.append(ev.PhaseTimed(round=1, step=step, wall=wall, phases={}))
    state = RunState()
    for event in stamp(run):
        state.apply(event)
    assert state.steps_per_second == pytest.approx(6 / 1.2)
    assert state.seconds_left == pytest.approx(2 * 4 / 5)


def test_anomaly_of_several_envs_is_active_in_each_until_it_ends_there() -> None:
    """One anomaly holds all its envs, so that each of their rows can be marked."""
    found = ev.AnomalyFound(rule="r", severity="warning", where="env 2", env=2, value=1.0, text="env 02: first")
    joined = [
        ev.AnomalyJoined(rule="r", where="env 2", env=env, value=2.0, text=f"env {env:02d}: too") for env in (0, 3)
    ]
    left = ev.AnomalyLeft(rule="r", where="env 2", env=2)
    run = [
        run_started(4),
        ev.RoundStarted(round=1),
        found,
        *joined,
        left,
        *joined[:1],
        ev.AnomalyEnded(rule="r", where="env 2", env=2),
    ]
    state, active = RunState(), list[list[int]]()
    for event in stamp(run):
        state.apply(event)
        active.append([env for anomaly in state.active_anomalies() for env in anomaly.active_envs])
    assert active[2:] == [[2], [2, 0], [2, 0, 3], [0, 3], [0, 3], []]
    [anomaly] = state.anomalies.values()
    assert (anomaly.count, anomaly.envs) == (1, [2, 0, 3])
    assert [start and start.text for start in map(anomaly.in_env, range(4))] == [
        "env 00: too",
        None,
        "env 02: first",
        "env 03: too",
    ]
    state.apply(found)
    assert anomaly.active_envs == [2]  # a new occurrence begins in its first env only


def test_full_state_removes_an_ended_anomaly_before_an_active_one() -> None:
    found = [
        ev.AnomalyFound(rule="r", severity="warning", where=f"head {index}", value=1.0, text="bad")
        for index in range(MAX_ANOMALIES + 2)
    ]
    state = RunState()
    for event in stamp([*found[:MAX_ANOMALIES], ev.AnomalyEnded(rule="r", where="head 3")]):
        state.apply(event)
    state.apply(found[-2])
    wheres = [anomaly.found.where for anomaly in state.anomalies.values()]
    assert (len(wheres), "head 0" in wheres, "head 3" in wheres) == (MAX_ANOMALIES, True, False)
    state.apply(found[-1])
    wheres = [anomaly.found.where for anomaly in state.anomalies.values()]
    assert (len(wheres), "head 0" in wheres, "head 1" in wheres) == (MAX_ANOMALIES, False, True)


def test_growth_counts_its_budget_and_names_why_envs_are_idle() -> None:
    during, fresh, whole = fold(growth_run(stop=2)), fold(growth_run(stop=4)), fold(growth_run())
    assert [during.idle_reason(env) for env in during.envs] == [None, "failed", None, "pruned"]
    assert (during.fraction_done, during.seconds_left) == (0.25, pytest.approx(3 * during.seconds_trained))
    assert (fresh.fraction_done, whole.fraction_done) == (0.5, 1.0)
    assert fresh.seconds_left == pytest.approx(fresh.seconds_trained)
    texts = [state.search.describe_progress(90.0) for state in (during, fresh, whole) if state.search]
    assert texts == ["6 of 12 trials", "0 of 12 fresh trainings", "12 of 12 trials"]
    assert whole.search is not None
    assert whole.search.describe_counts() == "12 candidates: 8 done, 2 pruned, 1 broke down, 1 failed"
    third = fold(event for event in growth_run() if not isinstance(event, ev.RoundStarted) or event.round < 4)
    assert third.started is not None
    more = msgspec.structs.replace(third.started, search=ev.SearchInfo(minutes=3.0, objective="score"))
    third.apply(more)
    assert third.search is not None
    assert (third.search.answer, third.search.describe_progress(90.0)) == (None, "1.5 of 3 min")
    assert third.search.fraction_done(90.0) == 0.5
    assert [RunState().idle_reason(env) for env in during.envs] == [None] * 4


def test_candidate_has_the_parameters_of_its_best_network_on_fresh_hosts() -> None:
    search = SearchState(info=ev.SearchInfo(trials=8, objective="score"))
    search.apply(ev.TrialStarted(round=1, env=0, candidate="heuristic", origin="policy"))
    for fresh, score, ratio in ((None, 0.9, 1.1), (1, 0.7, 1.2), (2, 0.8, 1.3), (3, 0.6, 1.4)):
        search.apply(
            ev.TrialEnded(
                round=1, step=5, env=0, candidate="heuristic", fresh=fresh, outcome="done",
                score=score, net_return=0.1, parameter_ratio=ratio, seeds=[f"norm in s{fresh}"],
            )
        )  # fmt: skip
    assert (search.candidates[0].parameter_ratio, search.candidates[0].seeds) == (1.3, ["norm in s2"])


def test_env_of_a_growth_that_ended_before_the_others_is_idle() -> None:
    run = growth_run()
    last = next(index for index, event in enumerate(run) if isinstance(event, ev.RoundStarted) and event.round == 4)
    state = fold(run[:last])
    assert [state.idle_reason(env) for env in state.envs] == [None, "ended", None, None]
