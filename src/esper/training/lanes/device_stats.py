"""Device statistics: memory and, on GPUs, utilisation, temperature and power (CUDA, NVML, /proc)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import psutil
import torch

from esper.common.system.process import resident_bytes
from esper.training.lanes.nvml import load_nvml, query_nvml


class DeviceStats(NamedTuple):
    """State of a device at one moment, in the units of `DeviceSampled`. None: not measured."""

    allocated: int | None
    used: int
    total: int
    reserved: int | None = None
    utilisation: float | None = None
    temperature: float | None = None
    power: float | None = None
    processes: tuple[tuple[str, int], ...] = ()


def read_device_stats(device: torch.device, processes: Mapping[int, str]) -> DeviceStats:
    """Read the state of a device.

    Args:
        processes: Names of the processes of the run by process id. For a CPU, `allocated` is their memory.
    """
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


def _read_cpu(processes: Mapping[int, str]) -> DeviceStats:
    """Return the memory of the processes, None if one has ended, and of the machine, which all CPU lanes share."""
    machine = psutil.virtual_memory()
    own: dict[str, int] = {}
    try:
        infos = [psutil.Process(process).memory_info() for process in processes]
        resident = resident_bytes(infos)
        if len(infos) > 1:
            for name, info in zip(processes.values(), infos, strict=True):
                own[name] = own.get(name, 0) + info.rss - getattr(info, "shared", 0)
    except psutil.NoSuchProcess:
        resident = None
    used = machine.total - machine.available
    return DeviceStats(allocated=resident, used=used, total=machine.total, processes=tuple(own.items()))


def gpu_properties(device: torch.device) -> Any:
    """Return torch's properties of a GPU, which have no type there."""
    return cast("Any", torch.cuda).get_device_properties(device)


def cuda_uuid(device: torch.device) -> str:
    """Return the UUID of a GPU. Unlike its index, it is the same for every library."""
    return str(gpu_properties(device).uuid)


class GpuSensors(NamedTuple):
    """Sensor readings of a GPU. None: not measured."""

    utilisation: float | None = None
    """Fraction of the last sampling period in which a kernel of any process ran."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""


def read_sensors(uuid: str) -> GpuSensors:
    """Read a GPU's sensors.

    Args:
        uuid: UUID without prefix, as CUDA returns it. Indices would not do: NVML counts all GPUs of the machine, CUDA
            those in CUDA_VISIBLE_DEVICES, in that order.
    """
    nvml, handle = load_nvml(), _handle(uuid)
    if nvml is None or handle is None:
        return GpuSensors()
    rates = query_nvml(nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = query_nvml(nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuSensors(
        utilisation=None if rates is None else rates.gpu / 100,
        temperature=query_nvml(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power=None if milliwatts is None else milliwatts / 1000,
    )


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without one."""
    nvml = load_nvml()
    return None if nvml is None else query_nvml(nvml.nvmlSystemGetDriverVersion)


@cache
def _handle(uuid: str) -> Any:
    """Return the NVML handle of a GPU or of a MIG instance; None if NVML does not know the UUID."""
    nvml = load_nvml()
    if nvml is None:
        return None
    gpu = query_nvml(nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return gpu if gpu is not None else query_nvml(nvml.nvmlDeviceGetHandleByUUID, f"MIG-{uuid}")
