"""What a device says of itself: its memory, and, of a GPU, how hot, hungry and busy it is."""

from __future__ import annotations

from typing import NamedTuple

import psutil
import torch

from esper.engine.nvml import read_sensors


class Reading(NamedTuple):
    """State of a device at one moment, in the units of `DeviceSampled`; None for what was not measured."""

    allocated: int | None
    reserved: int | None
    used: int
    total: int
    utilisation: float | None
    temperature: float | None
    power: float | None


def read_gauges(device: torch.device, process: int) -> Reading:
    """Read what there is to read of a device; of a CPU, what a process takes of its memory."""
    return _read_cuda(device) if device.type == "cuda" else _read_cpu(process)


def _read_cuda(device: torch.device) -> Reading:
    free, total = torch.cuda.mem_get_info(device)
    sensors = read_sensors(cuda_uuid(device))
    return Reading(
        allocated=torch.cuda.memory_allocated(device),
        reserved=torch.cuda.memory_reserved(device),
        used=total - free,
        total=total,
        **sensors._asdict(),
    )


def _read_cpu(process: int) -> Reading:
    """Memory of the process, None if it has ended, and of the machine."""
    machine = psutil.virtual_memory()
    try:
        resident = psutil.Process(process).memory_info().rss
    except psutil.NoSuchProcess:
        resident = None
    return Reading(
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
