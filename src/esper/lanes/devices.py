"""Devices of this machine, and the choice of those that a run uses."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
import torch

from esper.config import ConfigError
from esper.envs.precision import resolve_amp
from esper.lanes.device_stats import driver_version, gpu_properties
from esper.process import RankInfo, available_cores

T = TypeVar("T")

DEVICE_EXAMPLES = {"--devices": "auto, cuda:0, cuda:1 … or cpu:0, cpu:1 …", "--policy-device": "cpu, cuda:0, cuda:1 …"}
FALLBACK_HINT = {
    "--devices": "use --devices auto",
    "--policy-device": "use --policy-device cpu",
}
"""Alternative that always works, keyed by option."""


def resolve_devices(names: Sequence[str]) -> list[str]:
    """Return the names of the lanes, each with its index, such as `cuda:0` or `cpu:1`.

    `auto` selects every CUDA device or, without any, one CPU lane for each core that this process may use.

    Raises:
        ConfigError: A device name is invalid, not found, or given twice.
    """
    present = _device_counts()
    if list(names) == ["auto"]:
        kind = "cuda" if present["cuda"] else "cpu"
        return [f"{kind}:{index}" for index in range(present[kind])]
    lanes = [_resolve("--devices", name, present) for name in names]
    repeated = [name for name, count in Counter(lanes).items() if count > 1]
    if repeated:
        raise ConfigError(f"--devices names {repeated[0]} more than once; a device is one lane")
    return lanes


def resolve_policy_device(name: str) -> torch.device:
    """Return the device that the policy runs on.

    Raises:
        ConfigError: The device name is invalid or not found.
    """
    return torch_device(_resolve("--policy-device", name, _device_counts()))


def torch_device(lane: str) -> torch.device:
    """Return the torch device of a lane of this machine. All CPU lanes share one device."""
    name = lane.rpartition("/")[2]
    return torch.device("cpu") if name.startswith("cpu") else torch.device(name)


def assign_lanes_to_rank(lanes: Sequence[str], rank_info: RankInfo) -> list[str]:
    """Return the lanes of a rank: the lanes of each machine (node) are assigned round-robin to its ranks.

    With several nodes, lane names start with the rank of the node: `1/cuda:0`.

    Raises:
        ConfigError: The node has more ranks than lanes.
    """
    ranks = rank_info.local_world_size
    if ranks > len(lanes):
        raise ConfigError(
            f"{ranks} ranks on a machine cannot share {', '.join(lanes)}: each needs its own device; start "
            f"torchrun with --nproc-per-node {len(lanes)}, or name more --devices"
        )
    node = f"{rank_info.node_rank}/" if rank_info.num_nodes > 1 else ""
    return [f"{node}{lane}" for lane in lanes[rank_info.local_rank :: ranks]]


def lane_for_env(env: int, lanes: Sequence[T]) -> T:
    """Return the lane of an env. Envs are assigned to lanes round-robin."""
    return lanes[env % len(lanes)]


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


def _device_counts() -> dict[str, int]:
    """Return the number of devices by kind, `cuda` and `cpu`."""
    return {"cuda": torch.cuda.device_count(), "cpu": available_cores()}


def _resolve(option: str, name: str, present: dict[str, int]) -> str:
    if name.startswith("mps"):  # never tested on Apple GPUs
        raise ConfigError(
            f"{option} {name} is not supported: hosts train on CUDA devices and CPUs only; "
            f"use {'cpu' if option == '--policy-device' else 'auto'}"
        )
    match = re.fullmatch(r"(cuda|cpu)(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"{option} {name!r} is not a device; use {DEVICE_EXAMPLES[option]}")
    kind, index = match[1], int(match[2] or 0)
    count = present[kind]
    if index >= count:
        available = f"this machine has {', '.join(f'{kind}:{i}' for i in range(count)) or f'no {kind} device'}"
        raise ConfigError(f"{option} {name} not found; {available}; {FALLBACK_HINT[option]}")
    return f"{kind}:{index}"
