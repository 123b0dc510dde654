"""Tests of device statistics with NVML present, failing, and absent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from esper.training.lanes import device_stats, nvml
from esper.training.lanes.device_stats import DeviceStats, GpuSensors, driver_version, read_device_stats, read_sensors
from esper.training.lanes.devices import DeviceInfo, list_devices, resolve_devices

FIRST, SECOND = "11111111-aaaa", "22222222-bbbb"
CPU = torch.device("cpu")


class NVMLError(Exception):
    pass


class Machine(ModuleType):
    """A fake of the module `pynvml` on a machine with two GPUs."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.gpus = {
            f"GPU-{FIRST}": {"percent": 0, "celsius": 31, "milliwatts": 71_500},
            f"GPU-{SECOND}": {"percent": 87, "celsius": 66, "milliwatts": 420_000},
        }
        self.opened = 0
        self.looked_up: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's names)
        self.opened += 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "575.57.08"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, int]:  # noqa: N802
        self.looked_up.append(uuid)
        if uuid not in self.gpus:
            raise NVMLError("not found")
        return self.gpus[uuid]

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, int]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=gpu["percent"], memory=99)

    def nvmlDeviceGetTemperature(self, gpu: dict[str, int], sensor: int) -> int:  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        return gpu["celsius"]

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, int]) -> int:  # noqa: N802
        return gpu["milliwatts"]


def refuse(*_: object) -> Any:
    raise NVMLError("not supported")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    forget: tuple[Callable[[], None], ...] = (nvml.load_nvml.cache_clear, device_stats._handle.cache_clear)
    for clear in forget:
        clear()
    yield found
    for clear in forget:
        clear()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of CUDA on that machine under CUDA_VISIBLE_DEVICES=1,0, which reverses the indices of the GPUs."""
    gpus = [
        SimpleNamespace(name="NVIDIA Big", uuid=SECOND, total_memory=80 << 30, capability=(9, 0)),
        SimpleNamespace(name="NVIDIA Old", uuid=FIRST, total_memory=16 << 30, capability=(7, 5)),
    ]

    def of(device: torch.device | str) -> SimpleNamespace:
        return gpus[torch.device(device).index]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", of)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: of(device).capability)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "compute_80"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 << 30, of(device).total_memory))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 << 30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 << 30)


def test_idle_gpu_reads_zero_instead_of_missing(machine: Machine) -> None:
    assert read_sensors(FIRST) == GpuSensors(utilisation=0.0, temperature=31, power=71.5)


@pytest.mark.parametrize(
    ("query", "sensor"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetPowerUsage", "power"),
    ],
)
def test_missing_gpu_sensor_leaves_the_others(
    machine: Machine, query: str, sensor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_sensors(SECOND)
    monkeypatch.setattr(machine, query, refuse)
    assert read_sensors(SECOND) == whole._replace(**{sensor: None})


def test_unknown_gpu_has_no_sensors(machine: Machine) -> None:
    assert read_sensors("33333333-cccc") == GpuSensors(None, None, None)


def test_gpu_partition_is_found(machine: Machine) -> None:
    machine.gpus["MIG-44444444-dddd"] = {"percent": 5, "celsius": 40, "milliwatts": 100_000}
    assert read_sensors("44444444-dddd").temperature == 40


def test_machine_without_driver_has_no_sensors(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvmlInit", refuse)
    assert read_sensors(FIRST) == GpuSensors(None, None, None)
    assert driver_version() is None
    assert machine.looked_up == []


def test_nvml_is_opened_and_gpu_looked_up_once(machine: Machine) -> None:
    for _ in range(3):
        read_sensors(FIRST)
    assert machine.opened == 1
    assert machine.looked_up == [f"GPU-{FIRST}"]


@pytest.mark.usefixtures("cuda", "machine")
def test_gpu_is_read_by_its_cuda_number() -> None:
    assert read_device_stats(torch.device("cuda:0"), {os.getpid(): "main"}) == DeviceStats(
        allocated=2 << 30,
        reserved=3 << 30,
        used=75 << 30,
        total=80 << 30,
        utilisation=0.87,
        temperature=66,
        power=420.0,
    )
    old = read_device_stats(torch.device("cuda:1"), {os.getpid(): "main"})
    assert (old.used, old.total, old.temperature) == (11 << 30, 16 << 30, 31)


def test_cpu_has_memory_and_no_other_sensors() -> None:
    reading = read_device_stats(CPU, {os.getpid(): "main"})
    assert reading.total == psutil.virtual_memory().total
    assert reading.allocated is not None
    assert 0 < reading.allocated < reading.total
    assert (reading.reserved, reading.utilisation, reading.temperature, reading.power) == (None, None, None, None)


def test_memory_shared_by_processes_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = {1: SimpleNamespace(rss=900, shared=300), 2: SimpleNamespace(rss=700, shared=250)}
    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(memory_info=lambda: infos[pid]))
    assert read_device_stats(CPU, {1: "main", 2: "worker"}).allocated == 600 + 450 + 300
    assert read_device_stats(CPU, {1: "main", 2: "worker"}).processes == (("main", 600), ("worker", 450))
    infos = {1: SimpleNamespace(rss=900), 2: SimpleNamespace(rss=700)}  # as where the system does not tell
    assert read_device_stats(CPU, {1: "main", 2: "worker"}).allocated == 1600


def test_ended_process_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert read_device_stats(CPU, {os.getpid(): "main", process.pid: "worker"}).allocated is None


@pytest.mark.usefixtures("cuda", "machine")
def test_devices_are_listed_with_their_run_names() -> None:
    *gpus, cpu = list_devices()
    assert gpus == [
        DeviceInfo(lanes=["cuda:0"], name="NVIDIA Big", memory=80 << 30, driver="575.57.08", fast_bf16=True),
        DeviceInfo(lanes=["cuda:1"], name="NVIDIA Old", memory=16 << 30, driver="575.57.08", fast_bf16=False),
    ]
    assert (cpu.driver, cpu.fast_bf16) == (None, False)
    assert cpu.lanes[0] == "cpu:0"
    assert resolve_devices(["auto"]) == ["cuda:0", "cuda:1"]
    assert resolve_devices([*gpus[1].lanes, *cpu.lanes]) == ["cuda:1", *cpu.lanes]
