"""Devices of this machine, and the choice of those that a run uses."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import torch

from esper.common.system.process import available_cores
from esper.training.envs.precision import is_fast_in_bf16
from esper.training.lanes.device_names import DeviceCounts, is_cpu_lane, resolve_lanes, resolve_name
from esper.training.lanes.device_stats import driver_version, gpu_properties


def resolve_devices(names: Sequence[str]) -> list[str]:
    """Return the names of the lanes, as `resolve_lanes` does, from the devices that torch finds."""
    return resolve_lanes(names, _device_counts(), unusable_gpus())


def resolve_policy_device(name: str) -> torch.device:
    """Return the device that the policy runs on. Raises ConfigError as `resolve_name` does."""
    return torch_device(resolve_name("--policy-device", name, _device_counts(), unusable_gpus()))


def unusable_gpus() -> dict[str, str]:
    """Return why this build of torch cannot use GPUs that the driver lists, keyed by lane.

    torch counts GPUs without starting CUDA, which fails if the driver is too old for the build; and a build has kernels
    for some compute capabilities only.
    """
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if not gpus:
        return {}
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return dict.fromkeys(gpus, str(error).strip().split("\n")[0].split(". ")[0].rstrip("."))
    if torch.version.hip is not None:  # ROCm names its architectures otherwise
        return {}
    reasons = {gpu: _missing_kernels(torch.cuda.get_device_capability(gpu), torch.cuda.get_arch_list()) for gpu in gpus}
    return {gpu: reason for gpu, reason in reasons.items() if reason}


def _missing_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> str | None:
    """Return why a build of torch has no kernels for a compute capability; None if it has.

    Args:
        architectures: For which the build has kernels: `sm_86` runs on capabilities 8.6 to 8.9, `compute_90` is
            compiled at the start of a run for 9.0 and above, and `sm_90a` runs on 9.0 only.
    """
    for architecture in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
        if match is None:
            continue
        target = int(match[2]), int(match[3])
        if match[4] == "a":
            runs = capability == target
        elif match[1] == "compute":
            runs = capability >= target
        else:
            runs = capability[0] == target[0] and capability[1] >= target[1]
        if runs:
            return None
    return (
        f"its compute capability is {capability[0]}.{capability[1]}, for which torch {torch.__version__} has no "
        f"kernels (it has {', '.join(architectures)}); install another build of torch"
    )


def torch_device(lane: str) -> torch.device:
    """Return the torch device of a lane of this machine. All CPU lanes share one device."""
    return torch.device("cpu" if is_cpu_lane(lane) else lane.rpartition("/")[2])


def device_kind(device: torch.device) -> str:
    """Return the name of a GPU's model, or `cpu`. Devices of one kind compute alike and are about equally fast."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_kinds(lanes: Sequence[str]) -> list[str]:
    """Return the kinds of the devices of some lanes of this machine, each once, sorted."""
    return sorted({device_kind(torch_device(lane)) for lane in lanes})


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
    """True if `--amp auto` trains in bfloat16 on it, for tasks whose defaults were not tuned in float32."""


def list_devices() -> list[DeviceInfo]:
    """Return all usable devices of this machine, GPUs first."""
    unusable = unusable_gpus()
    usable = [index for index in range(torch.cuda.device_count()) if f"cuda:{index}" not in unusable]
    return [*map(_gpu, usable), _cpu()]


def _gpu(index: int) -> DeviceInfo:
    device = torch.device("cuda", index)
    properties = gpu_properties(device)
    return DeviceInfo(
        lanes=[f"cuda:{index}"],
        name=properties.name,
        memory=properties.total_memory,
        driver=driver_version(),
        fast_bf16=is_fast_in_bf16(device),
    )


def _cpu() -> DeviceInfo:
    return DeviceInfo(
        lanes=[f"cpu:{index}" for index in range(available_cores())],
        name=_cpu_name(),
        memory=psutil.virtual_memory().total,
        driver=None,
        fast_bf16=False,
    )


def _cpu_name() -> str:
    """Return the model name from /proc/cpuinfo, or the architecture where that file does not exist."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return model[1] if model else platform.processor() or platform.machine()


def _device_counts() -> DeviceCounts:
    """Return the number of devices by kind, `cuda` and `cpu`."""
    return {"cuda": torch.cuda.device_count(), "cpu": available_cores()}
