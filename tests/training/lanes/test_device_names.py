"""Tests of device names that are checked without torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from esper.common.configuration.config import ConfigError
from esper.common.system.process import RankInfo
from esper.training.lanes import device_names
from esper.training.lanes.device_names import early_lanes, lanes_with_worker, max_cuda_devices

ALONE = RankInfo()


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device_names, "max_cuda_devices", max_cuda_devices.__wrapped__)


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: str = "'13.2'", hip: str = "None", gpus: int | None = 2) -> None:
    """Replace the installed torch, the driver and NVML. None: a machine with a driver, but without NVML."""
    monkeypatch.setattr(device_names, "_torch_build", lambda: {"cuda": cuda, "hip": hip})
    monkeypatch.setattr(device_names, "_has_cuda_driver", lambda: True)
    nvml = None if gpus is None else SimpleNamespace(nvmlDeviceGetCount=lambda: gpus)
    monkeypatch.setattr(device_names, "load_nvml", lambda: nvml)


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("0", 1), ("1,0", 2), ("0,7,1", 1), ("-1", 0), ("GPU-1a2b", 1), ("none", 0), (" 1", 1)],
)
def test_gpu_beyond_the_visible_ones_is_refused(
    visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    names = [f"cuda:{index}" for index in range(count)]
    assert early_lanes(["cpu:0", *names], ALONE) == ["cpu:0", *names]
    with pytest.raises(ConfigError, match=f"^--devices cuda:{count} not found; this machine has .*; use"):
        early_lanes([f"cuda:{count}"], ALONE)


def test_torch_without_cuda_rules_out_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda="None")
    with pytest.raises(ConfigError, match="no cuda device"):
        early_lanes(["cuda:0"], ALONE)


@pytest.mark.parametrize("options", [{"hip": "'7.1'", "cuda": "None"}, {"gpus": None}], ids=["ROCm", "no NVML"])
def test_unknown_number_of_gpus_is_left_to_torch(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **options)
    assert early_lanes(["cuda:5"], ALONE) == ["cuda:5"]
    assert early_lanes(["auto"], ALONE) is None


def test_build_of_the_installed_torch_is_read_without_import() -> None:
    import torch

    build = device_names._torch_build()
    assert build == {"cuda": repr(torch.version.cuda), "hip": repr(torch.version.hip)}


def test_every_lane_but_the_first_has_a_worker() -> None:
    assert lanes_with_worker(["cpu:0", "cpu:1", "cpu:2"]) == ["cpu:1", "cpu:2"]
    assert lanes_with_worker(["1/cuda:0", "1/cuda:1", "1/cpu:0"]) == ["1/cuda:1", "1/cpu:0"]
