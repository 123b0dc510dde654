"""Breakdowns of an env: the rollback to its last good state, the inactive steps, and no effect on other envs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.networks.seeds.lifecycle import StageTransition
from esper.recordings import events as ev
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.governor import COLLAPSE_STEPS, Breakdown, LastGoodState, find_collapse, find_non_finite
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action
from esper.training.policy.agent import EnvStatus
from esper.training.ppo.advantages import gae
from tests.runs import LiveRun, computed, recorded

CHANCE = math.log(10)
ILL, AT = 1, 2
"""Index of the env that breaks down, and index of the step in which it does."""


def view(losses: list[float], scores: list[float], train_loss: float | None = None) -> EnvStatus:
    return EnvStatus(
        env=0,
        slots=[],
        steps=25,
        chance_loss=CHANCE,
        chance_score=math.exp(-CHANCE),
        losses=losses,
        scores=scores,
        train_loss=train_loss,
    )


def measurement(*, train_loss: float = 1.0, loss: float = 1.0, score: float = 0.7, finite: bool = True) -> Any:
    return EpochResult(
        metrics={},
        train_loss=train_loss,
        train_score=0.7,
        weights_finite=finite,
        loss=loss,
        score=score,
        grad_norm=1.0,
        slot_grad_norms={},
        loss_scale=None,
        growth_tracker=None,
        skipped_batches=0,
        overflows_by_owner={},
        dependences={},
        shapley={},
    )


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (measurement(), None),
        (measurement(train_loss=math.nan), "its training loss is not finite"),
        (measurement(loss=math.inf), "its validation loss is not finite"),
        (measurement(score=math.nan), "its validation score is not finite"),
        (measurement(finite=False), "a weight is not finite"),
    ],
)
def test_governor_finds_immediate_breakdowns(now: EpochResult, says: str | None) -> None:
    panic = find_non_finite(now)
    assert (panic.reason if panic else None) == says


@pytest.mark.parametrize(
    ("losses", "scores", "train_loss", "says"),
    [
        ([2.3], [0.1], None, None),  # before the first step
        ([2.3, 1.0], [0.1, 0.7], 0.9, None),
        ([1.0, 2.3], [0.6, 0.11], 0.9, "it was trained, but its accuracy has been at chance"),
        ([2.2, 2.3], [0.2, 0.10], 2.3, None),  # never trained
        ([1.0, 1.0], [0.6, 0.3], 9.0, "its training loss has exceeded the limit"),
        ([1.0, 9.0], [0.6, 0.3], 0.01, None),  # overfits
        ([2.4, 9.3, 64.7, 88.3], [0.1, 0.1, 0.1, 0.1], 88.0, None),  # never better than chance
        ([1.0, 9.0, 1.0], [0.6, 0.3, 0.6], 1.0, None),
    ],
)
def test_governor_finds_lasting_breakdowns(
    losses: list[float], scores: list[float], train_loss: float | None, says: str | None
) -> None:
    panic = find_collapse(view(losses, scores, train_loss))
    assert (panic is not None and panic.reason.startswith(says)) if says else panic is None


def poison(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """Set one weight of the env `ILL` to NaN before it trains, in the first round and the given ones."""
    apply: Callable[[Env, Action, int], list[StageTransition]] = Env.apply_action

    def ill(env: Env, action: Action, step: int) -> list[StageTransition]:
        if (env.index, step) == (ILL, AT) and env.key.round in {0, *rounds}:
            with torch.no_grad():
                next(iter(env.network.host.parameters())).view(-1)[0] = math.nan
        return apply(env, action, step)

    monkeypatch.setattr(Env, "apply_action", ill)


def ail(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Report a collapse of the env `ILL` after the given step numbers (from 1)."""

    def wrong(view: EnvStatus) -> Breakdown | None:
        return Breakdown("it is ill", 0.0, 1.0) if view.env == ILL and view.step in steps else None

    monkeypatch.setattr("esper.training.engine.episode.find_collapse", wrong)


def of_others(events: list[ev.AnyEvent]) -> list[ev.AnyEvent]:
    return [event for event in computed(events) if isinstance(event, ev.EnvEvent) and event.env != ILL]


OPTIONS: dict[str, Any] = {"rounds": 1, "steps": 5, "envs": 4, "policy": "random", "seed": 3}
SHARED_SCALE = {"amp": "fp16", "scaler": "device", "devices": ("cpu:0", "cpu:1")}


