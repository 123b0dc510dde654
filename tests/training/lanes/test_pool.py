"""Tests of the pool: envs of one process do not influence each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.common.configuration.config import PPOConfig
from esper.common.domain import Op, Stage
from esper.recordings import events as ev
from esper.training.envs.env import Env
from esper.training.envs.epoch_result import EpochResult, max_result_width
from esper.training.lanes.errors import FaultError
from esper.training.lanes.lane import Lane, PendingResults
from esper.training.lanes.pool import EnvEpoch, EnvPool
from esper.training.lanes.runner import ResultBuffer
from esper.training.policy.actions import Action
from tests.runs import LiveRun, computed, recorded
from tests.training.engine.populations import measurements, play, population

TWO_LANES = ("cpu:0", "cpu:1")
WAIT = Action(Op.WAIT)
ENVS_OF_TWO_HOSTS: dict[str, Any] = {"envs": 5, "amp": "fp16", "ppo": PPOConfig(envs_per_host=3)}


def weights(pool: EnvPool, env: int) -> list[Tensor]:
    return [value.clone() for value in pool.envs[env].network.state_dict().values()]


def scale(pool: EnvPool, env: int) -> dict[str, Any] | None:
    scaler = pool.envs[env].scaler
    return scaler.state_dict() if scaler else None


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def two() -> Iterator[EnvPool]:
    """Five envs, on two hosts and two lanes, with a loss scale for each env. Every test resets them."""
    with population(lanes=TWO_LANES, **ENVS_OF_TWO_HOSTS) as pool:
        yield pool


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The envs that each lane took last."""
    taken: dict[str, list[int]] = {}
    epochs = Lane.submit_epochs

    def note(lane: Lane, envs: Sequence[Env], *args: Any, **options: Any) -> PendingResults:
        taken[lane.name] = [env.index for env in envs]
        return epochs(lane, envs, *args, **options)

    monkeypatch.setattr(Lane, "submit_epochs", note)
    return taken


def test_cpu_lanes_split_envs_by_time(two: EnvPool, taken: dict[str, list[int]]) -> None:
    two.reset(0)
    for env in two.envs:
        env.epoch_seconds = 1.0
    two.step([WAIT] * 5, 0)
    assert taken == {"cpu:0": [0, 2, 4], "cpu:1": [1, 3]}
    assert 1.0 not in {env.epoch_seconds for env in two.envs}  # it was measured, in the worker too
    for env, seconds in zip(two.envs, [1.0, 2.0, 9.0, 7.0, 4.0], strict=True):
        env.epoch_seconds = seconds
    two.step([WAIT] * 5, 1)
    # The first lane had one env more in the last step.
    assert taken == {"cpu:0": [3, 4], "cpu:1": [2, 1, 0]}


