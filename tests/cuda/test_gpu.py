"""Tests that need a GPU: one synchronisation per step, constant memory, equality with the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esper.common.domain import AlphaCurve, Op, Stage
from esper.common.seeding import make_generator
from esper.networks.seeds.blend import Blend
from esper.networks.tasks.task import Task
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.training.envs import cuda_graphs as cuda_graphs_module
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env_state import env_state_tensors, load_tensors
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.governor import LastGoodState
from esper.training.lanes.pool import EnvPool, PendingEpochs
from esper.training.policy.actions import Action
from tests.cuda.gpu import GPU, NEEDS_GPU, side_stream
from tests.runs import LiveRun
from tests.training.engine.populations import digits_profile, live_on, measurements, play, population, script

pytestmark = NEEDS_GPU


@contextmanager
def hidden_synchronisation_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("counterfactual", ["ablation", "shapley"])
@pytest.mark.parametrize(("amp", "scaler"), [("off", "env"), ("bf16", "env"), ("fp16", "env"), ("fp16", "device")])
def test_step_synchronises_the_host_once(amp: str, scaler: str, counterfactual: str) -> None:
    """Covers seeds in every stage, and a germination. The one explicit wait, for an event, is not counted."""
    with population(envs=4, lanes=GPU, amp=amp, scaler=scaler, counterfactual=counterfactual, steps=10) as pool:
        play(pool, 0, 8)
        pool.reset(1)
        for step in range(10):
            actions = [script(env.index, step, env.network.slots) for env in pool.envs]
            with hidden_synchronisation_is_an_error():
                pool.step(actions, step)
            for env in pool.envs:
                env.tick()


def test_memory_is_constant_from_the_third_round() -> None:
    """The second round records the functions that ran once in the first."""
    with population(envs=4, lanes=GPU) as pool:
        held: list[tuple[int, int]] = []
        for round_index in range(6):
            play(pool, 0, 8)  # the same round again and again
            pool.reset(round_index)
            held.append((torch.cuda.memory_allocated(0), torch.cuda.memory_reserved(0)))
        assert held[2:] == [held[2]] * 4


def test_env_on_gpu_matches_env_on_cpu() -> None:
    """One epoch from the same start, in float32: only the order of additions differs."""
    with population(envs=2, amp="off") as cpu, population(envs=2, lanes=GPU, amp="off") as gpu:
        (wanted, _), (found, _) = play(cpu, 0, 1), play(gpu, 0, 1)
        assert found[0].train_loss == pytest.approx(wanted[0].train_loss, rel=1e-3)
        assert found[0].grad_norm == pytest.approx(wanted[0].grad_norm, rel=1e-2)


def without_graphs(task: Task) -> Task:
    return replace(task, cuda_graphs="off")


@contextmanager
def launched_and_recorded(**options: Any) -> Iterator[tuple[EnvPool, EnvPool]]:
    """Two equal populations; the kernels of the first are launched, and those of the second recorded."""
    with population(task=without_graphs, lanes=GPU, **options) as launched, population(lanes=GPU, **options) as graphed:
        assert graphed.notices == []
        yield launched, graphed
        assert launched.lanes[0].recorded_graphs == 0
        assert graphed.lanes[0].recorded_graphs
        assert graphed.lanes[0].take_notices() == []


def assert_equal(found: Sequence[EpochResult], wanted: Sequence[EpochResult]) -> None:
    """Compare the steps of an episode; only the order of additions may differ, which grows from step to step."""
    assert [step.train_loss for step in found] == pytest.approx([step.train_loss for step in wanted], rel=1e-2)
    assert [step.loss for step in found] == pytest.approx([step.loss for step in wanted], rel=1e-2)
    assert [step.loss_scale for step in found] == [step.loss_scale for step in wanted]
    assert [step.dependences.keys() for step in found] == [step.dependences.keys() for step in wanted]
    assert found[0].train_loss == pytest.approx(wanted[0].train_loss, rel=1e-4)


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_recorded_episodes_match_launched_ones(amp: str) -> None:
    """Two episodes with seeds in every stage, so that the second one finds graphs of the first.

    There are more envs than streams, so that the envs of a stream share buffers and the memory of their graphs.
    """
    with launched_and_recorded(envs=6, amp=amp, steps=10) as (launched, graphed):
        for round_index in range(2):
            episodes = (play(pool, round_index, 10) for pool in (graphed, launched))
            for found, wanted in zip(*episodes, strict=True):
                assert_equal(found, wanted)


@pytest.mark.parametrize("blend", Blend)
@pytest.mark.parametrize("blueprint", digits_profile().sites[1].blueprints)
def test_every_seed_is_replayed_in_every_stage(blueprint: str, blend: Blend) -> None:
    """Alphas and learning rates change between the replays."""
    with launched_and_recorded(amp="off", steps=14) as (launched, graphed):
        wanted, found = (life_of_seed(pool, blueprint, blend) for pool in (launched, graphed))
        assert_equal(found, wanted)


def life_of_seed(pool: EnvPool, blueprint: str, blend: Blend) -> list[EpochResult]:
    """Return the results of steps in which a seed is trained, blended, made permanent at alpha 1."""
    pool.reset(0)
    (env,) = pool.envs
    slot = env.network.slots[1]
    slot.germinate(blueprint, blend, AlphaCurve.LINEAR, 5, 1.0, make_generator(0, "seed"))
    slot.tick()
    results: list[EpochResult] = []
    for step in range(14):
        env.sync_optimizers()
        results += measurements(pool, [Action(Op.WAIT)], step)
        live_on(slot, advance=step > 2)
    assert slot.stage is Stage.FOSSILIZED
    return results


@pytest.mark.parametrize("scaler", ["env", "device"])
def test_graphs_survive_rollback_cull_restore_and_new_rounds(scaler: str) -> None:
    with launched_and_recorded(envs=2, amp="fp16", scaler=scaler, steps=20) as (launched, graphed):
        found, wanted = changed_states(graphed), changed_states(launched)
        assert_equal(found, wanted)


def changed_states(pool: EnvPool) -> list[EpochResult]:
    """Return the results of steps between which the state of the first env is changed in every way."""
    results: list[EpochResult] = []

    def steps(count: int, op: Op = Op.WAIT) -> None:
        for _ in range(count):
            results.append(measurements(pool, [Action(op, 0, tempo=0)] * 2, len(results) % 20)[0])
            for each in pool.envs:
                each.tick()

    pool.reset(0)
    env = pool.envs[0]
    steps(3)
    good = LastGoodState(env)
    good.save()
    saved = {name: value.clone() for name, value in env_state_tensors(env).items()}
    steps(1, Op.GERMINATE)
    steps(4)
    good.rollback()
    steps(4)
    load_tensors(env_state_tensors(env), saved)
    steps(2)
    pool.reset(1)
    steps(3)
    steps(1, Op.GERMINATE)
    steps(3)
    env.network.slots[0].remove_seed("test")
    env.sync_optimizers()
    steps(2)
    return results


def test_recorded_dropout_draws_the_numbers_of_launched_dropout() -> None:
    device = torch.device(GPU[0])
    ones_N = torch.ones(64, device=device)

    def drop() -> Tensor:
        return functional.dropout(ones_N, 0.5)

    torch.cuda.manual_seed(1)
    launched = [drop() for _ in range(4)]
    torch.cuda.manual_seed(1)
    with side_stream():
        graphs = CudaGraphs(device).select(0, 0, [], [], list)
        replayed = [graphs.run(("drop",), drop).clone() for _ in range(4)]
    torch.cuda.synchronize()
    assert not torch.equal(launched[2], launched[3])
    for found, wanted in zip(replayed, launched, strict=True):
        assert torch.equal(found, wanted)


def test_graph_survives_the_drop_of_another_one_of_its_stream() -> None:
    """Matrix products use a workspace of cuBLAS, which torch must not free with the other graph."""
    device = torch.device(GPU[0])
    left_NN, right_NN = torch.rand(2, 640, 640, device=device)
    with side_stream():
        cuda_graphs = CudaGraphs(device)

        def product(topology: str) -> Tensor:
            return cuda_graphs.select(0, 0, [topology], [], list).run(("product",), lambda: left_NN @ right_NN)

        wanted = product("a").clone()
        for topology in "abb":
            product(topology)
        assert cuda_graphs.recordings == 2
        cuda_graphs._kept.popitem()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        overwritten = [torch.zeros(1 << 20, device=device) for _ in range(64)]
        assert torch.equal(product("a"), wanted)
        assert all(not zeros.any() for zeros in overwritten)


def test_two_groups_in_flight_match_one_group() -> None:
    """Each stream has envs of both groups, and each group is launched before the other is waited for."""
    options = {"envs": 8, "lanes": GPU, "amp": "off", "steps": 10}
    with population(**options) as pool:
        wanted = play(pool, 0, 10)
    with population(**options) as pool:
        pool.reset(0)
        found: dict[int, list[EpochResult]] = {env.index: [] for env in pool.envs}
        pending: list[PendingEpochs | None] = [None, None]
        for step in range(11):
            for group, results in enumerate(pending):
                for env, epoch in results().items() if results else ():
                    found[env.index].append(epoch.measured)
                    env.tick()
                envs = pool.envs[group::2] if step < 10 else []
                actions = {env: script(env.index, step, env.network.slots) for env in envs}
                pending[group] = pool.start_step(actions, step) if envs else None
        assert pool.lanes[0].recorded_graphs
    for index, steps in found.items():
        assert_equal(steps, wanted[index])


def test_new_combination_of_seeds_is_recorded_in_its_first_call() -> None:
    with launched_and_recorded(amp="off", steps=40) as (launched, graphed):
        found, wanted = (combined_seeds(pool) for pool in (graphed, launched))
        assert_equal(found, wanted)


def combined_seeds(pool: EnvPool) -> list[EpochResult]:
    """Return the results of steps with a seed in one slot, in another one, and in both."""
    pool.reset(0)
    (env,) = pool.envs
    results: list[EpochResult] = []
    for chosen in ([0], [1], [0, 1]):
        for index, slot in enumerate(env.network.slots):
            slot.reset()
            if index in chosen:
                slot.germinate("conv_light", Blend.ADD, AlphaCurve.LINEAR, 3, 1.0, make_generator(0, "seed"))
                slot.tick()
        env.sync_optimizers()
        for _ in range(2):
            results += measurements(pool, [Action(Op.WAIT)], len(results))
    return results


def test_family_and_policy_share_the_gpu(tmp_path: Path) -> None:
    """The policy decides and learns on the default stream while the other group is recorded and replayed."""
    live = LiveRun(
        tmp_path,
        task="digits_family",
        devices=GPU,
        policy="ppo",
        policy_device=GPU[0],
        envs=8,
        steps=6,
        rounds=3,
    ).start()
    assert live.finish().status == "done"
    assert live.run.pool.notices == []
    assert live.run.pool.lanes[0].recorded_graphs
    updates = [event for event in live.events if isinstance(event, ev.PolicyUpdated)]
    assert [update.round for update in updates] == [1, 2, 3]
    assert all(math.isfinite(update.policy_loss) for update in updates)


def test_results_stay_the_same_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for some graphs, then old ones are dropped or kernels are launched."""
    with population(envs=4, lanes=GPU, steps=12) as pool:
        wanted = play(pool, 0, 12)
    torch.cuda.empty_cache()
    with population(envs=4, lanes=GPU, steps=12) as pool:
        pool.reset(0)
        limit = torch.cuda.mem_get_info(0)[0] - (64 << 20)
        monkeypatch.setattr(cuda_graphs_module, "MIN_FREE_GPU", limit)
        for found, expected in zip(play(pool, 0, 12), wanted, strict=True):
            assert_equal(found, expected)