@pytest.mark.parametrize(
    ("first", "changed"),
    [
        pytest.param(0, {"policy": "ppo"}, id="first env, ppo"),
        pytest.param(1, {"amp": "fp16"}, id="fp16"),
        pytest.param(1, SHARED_SCALE, id="fp16, shared scale, two lanes", marks=pytest.mark.slow),
    ],
)
def test_rollback_does_not_affect_other_envs(
    first: int, changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.training.envs.test_governor.ILL", first)
    options = OPTIONS | changed
    coupled = options.get("scaler") == "device"  # every overflow halves the scale of all envs
    well = None if coupled else LiveRun(tmp_path / "well", **options)
    if well:
        well.start().finish()
    poison(monkeypatch)
    ill = LiveRun(tmp_path / "ill", **options)
    state = ill.start().finish()

    events = recorded(ill.run.directory)
    backs = [event for event in events if isinstance(event, ev.GovernorRolledBack)]
    assert [(back.env, back.step) for back in backs] == [(ILL, AT + 1)]
    steps = [event.step for event in events if isinstance(event, ev.EnvStepped) and event.env == ILL]
    assert steps == list(range(1, AT + 2))
    assert repr(state.envs[ILL].rolled_back) == repr(backs[0])
    assert any(found.rule == "governor rollback" for found in events if isinstance(found, ev.AnomalyFound))
    if well:
        assert of_others(events) == of_others(recorded(well.run.directory))


LEARNING: dict[str, Any] = {"rounds": 2, "steps": 5, "envs": 3}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    """A finished run with PPO. The env `ILL` breaks down in both rounds."""
    live = LiveRun(tmp_path_factory.mktemp("broken"), **LEARNING)
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, 1)
        live.start().finish()
    return live


def test_policy_learns_from_breakdown_and_other_envs(broken: LiveRun) -> None:
    back, _ = [event for event in broken.events if isinstance(event, ev.GovernorRolledBack)]
    assert math.isnan(back.value)
    fatal = next(e for e in broken.events if isinstance(e, ev.EnvStepped) and (e.env, e.step) == (ILL, AT + 1))
    assert fatal.reward_parts["penalty"] == -back.penalty == -1.0
    assert fatal.reward == pytest.approx(sum(fatal.reward_parts.values()))
    agent = broken.run.trainer.state.agent
    assert all(bool(value.isfinite().all()) for value in agent.state_tensors().values() if value.is_floating_point())
    second = [e for e in broken.events if isinstance(e, ev.EnvStepped) and e.round == 2 and e.env == ILL]
    assert [math.isfinite(event.loss) for event in second] == [True] * AT + [False]  # active again


def test_inactive_steps_are_not_valid(broken: LiveRun) -> None:
    rollout = broken.run.trainer.state.agent.rollout  # pyright: ignore[reportAttributeAccessIssue]
    assert rollout.valid_ET[ILL].tolist() == [True, True, True, False, False]
    assert rollout.terminal_ET[ILL].tolist() == [False, False, True, False, False]
    assert rollout.valid_ET[[0, 2]].all()
    # No advantage flows back over the breakdown: the advantage of its step is its reward minus its value.
    advantage = gae(rollout.reward_ET, rollout.value_ET, torch.zeros(3), rollout.terminal_ET, 0.99, 0.95)
    assert advantage[ILL, AT] == pytest.approx(float(rollout.reward_ET[ILL, AT] - rollout.value_ET[ILL, AT]))


def test_run_resumes_with_an_inactive_env(broken: LiveRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 1)
    first = LiveRun(tmp_path, **LEARNING).start_paused(AT + 2)
    checkpoint = first.stop()
    LiveRun(tmp_path, resume=checkpoint, **LEARNING).start().finish()
    assert repr(computed(recorded(first.run.directory))) == repr(computed(recorded(broken.run.directory)))


def test_breakdown_in_first_step_restores_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.training.envs.test_governor.AT", 0)
    poison(monkeypatch)
    live = LiveRun(tmp_path, **{**OPTIONS, "policy": "static"})
    state = live.start().finish()
    (ended,) = [e for e in live.events if isinstance(e, ev.EpisodeEnded) and e.env == ILL]
    assert ended.score == ended.best_score
    assert state.status == "done"


def test_recovered_env_is_not_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well = LiveRun.finished(tmp_path / "well", **OPTIONS)
    assert COLLAPSE_STEPS == 3
    ail(monkeypatch, 1, 2, 4, 5)
    ill = LiveRun.finished(tmp_path / "ill", **OPTIONS)
    assert repr(computed(recorded(ill.run.directory))) == repr(computed(recorded(well.run.directory)))


def test_rollback_restores_the_state_before_the_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ail(monkeypatch, 2, 3, 4)
    whole = LiveRun.finished(tmp_path / "whole", **OPTIONS)
    (back,) = [event for event in whole.events if isinstance(event, ev.GovernorRolledBack)]
    assert (back.env, back.step, back.reason) == (ILL, 4, "it is ill")
    (ended,) = [event for event in whole.events if isinstance(event, ev.EpisodeEnded) and event.env == ILL]
    good = next(e for e in whole.events if isinstance(e, ev.EnvStepped) and (e.env, e.step) == (ILL, 1))
    assert ended.score == good.score

    first = LiveRun(tmp_path / "parts", **OPTIONS).start_paused(3)
    checkpoint = first.stop()
    resumed = LiveRun.finished(tmp_path / "parts", resume=checkpoint, **OPTIONS)
    assert repr(computed(recorded(first.run.directory))) == repr(computed(recorded(whole.run.directory)))
    there, here = (env_state_tensors(live.run.pool.envs[ILL]) for live in (whole, resumed))
    assert there.keys() == here.keys()
    assert all(torch.equal(value, here[name]) for name, value in there.items())


