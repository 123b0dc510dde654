"""Memory, utilisation, temperature and power of a device (CUDA, NVML, /proc)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import torch


class DeviceStats(NamedTuple):
    """State of a device at one moment, in the units of `DeviceSampled`; None for what was not measured."""

    allocated: int | None
    reserved: int | None
    used: int
    total: int
    utilisation: float | None
    temperature: float | None
    power: float | None


def read_device_stats(device: torch.device, processes: Collection[int]) -> DeviceStats:
    """Read what there is to read of a device; of the memory of a CPU, what these processes take together."""
    return _read_cuda(device) if device.type == "cuda" else _read_cpu(processes)


def _read_cuda(device: torch.device) -> DeviceStats:
    free, total = torch.cuda.mem_get_info(device)
    sensors = read_sensors(cuda_uuid(device))
    return DeviceStats(
        allocated=torch.cuda.memory_allocated(device),
        reserved=torch.cuda.memory_reserved(device),
        used=total - free,
        total=total,
        **sensors._asdict(),
    )


def _read_cpu(processes: Collection[int]) -> DeviceStats:
    """Memory of the processes, None if one has ended, and of the machine: all CPU lanes share it.

    What they share counts once, where the system tells how much that is.
    """
    machine = psutil.virtual_memory()
    try:
        infos = [psutil.Process(process).memory_info() for process in processes]
        shared = [getattr(info, "shared", 0) for info in infos]  # libraries and data, which each of them has mapped
        resident = sum(info.rss for info in infos) - sum(shared) + max(shared)
    except psutil.NoSuchProcess:
        resident = None
    return DeviceStats(
        allocated=resident,
        reserved=None,
        used=machine.total - machine.available,
        total=machine.total,
        utilisation=None,
        temperature=None,
        power=None,
    )


def cuda_uuid(device: torch.device) -> str:
    """By which a GPU is known to every library, whatever its number is to each."""
    return str(torch.cuda.get_device_properties(device).uuid)


class GpuSensors(NamedTuple):
    """What a GPU measures of itself; None for what it does not."""

    utilisation: float | None = None
    """Share of the last sampling period in which a kernel ran, whoever's."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""


def read_sensors(uuid: str) -> GpuSensors:
    """Read a GPU's sensors.

    Args:
        uuid: as CUDA has it, without a prefix. NVML numbers all GPUs of the machine, CUDA those that
            CUDA_VISIBLE_DEVICES names, in its order: the UUID is what they agree on.
    """
    nvml, handle = _load_nvml(), _handle(uuid)
    if nvml is None or handle is None:
        return GpuSensors()
    rates = _query(nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _query(nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuSensors(
        utilisation=None if rates is None else rates.gpu / 100,
        temperature=_query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power=None if milliwatts is None else milliwatts / 1000,
    )


def driver_version() -> str | None:
    """Of the NVIDIA driver; None where there is none."""
    nvml = _load_nvml()
    return None if nvml is None else _query(nvml.nvmlSystemGetDriverVersion)


@cache
def _load_nvml() -> ModuleType | None:
    """NVML, open for as long as the process lives; None on a machine without it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@cache
def _handle(uuid: str) -> Any:
    """NVML's handle of a GPU, or of a part of one (MIG); None if it knows no such."""
    nvml = _load_nvml()
    if nvml is None:
        return None
    whole = _query(nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return whole if whole is not None else _query(nvml.nvmlDeviceGetHandleByUUID, f"MIG-{uuid}")


def _query(query: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where there is none, as for the power of a GPU that does not measure it."""
    import pynvml

    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None
