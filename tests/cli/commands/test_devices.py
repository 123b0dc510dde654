"""The `devices` command: its text and JSON output, and its errors."""

from __future__ import annotations

import json

import psutil
import pytest
import torch

from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.training.lanes import device_names, devices
from esper.training.lanes.devices import DeviceInfo

GIB = 1 << 30
MACHINE = [
    DeviceInfo(lanes=["cuda:0"], name="NVIDIA Big", memory=80 * GIB, driver="575.57.08", fast_bf16=True),
    DeviceInfo(lanes=["cuda:1"], name="NVIDIA Old", memory=16 * GIB, driver=None, fast_bf16=False),
    DeviceInfo(lanes=["cpu:0", "cpu:1", "cpu:2"], name="Some CPU", memory=24 * GIB, driver=None, fast_bf16=False),
]


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: MACHINE)
    monkeypatch.setattr(devices, "unusable_gpus", dict[str, str])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device_names, "max_cuda_devices", lambda: 2)


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["devices", *options]) == EXIT_OK
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


@pytest.mark.usefixtures("_two_gpus")
def test_devices_prints_a_line_per_device_and_env_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert [" ".join(line.split()) for line in printed(capsys)] == [
        "cuda:0 NVIDIA Big, 80.0 GiB, fast in bf16, driver 575.57.08",
        "cuda:1 NVIDIA Old, 16.0 GiB",
        "cpu:0 to cpu:2 Some CPU, 24.0 GiB",
        "16 envs on cuda:0 ×8, cuda:1 ×8",
    ]


@pytest.mark.usefixtures("_two_gpus")
def test_devices_assigns_envs_like_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--envs", "5", "--devices", "cuda:1", "cpu:0")
    assert printed(capsys, *options)[-1] == "5 envs on cuda:1 ×3, cpu:0 ×2"
    [line] = printed(capsys, *options, "--json")
    assert json.loads(line)["lanes"] == ["cuda:1", "cpu:0", "cuda:1", "cpu:0", "cuda:1"]


def test_devices_json_describes_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = printed(capsys, "--json", "--envs", "1")
    *gpus, cpu = json.loads(line)["devices"]
    assert [gpu["lanes"] for gpu in gpus] == [[f"cuda:{index}"] for index in range(torch.cuda.device_count())]
    assert cpu["lanes"][0] == "cpu:0"
    assert cpu["memory"] == psutil.virtual_memory().total
    assert cpu["name"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--envs", "0"), "--envs '0' is not valid: it must be a whole number >= 1"),
        (("--devices", "gpu"), "--devices 'gpu' is not a device; use auto, cuda:0"),
        (("--devices", "cpu:9999"), "--devices cpu:9999 not found; this machine has cpu:0"),
        (("--devices", "cpu:0", "cpu:0"), "--devices names cpu:0 more than once"),
    ],
)
def test_invalid_request_is_refused_in_one_sentence(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices", *options]) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_devices_names_an_extra_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["devices", "cuda:0"])
    assert ended.value.code == EXIT_USAGE
    assert (
        "unknown argument 'cuda:0'; list the valid ones with `esper-sanctum devices --help`" in capsys.readouterr().err
    )
