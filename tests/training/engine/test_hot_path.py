"""Tests of the hot path: minibatches do not synchronise with the host, and a round leaks no tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper.common.domain import AlphaCurve, Stage
from esper.networks.seeds import cpu_convolution
from esper.networks.seeds.blend import Blend
from esper.training.envs.env import Env
from esper.training.ppo.agent import PPOAgent
from tests.device_syncs import device_syncs
from tests.runs import LiveRun
from tests.training.engine.populations import population, script


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        bool,
        float,
        int,
        lambda x: torch.arange(3).split(x),
    ],
)
def test_device_syncs_detects_every_read(read: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    with device_syncs(monkeypatch) as found:
        read(torch.tensor(3))
    assert found


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_epoch_does_not_synchronise(amp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: set[Stage] = set()
    with population(amp=amp) as pool:
        (env,) = pool.envs
        pool.reset(0)
        for step in range(12):
            slots = env.network.slots
            env.apply_action(script(0, step, slots), step)
            stages |= {slot.stage for slot in slots}
            with device_syncs(monkeypatch) as found:
                vectors = env.train_epoch(step), env.validate(last=False)
            assert found == []
            trained, validated = (vector.tolist() for vector in vectors)
            env.unpack_results(trained, validated)
            env.tick()
    assert stages >= {Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED}


def census() -> tuple[int, int]:
    """Return the number of storages of live tensors, and their bytes, without the tables cached for each convolution.

    A round that is the first to plant a convolution of some size adds a table, unless an earlier test has done so.
    """
    cpu_convolution._band_indices.cache_clear()
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor) and each.device.type != "meta"]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return len(storages), sum(storages.values())


def plant_everything(envs: Sequence[Env]) -> None:
    """Plant and blend every blueprint in every slot once: modules and the tensors of alpha are kept."""
    for env in envs:
        for slot in env.network.slots:
            for name in slot.site.blueprints:
                slot.germinate(name, Blend.GATE, AlphaCurve.LINEAR, 3, 1.0, torch.Generator())
                env.sync_optimizers()
                assert slot.schedule is not None
                slot.schedule.tick()
                slot.alpha_input()
                slot.reset()
                env.sync_optimizers()


def test_no_tensor_outlives_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[int, int]] = []
    begin = PPOAgent.begin_round

    def counted(agent: PPOAgent, noise: Tensor) -> None:
        begin(agent, noise)
        if not held:
            plant_everything(live.run.pool.envs)
        held.append(census())

    monkeypatch.setattr(PPOAgent, "begin_round", counted)
    live = LiveRun(tmp_path, policy="ppo", rounds=3, steps=6)
    live.start().finish()
    assert len(held) == 3
    assert held[2] == held[1]
