"""Tests that need a GPU: one synchronisation per step, constant memory, equality with the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esper.checkpoint.catalog import find_checkpoint
from esper.envs.cuda_graphs import CudaGraphs, ReplayedBatches
from esper.lanes.pool import EnvPool
from esper.tasks.task import Task
from tests.engine.populations import play, population, script
from tests.runs import LiveRun

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]
GPU = ("cuda:0",)


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


def test_memory_is_constant_from_the_second_round() -> None:
    with population(envs=4, lanes=GPU) as pool:
        held: list[tuple[int, int]] = []
        for round_index in range(4):
            play(pool, 0, 8)  # the same round again and again
            pool.reset(round_index)
            held.append((torch.cuda.memory_allocated(0), torch.cuda.memory_reserved(0)))
        assert held[1:] == [held[1]] * 3


def test_env_on_gpu_matches_env_on_cpu() -> None:
    """One epoch from the same start, in float32: only the order of additions differs."""
    with population(envs=2, amp="off") as cpu, population(envs=2, lanes=GPU, amp="off") as gpu:
        (wanted, _), (found, _) = play(cpu, 0, 1), play(gpu, 0, 1)
        assert found[0].train_loss == pytest.approx(wanted[0].train_loss, rel=1e-3)
        assert found[0].grad_norm == pytest.approx(wanted[0].grad_norm, rel=1e-2)


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_replayed_batches_match_launched_ones(amp: str) -> None:
    """An episode with seeds in every stage, with CUDA graphs and without; only the order of additions may differ.

    There are more envs than streams, so that the second env of a stream finds its kernels loaded.
    """
    options = {"envs": 6, "lanes": GPU, "amp": amp, "steps": 10}
    with population(**options) as replayed, population(task=without_graphs, **options) as launched:
        assert replayed.task.cuda_graphs
        for found, wanted in zip(play(replayed, 0, 10), play(launched, 0, 10), strict=True):
            assert [step.train_loss for step in found] == pytest.approx([step.train_loss for step in wanted], rel=1e-2)
            assert [step.loss_scale for step in found] == [step.loss_scale for step in wanted]
            assert found[0].train_loss == pytest.approx(wanted[0].train_loss, rel=1e-4)


def without_graphs(task: Task) -> Task:
    return replace(task, cuda_graphs=False)


@contextmanager
def side_stream() -> Iterator[None]:
    """Another stream than the default one, on which no graph can be recorded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


def test_replayed_dropout_draws_the_numbers_of_launched_dropout() -> None:
    device = torch.device(GPU[0])

    def drop(x_N: Tensor) -> Tensor:
        return functional.dropout(x_N, 0.5)

    x_N = torch.ones(64, device=device)
    torch.cuda.manual_seed(1)
    launched = [drop(x_N) for _ in range(4)]
    torch.cuda.manual_seed(1)
    with side_stream():
        batches = ReplayedBatches(CudaGraphs(), drop, owner=0, kind="dropout", device=device)
        replayed = [batches(x_N) for _ in range(4)]
    torch.cuda.synchronize()
    assert not torch.equal(launched[2], launched[3])
    for found, wanted in zip(replayed, launched, strict=True):
        assert torch.equal(found, wanted)


def test_task_that_waits_in_a_batch_is_refused() -> None:
    device = torch.device(GPU[0])
    with side_stream():
        batches = ReplayedBatches(CudaGraphs(), lambda x_N: x_N * x_N.sum().item(), owner=0, kind="item", device=device)
        batches(torch.ones(4, device=device))
        with pytest.raises(RuntimeError, match="set cuda_graphs=False in the task"):
            batches(torch.ones(4, device=device))
        assert torch.ones(4, device=device).sum().item() == 4.0


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
