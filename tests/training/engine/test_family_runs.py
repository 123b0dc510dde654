"""Runs on a family of tasks: contexts change every round, are recorded, and resume to the bit on any lanes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.common.configuration.config import Config, PPOConfig
from esper.common.control import RequestKind
from esper.networks.seeds.lifecycle import StageTransition
from esper.networks.tasks import TaskError, load_task
from esper.networks.tasks.contexts import draw_context
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.splits import Splits
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.studies.harvest.checkpoint import harvest_checkpoint
from esper.training.checkpoint.files import read_checkpoint
from esper.training.envs.env import Env
from esper.training.envs.hosts import HostFactory
from esper.training.policy.actions import Action
from tests.runs import LiveRun, computed, recorded

FAMILY = load_task("digits_family")
OPTIONS: dict[str, Any] = {
    "task": "digits_family",
    "envs": 4,
    "rounds": 3,
    "steps": 4,
    "ppo": PPOConfig(hidden=16, epochs=2, minibatches=2, envs_per_host=2),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    return LiveRun.finished(tmp_path_factory.mktemp("whole"), **OPTIONS)


def test_envs_of_a_host_share_a_context_that_changes_every_round(whole: LiveRun) -> None:
    started = [event for event in recorded(whole.run.directory) if isinstance(event, ev.EpisodeStarted)]
    assert [(event.round, event.env) for event in started] == [(r, e) for r in (1, 2, 3) for e in range(4)]
    for event in started:
        context = draw_context(FAMILY, 0, event.env // 2, event.round - 1)
        assert event.settings == context.settings
        assert event.structure == FAMILY.structures[context.structure].name  # pyright: ignore[reportAttributeAccessIssue]
    by_round = [[(event.structure, event.settings) for event in started if event.round == r] for r in (1, 2, 3)]
    assert all(row[0] == row[1] and row[2] == row[3] for row in by_round)
    assert len({str(row) for row in by_round}) == 3


def test_run_names_its_structures_and_the_state_has_contexts(whole: LiveRun) -> None:
    run_started = recorded(whole.run.directory)[0]
    assert isinstance(run_started, ev.RunStarted)
    assert [(found.name, found.slots, found.host_parameters) for found in run_started.structures] == [
        ("narrow_1x1", 3, 390), ("narrow_3x3", 3, 1702), ("tapering_1x1", 3, 282), ("deep_1x1", 4, 354),
    ]  # fmt: skip
    assert all(found.chance_loss == pytest.approx(math.log(10)) for found in run_started.structures)
    assert run_started.slot_names == ["first", "second", "third", "fourth"]
    for env in whole.state.envs:
        assert env.context
        assert env.context.round == 3
        assert env.stepped
        assert len(env.stepped.slots) == (4 if env.context.structure == "deep_1x1" else 3)


@pytest.mark.parametrize(
    ("stop_after", "lanes"),
    [(7, ("cpu:0",)), pytest.param(8, ("cpu:0", "cpu:1"), marks=pytest.mark.slow)],
)
def test_family_resumes_to_the_bit(whole: LiveRun, tmp_path: Path, stop_after: int, lanes: tuple[str, ...]) -> None:
    first = LiveRun(tmp_path, **OPTIONS).start_paused(stop_after)
    checkpoint = first.stop()
    second = LiveRun(tmp_path, resume=checkpoint, devices=lanes, **OPTIONS)
    assert second.start().finish().status == "done"
    assert computed(recorded(first.run.directory)) == computed(recorded(whole.run.directory))


def test_restore_to_a_round_with_other_structures(whole: LiveRun, tmp_path: Path) -> None:
    live = LiveRun(tmp_path, **OPTIONS).start_paused(9)  # in the third round
    live.control.put(RequestKind.RESTORE, "test", str(list_checkpoints(live.run.directory)[0]))
    assert live.wait_for(ev.Resumed).round == 1
    live.finish()
    assert computed(recorded(live.run.directory)) == computed(recorded(whole.run.directory))


@pytest.mark.slow
def test_start_of_a_failed_round_can_be_resumed(
    whole: LiveRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply: Callable[[Env, Action, int], list[StageTransition]] = Env.apply_action

    def fail(env: Env, action: Action, step: int) -> list[StageTransition]:
        if (env.index, env.key.round, step) == (1, 2, 1):
            raise RuntimeError("broken")
        return apply(env, action, step)

    with monkeypatch.context() as patched:
        patched.setattr(Env, "apply_action", fail)
        failed = LiveRun.finished(tmp_path, **OPTIONS)
    start = list_checkpoints(failed.run.directory)[-1]
    assert (read_checkpoint(start).round, read_checkpoint(start).step) == (2, 0)
    resumed = LiveRun(tmp_path, resume=start, **OPTIONS)
    assert resumed.start().finish().status == "done"
    assert computed(recorded(failed.run.directory)) == computed(recorded(whole.run.directory))


def env_of_family(seed: int = 0, **options: Any) -> Env:
    hosts = HostFactory(FAMILY, family_profile(), torch.device("cpu"), seed)
    return Env(0, hosts, family_data(), Config(task="digits_family", seed=seed, **options), None)


@cache
def family_data() -> tuple[Splits, ...]:
    return load_data(FAMILY, None)


@cache
def family_profile() -> TaskProfile:
    return probe_task(FAMILY, family_data())


def test_settings_of_a_context_are_applied() -> None:
    env = env_of_family()
    seen: set[tuple[float, int]] = set()
    for round_index in range(20):
        env.reset(env.key._replace(round=round_index))
        settings = env.context.settings
        assert env.host_optimizer.learning_rate == settings["learning_rate"]
        assert len(env.splits.train[0]) == settings["samples"]
        assert len(env.epoch_data(0)[0]) == 1024  # few samples are repeated
        assert env.batches_per_epoch == 8
        assert env.network.slots[0].site == env.profile.sites[0]
        seen.add((float(settings["learning_rate"]), int(settings["samples"])))
    assert len(seen) == 4


def test_few_samples_are_repeated_equally_often() -> None:
    env = env_of_family()
    while env.context.settings["samples"] != 128:
        env.enter(env.key._replace(round=env.key.round + 1))
    x, _ = env.epoch_data(0)
    _, counts = x.flatten(1).unique(dim=0, return_counts=True)
    assert counts.sum() == 1024
    assert int(counts.min()) >= 8


@pytest.mark.parametrize(
    "policy", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("heuristic", "random", "full")), "plan"]
)
def test_every_policy_grows_envs_with_different_slots(policy: str, tmp_path: Path) -> None:
    plan = "1:conv_light@first 2:depthwise@fourth 3:conv_light@second" if policy == "plan" else ""
    options = OPTIONS | {"policy": policy, "plan": plan, "rounds": 1, "ppo": PPOConfig(envs_per_host=1)}
    live = LiveRun.finished(tmp_path, seed=4, **options)  # whose first round has all structures
    events = recorded(live.run.directory)
    planted = {event.slot for event in events if isinstance(event, ev.SeedMoved) and event.after == "germinated"}
    structures = {event.structure for event in events if isinstance(event, ev.EpisodeStarted)}
    assert len(structures) == 4
    assert planted or policy == "heuristic"  # which plants nothing in the first steps
    if policy == "plan":
        assert planted == {"first", "second", "fourth"}


def test_grown_network_of_a_family_is_not_harvested(whole: LiveRun) -> None:
    with pytest.raises(
        TaskError,
        match=r"digits_family is a family of tasks, and .*; for its structure narrow_1x1, ",
    ):
        harvest_checkpoint(list_checkpoints(whole.run.directory)[-1])


def test_context_seed_fixes_the_contexts_and_not_the_weights() -> None:
    first, second = (env_of_family(seed, context_seed=9) for seed in (1, 2))
    for round_index in range(4):
        for env in (first, second):
            env.reset(env.key._replace(round=round_index))
        assert first.context == second.context == draw_context(FAMILY, 9, 0, round_index)
        assert torch.equal(first.splits.train[0], second.splits.train[0])
        assert not torch.equal(*(env.network.host_parameters()[0] for env in (first, second)))
        assert not torch.equal(*(env.epoch_data(0)[1] for env in (first, second)))


@pytest.mark.slow
def test_mixture_of_tasks_resumes_to_the_bit(tmp_path: Path) -> None:
    lanes = ("cpu:0", "cpu:1")
    options = OPTIONS | {"task": "digits_impaired+recall", "rounds": 2}
    whole = LiveRun.finished(tmp_path / "whole", **options)
    episodes = [event for event in recorded(whole.run.directory) if isinstance(event, ev.EpisodeStarted)]
    assert {event.structure for event in episodes} == {"digits_impaired", "recall"}
    first = LiveRun(tmp_path, devices=lanes, **options).start_paused(5)
    checkpoint = first.stop()
    second = LiveRun(tmp_path, resume=checkpoint, devices=lanes, **options)
    assert second.start().finish().status == "done"
    assert computed(recorded(first.run.directory)) == computed(recorded(whole.run.directory))
