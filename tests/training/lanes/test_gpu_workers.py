"""Tests of the number of worker processes of a GPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from esper.common.domain import Op
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.lanes import gpu_workers
from esper.training.lanes import pool as pool_module
from esper.training.lanes.errors import FaultError
from esper.training.lanes.gpu_workers import CONTEXT_BYTES, fitting_workers, useful_workers
from esper.training.lanes.lane import Lane
from esper.training.lanes.measurements import measure_launching
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action
from tests.training.engine.populations import digits_profile, population
from tests.training.lanes.pretended_gpus import pretended_gpus

GPU = torch.device("cuda:0")


@pytest.mark.parametrize(
    ("cores", "envs", "gpus", "expected"),
    [
        (16, 64, 1, 8),  # the maximum
        (6, 64, 1, 5),  # a core for the main process
        (16, 64, 4, 3),  # cores are shared by the GPUs
        (16, 20, 1, 5),  # four envs each
        (16, 7, 1, 0),  # one worker is no better than the thread
        (2, 64, 1, 0),
    ],
)
def test_workers_need_cores_and_envs(
    cores: int, envs: int, gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_workers, "available_cores", lambda: cores)
    assert useful_workers(envs, gpus) == expected


def test_ranks_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "available_cores", lambda: 16)
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert useful_workers(64, 1) == 3


@pytest.mark.parametrize(("free", "expected"), [(100.0, 8), (3.5, 3), (1.9, 0)])
def test_workers_fit_into_free_memory(free: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes as much as this process, and a context."""
    held = 5 << 30
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free * (CONTEXT_BYTES + held)), 1 << 50))
    assert fitting_workers(GPU, 8) == expected


@pytest.mark.parametrize(
    ("launching", "scaler", "problem", "expected"),
    [
        (0.9, "env", "injected", {3}),
        (0.2, "env", "injected", {0}),
        (0.9, "device", "injected", {0}),
        (0.9, "env", None, {0}),
    ],
)
def test_gpu_that_waits_for_launches_has_workers(
    launching: float, scaler: str, problem: str | None, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Envs that share a loss scale stay in one process, and so do all envs whose kernels CUDA graphs can record."""
    digits_profile()
    started: list[int] = []
    with pretended_gpus(monkeypatch):
        monkeypatch.setattr(pool_module, "useful_workers", lambda *_: 4)
        monkeypatch.setattr(pool_module, "fitting_workers", lambda *_: 3)
        monkeypatch.setattr(pool_module, "measure_launching", lambda *_: launching)
        monkeypatch.setattr(EnvPool, "_start_workers", lambda _, workers, *__: started.extend(workers.values()))
        monkeypatch.setattr(pool_module, "check_graphs", lambda *_: problem)
        with population(2, ("cuda:0",), amp="fp16", scaler=scaler) as pool:
            assert set(started) == expected
            notice = f"the kernels of digits_impaired are launched one by one: {problem}"
            assert pool.notices == ([notice] if problem else [])


def test_every_kind_of_gpu_has_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()
    checked: list[str] = []

    def check(env: Env, lane: Lane, graphs: CudaGraphs) -> str | None:
        checked.append(lane.name)
        return "injected" if lane.name == "cuda:1" else None

    with pretended_gpus(monkeypatch):
        monkeypatch.setattr(pool_module, "check_graphs", check)
        with population(3, ("cuda:0", "cuda:1", "cuda:2")) as pool:
            assert checked == ["cuda:0"]
            assert all(lane.cuda_graphs and lane.cuda_graphs.structures == {0} for lane in pool.lanes)
        checked.clear()
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: str(device.index % 2))
        with population(3, ("cuda:0", "cuda:1", "cuda:2")) as pool:
            assert sorted(checked) == ["cuda:0", "cuda:1"]
            assert not any(lane.cuda_graphs and lane.cuda_graphs.structures for lane in pool.lanes)
            assert pool.notices == ["the kernels of digits_impaired are launched one by one: injected"]


def test_measured_batch_is_the_only_work(monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()
    with pretended_gpus(monkeypatch) as waits, population(1, ("cuda:0",)) as pool:
        waits.clear()
        assert 0 < measure_launching(pool.envs[0], pool.lanes[0]) <= 1
        assert waits == Counter(event=3)
        assert pool.lanes[0].stopwatch.pop_seconds() == {}


def test_env_that_fails_while_measured_fails_in_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("injected")

    digits_profile()
    with pretended_gpus(monkeypatch):
        monkeypatch.setattr(pool_module, "useful_workers", lambda *_: 4)
        monkeypatch.setattr(pool_module, "check_graphs", lambda *_: "injected")
        monkeypatch.setattr(Env, "train_batch", fails)
        with population(2, ("cuda:0",)) as pool:
            assert not pool.lanes[0].has_workers
            pool.reset(0)
            with pytest.raises(FaultError, match=r"^env 00 on cuda:0 failed: RuntimeError: injected"):
                pool.step([Action(Op.WAIT)] * 2, 0)