def test_env_on_gpu_does_not_depend_on_other_envs() -> None:
    with population(envs=1, lanes=GPU) as alone, population(envs=4, lanes=GPU) as crowd:
        (wanted,), (found, *_) = play(alone, 0, 6), play(crowd, 0, 6)
        assert [step.train_loss for step in found] == pytest.approx([step.train_loss for step in wanted], rel=1e-2)


def test_workers_of_a_gpu_match_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with population(envs=4, lanes=GPU) as pool:
        wanted = play(pool, 0, 6)
    monkeypatch.setattr(EnvPool, "_required_workers", lambda pool: dict.fromkeys(pool.lanes, 2))
    with population(envs=4, lanes=GPU) as pool:
        found = play(pool, 0, 6)
        assert len(pool.lanes[0].pids) == 2
        assert pool.lanes[0].worker_memory > 0
    for steps, expected in zip(found, wanted, strict=True):
        assert [step.train_loss for step in steps] == pytest.approx([step.train_loss for step in expected], rel=1e-2)


def test_gpu_phases_sum_to_at_most_the_elapsed_time() -> None:
    with population(envs=4, lanes=GPU) as pool:
        play(pool, 0, 3)
        seconds = pool.lanes[0].stopwatch.pop_seconds()
        assert {"train", "fetch"} <= set(seconds) <= {"reset", "train", "validate", "fetch", "launch"}
        assert all(spent >= 0 for spent in seconds.values())
        assert seconds["train"] > 0


def test_checkpoint_moves_a_policy_between_devices(tmp_path: Path) -> None:
    options = {"envs": 2, "steps": 3, "policy": "ppo"}
    first = LiveRun(tmp_path, rounds=1, policy_device="cuda:0", **options)
    assert first.start().finish().status == "done"
    again = LiveRun(tmp_path, rounds=2, policy_device="cpu", resume=find_checkpoint(first.run.directory), **options)
    for name, tensor in again.run.trainer.state.agent.state_tensors().items():
        assert torch.equal(tensor, first.run.trainer.state.agent.state_tensors()[name].cpu()), name
    assert again.start().finish().status == "done"
