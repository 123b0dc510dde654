"""A population on two devices: two GPUs if present, and two CPU lanes on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper.networks.seeds.outputs import list_tensors
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import find_checkpoint, list_checkpoints
from esper.training.checkpoint.files import read_checkpoint
from esper.training.envs.env import Env
from esper.training.lanes.devices import torch_device
from tests.runs import LiveRun, recorded
from tests.training.engine.populations import play, population

ENVS, STEPS, PAUSED = 4, 6, 3

PRECISIONS = ("off", "bf16", "fp16")
NEEDS_TWO_GPUS = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has not two CUDA devices"),
]
TWO_CPU_LANES = pytest.param(("cpu:0", "cpu:1"), "fp16", id="cpu-fp16", marks=pytest.mark.slow)
TWO_GPUS = {amp: pytest.param(("cuda:0", "cuda:1"), amp, id=f"cuda-{amp}", marks=NEEDS_TWO_GPUS) for amp in PRECISIONS}


def tensors(env: Env) -> Iterator[tuple[str, Tensor]]:
    """Return all tensors of an env, keyed by name."""
    yield from env.network.named_parameters()
    yield from env.network.named_buffers()
    for owner, optimizer in {"host": env.host_optimizer, **env.slot_optimizers}.items():
        for index, momentum in enumerate(optimizer.state["momentum"]):
            yield f"momentum {index} of {owner}", momentum
    yield from ((f"data {index}", value) for index, value in enumerate(list_tensors(vars(env.splits))))
    if env.scaler:
        yield "loss scale", env.scaler.current()


def assert_at_home(live: LiveRun, devices: tuple[str, str], amp: str) -> None:
    """Assert that all tensors of every env, including its seeds, are on the env's device."""
    for env in live.run.pool.envs:
        home = torch_device(devices[env.index % 2])
        found = dict(tensors(env))
        assert {name: tensor.device for name, tensor in found.items() if tensor.device != home} == {}
        assert len(env.slot_optimizers) == 3  # a seed in every slot, so that seeds are covered
        assert any(
            momentum.any() for optimizer in env.slot_optimizers.values() for momentum in optimizer.state["momentum"]
        )
        assert ("loss scale" in found) == (amp == "fp16")


def assert_worked(live: LiveRun, devices: tuple[str, str], steps: int) -> None:
    """Assert that both devices had envs and trained them."""
    started = next(event for event in live.events if isinstance(event, ev.RunStarted))
    assert started.lanes == [devices[env % 2] for env in range(ENVS)]
    samples = [event for event in live.events if isinstance(event, ev.DeviceSampled)]
    assert [sample.device for sample in samples] == [*devices] * steps
    for sample in samples:
        assert sample.envs == ENVS // 2
        assert sample.busy is not None
        assert sample.busy > 0
        assert sample.allocated
    stepped = [event for event in live.events if isinstance(event, ev.EnvStepped)]
    assert [event.env for event in stepped] == [*range(ENVS)] * steps
    assert all(event.grad_norm is not None and 0 < event.grad_norm < float("inf") for event in stepped)
    for env in live.run.pool.envs:
        momentum = dict(tensors(env))["momentum 0 of host"]
        assert momentum.abs().sum() > 0


@pytest.mark.parametrize(("devices", "amp"), [TWO_CPU_LANES, TWO_GPUS["off"], TWO_GPUS["fp16"]])
def test_two_devices_share_a_run(devices: tuple[str, str], amp: str, tmp_path: Path) -> None:
    """Train half an episode; then resume from the checkpoint with every env on the other device."""
    options = {"envs": ENVS, "steps": STEPS, "rounds": 1, "policy": "full", "amp": amp}
    first = LiveRun(tmp_path, devices=devices, **options).start_paused(PAUSED)
    first.stop()
    assert_worked(first, devices, PAUSED)
    assert_at_home(first, devices, amp)

    swapped = (devices[1], devices[0])
    second = LiveRun(tmp_path, devices=swapped, resume=find_checkpoint(first.run.directory), **options).start()
    assert second.finish().status == "done"
    assert_worked(second, swapped, STEPS - PAUSED)
    assert_at_home(second, swapped, amp)


@pytest.mark.parametrize(("devices", "amp"), [TWO_CPU_LANES, *TWO_GPUS.values()])
def test_ppo_learns_on_two_devices(devices: tuple[str, str], amp: str, tmp_path: Path) -> None:
    """Two updates of the policy on the first device, and both devices busy."""
    policy_device = devices[0].partition(":")[0]
    live = LiveRun(
        tmp_path, devices=devices, policy_device=policy_device, envs=ENVS, steps=STEPS, rounds=2, amp=amp
    ).start()
    assert live.finish().status == "done"
    updates = [event for event in recorded(live.run.directory) if isinstance(event, ev.PolicyUpdated)]
    assert [update.round for update in updates] == [1, 2]
    for update in updates:
        assert_finite(update)
        assert update.minibatches > 0
    before, after = (
        read_checkpoint(path).tensors for path in (list_checkpoints(live.run.directory)[index] for index in (0, -1))
    )
    learned = [name for name in after if name.startswith("agent.") and not torch.equal(before[name], after[name])]
    assert any("network" in name for name in learned)
    samples = [event for event in live.events if isinstance(event, ev.DeviceSampled)]
    for device in devices:  # both were busy
        assert sum(sample.busy or 0.0 for sample in samples if sample.device == device) > 0


def assert_finite(update: ev.PolicyUpdated) -> None:
    """Assert that every number of an update, and the gradient of every head that decided something, is finite."""
    for name in ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm"):
        assert math.isfinite(getattr(update, name)), name
    norms = {name: head.grad_norm for name, head in update.heads.items() if head.grad_norm is not None}
    assert {"op", "slot"} <= set(norms)
    for name, norm in norms.items():
        assert math.isfinite(norm), name
        assert norm > 0, name


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("amp", PRECISIONS)
def test_recorded_heads_have_finite_gradients(amp: str, tmp_path: Path) -> None:
    live = LiveRun(tmp_path, devices=("cuda:0",), policy_device="cuda", envs=2, steps=3, rounds=1, amp=amp).start()
    assert live.finish().status == "done"
    (update,) = [event for event in recorded(live.run.directory) if isinstance(event, ev.PolicyUpdated)]
    assert_finite(update)


@pytest.mark.parametrize("amp", [pytest.param(amp, marks=NEEDS_TWO_GPUS) for amp in PRECISIONS])
def test_second_gpu_trains_in_a_process_of_its_own(amp: str) -> None:
    """With the results of one GPU, up to the order of additions."""
    lanes = ("cuda:0", "cuda:1")
    with population(ENVS, lanes, amp=amp) as two, population(ENVS, lanes[:1], amp=amp) as one:
        assert [lane.has_workers for lane in two.lanes] == [False, True]
        for found, wanted in zip(play(two, 0, 4), play(one, 0, 4), strict=True):
            assert [step.train_loss for step in found] == pytest.approx([step.train_loss for step in wanted], rel=1e-2)
        assert two.lanes[1].worker_memory > 0
