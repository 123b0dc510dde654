"""GPUs that the driver lists and torch cannot use: left out by `auto`, refused by name, each with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from esper.cli.main import main
from esper.common.configuration.config import ConfigError
from esper.recordings import events as ev
from esper.training.lanes import device_names
from esper.training.lanes.devices import _missing_kernels, resolve_devices, resolve_policy_device, unusable_gpus
from tests.runs import LiveRun, recorded

OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
KERNELS = ["sm_80", "sm_90a", "sm_100", "compute_100"]


@pytest.fixture
def old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, whose driver is too old for this build of torch."""

    def init() -> None:
        raise RuntimeError(OLD_DRIVER)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(device_names, "max_cuda_devices", lambda: 2)


@pytest.fixture
def one_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs. This build of torch has no kernels for the first."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: {"cuda:0": (6, 1), "cuda:1": (8, 9)}[gpu])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: KERNELS)


@pytest.mark.usefixtures("old_driver")
def test_auto_uses_the_cpu_if_the_driver_is_too_old() -> None:
    assert set(unusable_gpus()) == {"cuda:0", "cuda:1"}
    assert {lane.partition(":")[0] for lane in resolve_devices(["auto"])} == {"cpu"}
    reason = r"cannot be used: The NVIDIA driver on your system is too old \(found version 11040\); use"
    with pytest.raises(ConfigError, match=rf"^--devices cuda:1 {reason} --devices auto$"):
        resolve_devices(["cuda:1"])
    with pytest.raises(ConfigError, match=rf"^--policy-device cuda {reason} --policy-device cpu$"):
        resolve_policy_device("cuda")


@pytest.mark.usefixtures("old_driver")
def test_default_command_trains_on_the_cpu_and_says_why(tmp_path: Path) -> None:
    live = LiveRun.finished(tmp_path, envs=1, rounds=1, steps=1, devices=("auto",))
    warnings = [event.text for event in recorded(live.run.directory) if isinstance(event, ev.Logged)]
    assert [text for text in warnings if "cuda" in text] == [
        f"cuda:{index} is not used: The NVIDIA driver on your system is too old (found version 11040)"
        for index in range(2)
    ]


@pytest.mark.usefixtures("old_driver")
def test_devices_lists_unusable_gpus_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    reason = "The NVIDIA driver on your system is too old (found version 11040)"
    assert lines[1:3] == [f"cuda:{index}         cannot be used: {reason}" for index in range(2)]
    assert main(["devices", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["unusable"]) == {"cuda:0", "cuda:1"}


@pytest.mark.usefixtures("one_too_old")
def test_auto_leaves_out_a_gpu_without_kernels() -> None:
    assert resolve_devices(["auto"]) == ["cuda:1"]
    with pytest.raises(ConfigError, match=r"^--devices cuda:0 cannot be used: its compute capability is 6\.1"):
        resolve_devices(["cuda:0"])


@pytest.mark.parametrize(
    ("capability", "has_kernels"),
    [
        ((6, 1), False),
        ((7, 5), False),
        ((8, 0), True),
        ((8, 9), True),
        ((9, 0), True),
        ((9, 1), False),
        ((10, 3), True),
        ((12, 0), True),
    ],
)
def test_kernels_of_a_build(capability: tuple[int, int], has_kernels: bool) -> None:
    assert (_missing_kernels(capability, KERNELS) is None) == has_kernels
