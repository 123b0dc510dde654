"""Speed and remaining time of a run."""

from __future__ import annotations

import pytest

from esper.telemetry import events as ev
from esper.telemetry.state import RunState
from tests.factory import env_stepped, run_started, stamp


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