def test_breakdown_right_after_resume_restores_loss_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    apply: Callable[[Env, Action, int], list[StageTransition]] = Env.apply_action

    def lower(env: Env, action: Action, step: int) -> list[StageTransition]:
        if step == 0 and env.scaler:
            env.scaler.set_scale(torch.tensor(512.0))  # the state after overflows
        return apply(env, action, step)

    monkeypatch.setattr(Env, "apply_action", lower)
    options: dict[str, Any] = {**OPTIONS, "policy": "static", "steps": 4, "amp": "fp16"}
    whole = LiveRun.finished(tmp_path / "whole", **options)
    first = LiveRun(tmp_path / "parts", **options).start_paused(AT)
    checkpoint = first.stop()
    resumed = LiveRun.finished(tmp_path / "parts", resume=checkpoint, **options)

    assert repr(computed(recorded(first.run.directory))) == repr(computed(recorded(whole.run.directory)))
    scalers = [live.run.pool.envs[ILL].scaler for live in (whole, resumed)]
    assert [scaler and float(scaler.current()) for scaler in scalers] == [512.0, 512.0]


def test_rollback_restores_the_good_state_bit_for_bit(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, **OPTIONS).start_paused(3)
    live.stop()
    env = live.run.pool.envs[0]
    last_good = LastGoodState(env)
    last_good.save()
    before = {name: value.clone() for name, value in env_state_tensors(env).items()}
    kept = {value.data_ptr() for value in last_good.named_tensors().values()}
    for _ in range(2):
        with torch.no_grad():
            for value in env_state_tensors(env).values():
                value.fill_(3)
    permanent = {slot.name for slot in env.network.slots if slot.stage.label == "fossilized"}

    moves = last_good.rollback()

    assert {slot.name for slot in env.network.slots if slot.seed is not None} == permanent
    assert {move.reason for move in moves} <= {"governor"}
    after = env_state_tensors(env)
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    last_good.save()
    assert {value.data_ptr() for value in last_good.named_tensors().values()} <= kept  # the buffers are reused


@pytest.mark.parametrize("changed", [{"amp": "fp16"}, SHARED_SCALE], ids=["own scale", "shared scale"])
def test_rollback_leaves_a_usable_loss_scale(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Non-finite weights halve the scale in every batch, regardless of its value."""
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # all lanes train in this process
    poison(monkeypatch)
    options: dict[str, Any] = {**OPTIONS, "policy": "static", "rounds": 2, **changed}
    live = LiveRun.finished(tmp_path, **options)

    steps = [e for e in live.events if isinstance(e, ev.EnvStepped) and e.env == ILL]
    fallen = steps[AT]
    before = steps[AT - 1].loss_scale
    assert fallen.loss_scale is not None
    assert before is not None
    assert fallen.loss_scale < before
    assert [event.loss_scale for event in steps if event.round == 2] == [before] * 5


def test_rollback_reports_measurements_of_removed_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Env._optimize

    def ill(env: Env, owners: Any) -> Any:
        if env.index == ILL and len(owners) > 1:
            for parameter in owners[1].parameters:
                parameter.grad.fill_(math.nan)
        return backward(env, owners)

    monkeypatch.setattr(Env, "_optimize", ill)
    live = LiveRun.finished(tmp_path, **{**OPTIONS, "policy": "full"})

    (back,) = [event for event in live.events if isinstance(event, ev.GovernorRolledBack)]
    step = next(e for e in live.events if isinstance(e, ev.EnvStepped) and (e.env, e.step) == (ILL, back.step))
    ill_slots = [slot for slot in step.slots if slot.grad_norm is not None]
    assert [math.isnan(slot.grad_norm or 0.0) for slot in ill_slots] == [True]
    assert ill_slots[0].blueprint is None
    assert any(e.rule == "non-finite gradient" for e in live.events if isinstance(e, ev.AnomalyFound))


def test_episode_end_after_rollback_describes_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accuracy was higher with the seeds that the rollback removed."""
    monkeypatch.setattr("tests.training.envs.test_governor.AT", 6)
    poison(monkeypatch)
    live = LiveRun.finished(tmp_path, **{**OPTIONS, "policy": "full", "steps": 7})

    (back,) = [event for event in live.events if isinstance(event, ev.GovernorRolledBack)]
    assert back.culled
    (ended,) = [event for event in live.events if isinstance(event, ev.EpisodeEnded) and event.env == ILL]
    before = next(e for e in live.events if isinstance(e, ev.EnvStepped) and (e.env, e.step) == (ILL, 6))
    assert ended.score != before.score
    env = live.run.pool.envs[ILL]
    assert ended.score == pytest.approx(float(env.validate(last=False)[1]), rel=1e-4)
    assert ended.parameter_ratio == pytest.approx(env.network.parameter_ratio, rel=1e-4)
