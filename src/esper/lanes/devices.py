"""Devices of this machine, and the choice of those that a run uses."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import torch

from esper.envs.precision import resolve_amp
from esper.lanes.device_names import DeviceCounts, is_cpu_lane, resolve_lanes, resolve_name
from esper.lanes.device_stats import driver_version, gpu_properties
from esper.process import available_cores


def resolve_devices(names: Sequence[str]) -> list[str]:
    """Return the names of the lanes, as `resolve_lanes` does, from the devices that torch finds.

    Raises:
        ConfigError: A device name is invalid, not found, or given twice.
    """
    return resolve_lanes(names, _device_counts())


def resolve_policy_device(name: str) -> torch.device:
    """Return the device that the policy runs on.

    Raises:
        ConfigError: The device name is invalid or not found.
    """
    return torch_device(resolve_name("--policy-device", name, _device_counts()))


def torch_device(lane: str) -> torch.device:
    """Return the torch device of a lane of this machine. All CPU lanes share one device."""
    return torch.device("cpu" if is_cpu_lane(lane) else lane.rpartition("/")[2])


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A CPU or GPU of this machine. Field names are printed by `devices --json`."""

    lanes: list[str]
    """Names for `--devices`: one per usable core for the CPU, one for a GPU."""
    name: str
    memory: int
    """Total memory in bytes."""
    driver: str | None
    """Version of the NVIDIA driver; None for a CPU or if NVML does not report it."""
    fast_bf16: bool
    """True if `--amp auto` trains in bfloat16 on it."""


def list_devices() -> list[DeviceInfo]:
    """Return all devices of this machine, GPUs first."""
    return [*map(_gpu, range(torch.cuda.device_count())), _cpu()]


def _gpu(index: int) -> DeviceInfo:
    device = torch.device("cuda", index)
    properties = gpu_properties(device)
    return DeviceInfo(
        lanes=[f"cuda:{index}"],
        name=properties.name,
        memory=properties.total_memory,
        driver=driver_version(),
        fast_bf16=_fast_bf16(device),
    )


def _cpu() -> DeviceInfo:
    return DeviceInfo(
        lanes=[f"cpu:{index}" for index in range(available_cores())],
        name=_cpu_name(),
        memory=psutil.virtual_memory().total,
        driver=None,
        fast_bf16=_fast_bf16(torch.device("cpu")),
    )


def _fast_bf16(device: torch.device) -> bool:
    return resolve_amp("auto", device) is torch.bfloat16


def _cpu_name() -> str:
    """Return the model name from /proc/cpuinfo, or the architecture where that file does not exist."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return model[1] if model else platform.processor() or platform.machine()


def _device_counts() -> DeviceCounts:
    """Return the number of devices by kind, `cuda` and `cpu`."""
    return {"cuda": torch.cuda.device_count(), "cpu": available_cores()}
