"""Tests of steps in two groups: same results as without overlap, and requests between two steps of all envs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.training.engine.episode import Episode, begin_episodes
from esper.training.engine.run_control import RunController
from esper.training.engine.step import StepResult, play_steps, tick_slots
from esper.training.engine.trainer import Trainer
from esper.training.lanes.errors import FaultError
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import WAITING, ChosenAction
from esper.training.policy.agent import EnvStatus
from esper.training.policy.baselines import NonLearningAgent, StaticAgent
from tests.runs import LiveRun, computed, recorded
from tests.training.engine.populations import population


@pytest.mark.parametrize("lanes", [("cpu:0",), pytest.param(("cpu:0", "cpu:1"), marks=pytest.mark.slow)])
def test_groups_that_go_ahead_change_no_result(
    lanes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five envs make unequal groups."""
    ahead: list[bool] = []
    end_step = Trainer._end_step

    def note_and_end(trainer: Trainer, is_ahead: bool) -> bool:
        ahead.append(is_ahead)
        return end_step(trainer, is_ahead)

    monkeypatch.setattr(Trainer, "_end_step", note_and_end)
    overlapping = LiveRun(tmp_path / "overlapping", envs=5, rounds=2, devices=lanes).start()
    assert overlapping.finish().status == "done"
    assert ahead == [True, True, True, False] * 2
    with monkeypatch.context() as patch:
        patch.setattr(RunController, "may_go_ahead", lambda _: False)
        alone = LiveRun.finished(tmp_path / "alone", envs=5, rounds=2)
    assert ahead[8:] == [False] * 8
    assert computed(recorded(overlapping.run.directory)) == computed(recorded(alone.run.directory))


def test_pause_holds_all_envs_after_the_same_step(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, rounds=20, policy="static").start()
    live.wait_for(ev.EnvStepped)
    live.control.put(RequestKind.PAUSE, "test")
    live.wait_for(ev.Paused)
    steps = [event.env for event in live.events if isinstance(event, ev.EnvStepped)]
    assert steps == [0, 1, 2] * (len(steps) // 3)
    live.stop()


class Noting(NonLearningAgent):
    """A policy that notes its envs, and fails in the call of a number."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.seen: list[tuple[int, list[int]]] = []
        self._fails_at = fails_at

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        self.seen.append((step, [view.env for view in views]))
        if len(self.seen) == self._fails_at:
            raise ValueError("out of ideas")
        return [WAITING] * len(views)


def episodes_of(pool: EnvPool) -> list[Episode]:
    episodes = [Episode(env, pool._config) for env in pool.envs]
    begin_episodes(pool, episodes, pool.keys_of(0))
    return episodes


def test_fault_of_one_group_leaves_the_other_idle() -> None:
    with population(envs=3) as pool:
        agent, ended = Noting(fails_at=3), list[StepResult]()

        def end(result: StepResult) -> None:
            tick_slots(result.episodes)
            ended.append(result)

        with pytest.raises(FaultError, match="the policy failed: ValueError: out of ideas"):
            play_steps(pool, episodes_of(pool), agent, range(3), end)
        assert agent.seen == [(0, [0, 1]), (0, [2]), (1, [0, 1])]
        ended.clear()
        play_steps(pool, episodes_of(pool), StaticAgent(), range(3), end, after_step=lambda _: len(ended) < 4)
    order = [(result.step, [episode.env.index for episode in result.episodes]) for result in ended]
    assert [step for step, _ in groupby(order, key=lambda entry: entry[0])] == [0, 1]
    assert [envs for _, envs in order] == [[0, 1], [2]] * 2


def test_envs_with_a_shared_loss_scale_are_one_group() -> None:
    """The epoch of each starts with the scale that the one before has left."""
    with population(envs=3, amp="fp16", scaler="device") as pool:
        agent = Noting()
        play_steps(pool, episodes_of(pool), agent, range(1), lambda _: None)
    assert agent.seen == [(0, [0, 1, 2])]
