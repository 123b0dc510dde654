"""Tests of the number of worker processes of a GPU."""

from __future__ import annotations

import pytest
import torch

from esper.lanes import gpu_workers
from esper.lanes import pool as pool_module
from esper.lanes.gpu_workers import affordable_workers
from esper.lanes.pool import EnvPool, MeasuredEpoch
from tests.engine.populations import digits_profile, population
from tests.lanes.pretended_gpus import pretended_gpus


@pytest.mark.parametrize(
    ("cores", "envs", "gpus", "free_gib", "expected"),
    [
        (16, 64, 1, 139, 8),  # the maximum
        (6, 64, 1, 139, 5),  # a core for the main process
        (16, 64, 4, 139, 3),  # cores are shared by the GPUs
        (16, 20, 1, 139, 5),  # four envs each
        (16, 64, 1, 7, 3),  # 2 GiB each
        (16, 7, 1, 139, 0),  # one worker is no better than the thread
        (2, 64, 1, 139, 0),
        (16, 64, 1, 1, 0),
    ],
)
def test_workers_are_limited_by_cores_envs_and_memory(
    cores: int, envs: int, gpus: int, free_gib: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_workers, "available_cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_gib << 30, 140 << 30))
    assert affordable_workers(torch.device("cuda:0"), envs, gpus) == expected


def test_ranks_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "available_cores", lambda: 16)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (140 << 30, 140 << 30))
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert affordable_workers(torch.device("cuda:0"), 64, 1) == 3


@pytest.mark.parametrize(
    ("launching", "scaler", "expected"), [(0.9, "env", {3}), (0.2, "env", {0}), (0.9, "device", {0})]
)
def test_gpu_that_waits_for_launches_has_workers(
    launching: float, scaler: str, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Envs that share a loss scale stay in one process."""
    digits_profile()
    started: list[int] = []
    with pretended_gpus(monkeypatch):
        monkeypatch.setattr(pool_module, "affordable_workers", lambda *_: 3)
        monkeypatch.setattr(pool_module, "_measure_epoch", lambda *_: MeasuredEpoch(1.0, launching))
        monkeypatch.setattr(EnvPool, "_start_workers", lambda _, workers, *__: started.extend(workers.values()))
        with population(4, ("cuda:0", "cuda:1"), amp="fp16", scaler=scaler):
            assert set(started) == expected
