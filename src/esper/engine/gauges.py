"""What a device says of itself: its memory, and, of a GPU, how hot, hungry and busy it is."""

from __future__ import annotations

from collections.abc import Collection
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


def read_gauges(device: torch.device, processes: Collection[int]) -> Reading:
    """Read what there is to read of a device; of the memory of a CPU, what these processes take together."""
    return _read_cuda(device) if device.type == "cuda" else _read_cpu(processes)


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


def _read_cpu(processes: Collection[int]) -> Reading:
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
