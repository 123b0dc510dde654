"""Which devices exist, and which a run uses."""

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
from esper.lanes.device_stats import driver_version
from esper.process import RankInfo, available_cores

T = TypeVar("T")

DEVICE_EXAMPLES = {"--devices": "auto, cuda:0, cuda:1 … or cpu:0, cpu:1 …", "--policy-device": "cpu, cuda:0, cuda:1 …"}
FALLBACK_HINT = {
    "--devices": "--devices auto takes what there is",
    "--policy-device": "--policy-device cpu always works",
}
"""What to type instead, by option."""


def resolve_devices(names: Sequence[str]) -> list[str]:
    """Names of the lanes, each with its index: `cuda:0`, `cpu:1`.

    `auto` is every CUDA device or, without any, one CPU lane for each core that this process may use.

    Raises:
        ConfigError: a device is not one, is not there, or is named twice.
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
    """The device that the policy runs on.

    Raises:
        ConfigError: it is not one, or is not there.
    """
    return torch_device(_resolve("--policy-device", name, _device_counts()))


def torch_device(lane: str) -> torch.device:
    """The device behind a lane of this machine: all CPU lanes share one."""
    name = lane.rpartition("/")[2]
    return torch.device("cpu") if name.startswith("cpu") else torch.device(name)


def assign_lanes_to_rank(lanes: Sequence[str], place: RankInfo) -> list[str]:
    """The lanes that are a rank's of those that its machine has: they are dealt round-robin to its ranks.

    Where there are several machines, a lane's name begins with the number of its own: `1/cuda:0`.

    Raises:
        ConfigError: there are more ranks than lanes.
    """
    ranks = place.local_world_size
    if ranks > len(lanes):
        raise ConfigError(
            f"{ranks} ranks on a machine cannot share {', '.join(lanes)}: each needs a device of its own; give "
            f"torchrun --nproc-per-node {len(lanes)}, or the run more --devices"
        )
    machine = f"{place.node_rank}/" if place.num_nodes > 1 else ""
    return [f"{machine}{lane}" for lane in lanes[place.local_rank :: ranks]]


def lane_for_env(env: int, lanes: Sequence[T]) -> T:
    """The lane that an env lives on: they are dealt round-robin."""
    return lanes[env % len(lanes)]


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of hardware that a run may use."""

    lanes: list[str]
    """What `--devices` calls it: the CPU has a lane for each core that this process may use, a GPU is one."""
    name: str
    memory: int
    """Bytes in all."""
    driver: str | None
    """Version of the NVIDIA driver; None for a CPU, and where NVML does not tell."""
    fast_bf16: bool
    """Whether `--amp auto` trains in bfloat16 on it."""


def list_devices() -> list[DeviceInfo]:
    """Every device of this machine, GPUs first."""
    return [*map(_gpu, range(torch.cuda.device_count())), _cpu()]


def _gpu(index: int) -> DeviceInfo:
    properties = torch.cuda.get_device_properties(index)
    return DeviceInfo(
        lanes=[f"cuda:{index}"],
        name=properties.name,
        memory=properties.total_memory,
        driver=driver_version(),
        fast_bf16=_fast_bf16(torch.device("cuda", index)),
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
    """The model where Linux tells it, else the architecture."""
    details = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", details.read_text(), re.MULTILINE) if details.exists() else None
    return model[1] if model else platform.processor() or platform.machine()


def _device_counts() -> dict[str, int]:
    """How many devices there are of each kind."""
    return {"cuda": torch.cuda.device_count(), "cpu": available_cores()}


def _resolve(option: str, name: str, present: dict[str, int]) -> str:
    if name.startswith("mps"):
        raise ConfigError(
            f"{option} {name} is not supported: hosts train on CUDA devices and CPUs only, and nothing here was "
            f"ever run on Apple's GPUs; use {'cpu' if option == '--policy-device' else 'auto'}"
        )
    match = re.fullmatch(r"(cuda|cpu)(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"{option} {name!r} is not a device: use {DEVICE_EXAMPLES[option]}")
    kind, index = match[1], int(match[2] or 0)
    count = present[kind]
    if index >= count:
        there = f"this machine has {', '.join(f'{kind}:{i}' for i in range(count)) or f'no {kind} device'}"
        raise ConfigError(f"{option} {name} is not there: {there}; {FALLBACK_HINT[option]}")
    return f"{kind}:{index}"