def test_cpu_lanes_with_a_shared_scale_keep_their_envs(
    taken: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # both lanes train in this process
    with population(envs=4, lanes=TWO_LANES, amp="fp16", scaler="device") as pool:
        pool.reset(0)
        for step in range(2):
            for env, seconds in zip(pool.envs, [1.0, 2.0, 9.0, 7.0], strict=True):
                env.epoch_seconds = seconds
            pool.step([WAIT] * 4, step)
            assert taken == {"cpu:0": [0, 2], "cpu:1": [1, 3]}


def test_lane_without_an_env_is_not_opened() -> None:
    with population(envs=1, lanes=TWO_LANES) as pool:
        assert [lane.name for lane in pool.lanes] == ["cpu:0"]


@contextmanager
def on_one_lane(two: EnvPool) -> Iterator[EnvPool]:
    """The envs of `two` on one lane, with fresh loss scales in both: a scale outlives the round."""
    with population(**ENVS_OF_TWO_HOSTS) as one:
        for before, after in zip(one.envs, two.envs, strict=True):
            assert before.scaler
            assert after.scaler
            after.scaler.load_state_dict(before.scaler.state_dict())
        yield one


def test_results_do_not_depend_on_the_number_of_lanes(two: EnvPool) -> None:
    with on_one_lane(two) as one:
        assert play(one, 0, 12) == play(two, 0, 12)
        stages = {slot.stage for env in one.envs for slot in env.network.slots}
        assert any(stage.is_blended for stage in stages)  # or it would show less
        for env in range(5):
            assert same(weights(one, env), weights(two, env))
            assert scale(one, env) == scale(two, env)


@pytest.mark.parametrize(("policy", "envs_per_host"), [("ppo", 1), ("static", 2)])
def test_envs_differ_from_each_other(policy: str, envs_per_host: int) -> None:
    with population(envs=2, policy=policy, ppo=PPOConfig(envs_per_host=envs_per_host)) as pool:
        first, second = play(pool, 0, 1)
        assert first[0].train_loss != second[0].train_loss


def test_envs_of_one_host_differ_only_by_decisions(two: EnvPool) -> None:
    plant, advance = Action(Op.GERMINATE, slot=1, blueprint=4), Action(Op.ADVANCE, slot=1)
    measured = two.reset(0)
    assert measured[0] == measured[1] == measured[2] != measured[3] == measured[4]
    epochs: list[EnvEpoch | None] = []
    for step in range(6):
        grow = plant if step == 0 else advance if two.envs[1].network.slots[1].can_advance else WAIT
        epochs = two.step([WAIT, grow, grow, WAIT, plant if step == 3 else WAIT], step)
        for env in two.envs:
            env.tick()
    assert epochs[1] == epochs[2] != epochs[0]
    assert epochs[3] != epochs[0]
    assert same(weights(two, 1), weights(two, 2))
    assert not same(weights(two, 0), weights(two, 1))


def test_round_does_not_depend_on_earlier_rounds() -> None:
    with population(envs=2) as seasoned, population(envs=2) as fresh:
        play(seasoned, 0, 8)
        assert any(slot.stage is not Stage.DORMANT for env in seasoned.envs for slot in env.network.slots)
        assert play(seasoned, 1, 8) == play(fresh, 1, 8)
        assert same(weights(seasoned, 0), weights(fresh, 0))


def test_reset_is_in_place(two: EnvPool) -> None:
    before = [value.data_ptr() for env in two.envs for value in env.network.host.state_dict().values()]
    play(two, 0, 4)
    play(two, 1, 1)
    after = [value.data_ptr() for env in two.envs for value in env.network.host.state_dict().values()]
    assert after == before


@pytest.mark.parametrize("method", ["reset", "apply_action", "run_epoch"])
def test_fault_of_an_env_names_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(Env, method)

    def broken(env: Env, *args: Any, **options: Any) -> Any:
        if env.index == 1:
            raise ValueError("of the user's model")
        return original(env, *args, **options)

    with population(envs=2) as pool:
        pool.reset(0)
        monkeypatch.setattr(Env, method, broken)
        with pytest.raises(
            FaultError, match=r"^env 01 on cpu:0 failed: ValueError: of the user's model \(.*, line \d+\)$"
        ) as caught:
            play(pool, 1, 1)
    assert caught.value.env == 1


def test_env_does_not_depend_on_other_envs(tmp_path: Path) -> None:
    """Compares the events of env 0 in a population of one with those in a population of three."""
    options: dict[str, Any] = {"policy": "random", "rounds": 2}
    alone = LiveRun.finished(tmp_path / "alone", envs=1, **options)
    crowd = LiveRun.finished(tmp_path / "crowd", envs=3, **options)
    of_alone, of_crowd = (
        [event for event in computed(recorded(live.run.directory)) if getattr(event, "env", 0) == 0]
        for live in (alone, crowd)
    )
    assert of_alone == of_crowd
    assert any(isinstance(event, ev.SeedMoved) for event in of_alone)


def test_outbox_returns_values_by_env_and_vector() -> None:
    outbox = ResultBuffer(torch.device("cpu"), size=8)
    for left in (
        {5: [[1.0, 2.0], [3.0]], 1: [[4.0]], 3: [[5.0, 6.0, 7.0, 8.0]]},
        {1: [[9.0, 10.0]]},
        dict[int, list[list[float]]](),
    ):
        outbox.start_copy({env: list(map(torch.tensor, vectors)) for env, vectors in left.items()})
        outbox.mark_end()
        assert outbox.wait() == left


def test_outbox_size_is_the_maximum_of_an_env() -> None:
    """All slots in use, at the end of an episode with Shapley values."""
    with population(counterfactual="shapley") as pool:
        pool.reset(0)
        (env,) = pool.envs
        for index in range(3):
            env.apply_action(Action(Op.GERMINATE, index), 0)
        for step in range(12):
            env.train_epoch(step)
            for index, slot in enumerate(env.network.slots):
                slot.grad_norm = 1.0
                if slot.can_advance:
                    env.apply_action(Action(Op.ADVANCE, index), step)
            env.tick()
        assert len(env.measured_slots()) == 3
        assert len(env.train_epoch(12)) + len(env.validate(last=True)) == max_result_width(3, 0)


def test_wide_hosts_train_in_workers_beside_others(two: EnvPool) -> None:
    """A worker builds them from the task that it has loaded. Their parameters count against those of the bare host."""
    measured: list[list[EpochResult]] = []
    with on_one_lane(two) as one:
        for pool in (one, two):
            keys = {env: key._replace(width=1.5 if env.index < 3 else 1.0) for env, key in pool.keys_of(0).items()}
            begun = pool.begin(keys)
            measured.append(measurements(pool, [WAIT] * 5, 0))
            assert [env.network.parameter_ratio > 1.2 for env in pool.envs] == [True] * 3 + [False] * 2
            assert len({env.network.host_parameter_count for env in pool.envs}) == 1
            assert pool.reset(0)[3:] == begun[3:]
            assert {env.network.parameter_ratio for env in pool.envs} == {1.0}
    assert measured[0] == measured[1]
