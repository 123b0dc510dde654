"""Memory of the runs of a sweep, of the machine and of its GPUs."""

from __future__ import annotations

import os
from typing import Any

from esper.common.system.process import resident_bytes
from esper.recordings.state.state import RunState
from esper.training.lanes.device_names import is_cpu_lane
from esper.training.lanes.nvml import load_nvml, query_nvml

CUDA_CONTEXT_BYTES = 600 << 20
"""Memory of a GPU that a process needs besides its tensors, about."""


def tree_memory(pid: int) -> int | None:
    """Return the resident bytes of a process and its descendants; None if it has ended."""
    import psutil

    found: list[Any] = []
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.Error:
        return None
    for member in tree:
        try:
            found.append(member.memory_info())
        except psutil.Error:
            continue
    return resident_bytes(found) if found else None


def reserved_gpu_memory(state: RunState) -> int | None:
    """Return the maximum bytes that a run had reserved on one GPU at its end; None without a GPU."""
    reserved = [device.reserved for device in state.devices.values() if device.reserved is not None]
    return max(reserved) + CUDA_CONTEXT_BYTES if reserved else None


def free_gpu_memory(lane: str) -> int | None:
    """Return the free bytes of the GPU of a lane, such as `cuda:0`; None for a CPU lane, and if it is unknown.

    NVML counts all GPUs of the machine, and CUDA those in CUDA_VISIBLE_DEVICES.
    """
    nvml = load_nvml()
    if is_cpu_lane(lane) or ":" not in lane or nvml is None:
        return None
    index = int(lane.rpartition(":")[2])
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if names and index >= len(names):
        return None
    name = names[index] if names else str(index)
    if name.isdecimal():
        handle: Any = query_nvml(nvml.nvmlDeviceGetHandleByIndex, int(name))
    else:
        handle = query_nvml(nvml.nvmlDeviceGetHandleByUUID, name)
    memory = None if handle is None else query_nvml(nvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.free)
