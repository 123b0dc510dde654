"""Explanations of decisions in a run: they agree with the decision, and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.training.ppo.agent import PPOAgent
from tests.runs import LiveRun, computed, recorded


def explain(live: LiveRun, env: int) -> ev.DecisionExplained:
    live.control.put(RequestKind.EXPLAIN, "test", env=env)
    return live.wait_for(ev.DecisionExplained)


def test_explanation_agrees_with_the_decision_and_changes_no_result(tmp_path: Path, whole: list[ev.AnyEvent]) -> None:
    live = LiveRun(tmp_path).start_paused()
    for env, step in ((2, 1), (0, 2)):
        if step == 2:
            live.control.put(RequestKind.STEP, "test")
            live.wait_for(ev.Paused)
        found = explain(live, env)
        decided = live.state.envs[env].stepped
        assert decided is not None
        assert (found.env, found.round, found.step) == (env, 1, step)
        assert live.state.envs[env].explained == found
        op = ev.HeadChoice(choice=decided.op, probability=decided.op_probability)
        expected = {"op": op, **decided.decision}
        assert {head: choice.choice for head, choice in found.choices.items()} == {
            head: choice.choice for head, choice in expected.items()
        }
        for head, choice in expected.items():
            assert found.choices[head].probability == pytest.approx(choice.probability, abs=2e-4)
        assert {"validation", "seeds", "blueprints", "memory"} <= found.without.keys()
    live.control.put(RequestKind.RESUME, "test")
    live.finish()

    assert live.state.envs[0].explained is None  # a new round has begun since
    assert computed(recorded(live.run.directory)) == whole


def test_policy_that_fails_to_explain_continues_to_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(agent: PPOAgent, row: int, step: int) -> NoReturn:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(PPOAgent, "explain", fail)
    live = LiveRun(tmp_path, rounds=1).start_paused()
    live.control.put(RequestKind.EXPLAIN, "test", env=0)
    assert live.wait_for(ev.ControlRequested).ignored is None
    assert live.wait_for(ev.ControlRequested).ignored == "RuntimeError: no memory left"
    live.control.put(RequestKind.RESUME, "test")
    live.finish()
    assert live.state.status == "done"


@pytest.mark.parametrize(
    ("policy", "env", "reason"),
    [
        ("heuristic", 0, "this policy cannot explain its decisions"),
        ("ppo", 7, "the run has no env 7"),
    ],
)
def test_impossible_request_is_refused_with_reason(policy: str, env: int, reason: str, tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy=policy).start_paused()
    live.control.put(RequestKind.EXPLAIN, "test", env=env)
    request = live.wait_for(ev.ControlRequested)
    assert (request.kind, request.env, request.ignored) == ("explain", env, reason)
    live.abandon()
