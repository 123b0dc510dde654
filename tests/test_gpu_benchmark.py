"""The methods of `benchmarks/gpu.py` compute the same results as the product's loop. `gpu_all.sh` checks torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.gpu import Batched, population
from torch import Tensor

from esper.networks.tasks import load_task
from esper.networks.tasks.probe import probe_task
from esper.training.envs.env import Env

ENVS = 3
BATCHES = 4


@contextmanager
def envs_of(
    blueprint: str | None, device: str, dtype: torch.dtype, name: str = "digits_impaired"
) -> Iterator[list[Env]]:
    """Return envs of one topology that differ in weights, data order and loss scale; some gradients are clipped.

    Their kernels are launched from Python.
    """
    whole = load_task(name)
    task = replace(whole, samples_per_epoch=BATCHES * whole.batch_size, cuda_graphs="off")
    loaded = task.data(None)
    x, y = loaded.train
    exact = replace(loaded, train=(x.to(dtype), y))
    pool = population(task, probe_task(task, (loaded,)), (exact,), device, ENVS, blueprint)
    for env in pool.envs:
        env.network.to(dtype)
        for optimizer in (env.host_optimizer, *env.slot_optimizers.values()):
            optimizer.state["momentum"] = [momentum.to(dtype) for momentum in optimizer.state["momentum"]]
        with torch.no_grad():
            for parameter in env.network.parameters():
                parameter.mul_(1.0 + env.index)
    try:
        yield pool.envs
    finally:
        pool.close()


def weights(env: Env) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in env.network.state_dict().items()}


@pytest.mark.parametrize(
    ("task", "blueprint"),
    [
        ("digits_impaired", "conv_light"),
        ("digits_impaired", "attention"),
        pytest.param("synthetic", None, marks=pytest.mark.slow),
    ],
)
def test_batched_envs_match_single_envs(task: str, blueprint: str | None) -> None:
    """Clipping, momentum and running statistics are separate for each env; compared in float64."""
    exact = (blueprint, "cpu:0", torch.float64, task)
    with envs_of(*exact) as alone, envs_of(*exact) as together:
        batched = Batched(together)
        norms_MOE = torch.cat([batched.train(step) for step in range(2)])
        clips = torch.tensor([owner.clip for owner in alone[0].active_optimizers()]).unsqueeze(1)
        assert 0 < (norms_MOE > clips).sum() < norms_MOE.numel()  # so that the comparison covers it
        for index, env in enumerate(alone):
            rows = [env.train_epoch(step) for step in range(2)]
            owners = norms_MOE.shape[1]
            means_MO = norms_MOE[..., index].view(2, BATCHES, owners).mean(dim=1)
            torch.testing.assert_close(torch.stack([row[6 : 6 + owners] for row in rows]).double(), means_MO)
            stacked = {**batched.parameters, **batched.buffers}
            for name, value in weights(env).items():
                torch.testing.assert_close(stacked[name][index].detach(), value, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.14.1+cu130", "torch 2.14.1+cu130 is too old; install torch 2.15 or newer"),
        ("2.15.0a0+git1", "torch finds no GPU; benchmarks/gpu_all.sh --rehearse runs on the CPU"),
    ],
)
def test_script_refuses_torch_whose_kept_graphs_are_unsafe(version: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        f"from types import SimpleNamespace\n__version__ = {version!r}\n"
        "cuda = SimpleNamespace(is_available=lambda: False)\n"
    )
    script = Path(__file__).parents[1] / "benchmarks" / "gpu_all.sh"
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "OUT": str(tmp_path / "out")}
    ended = subprocess.run([script, "plan"], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, f"gpu_all.sh: {message}\n")
