"""Names of devices and lanes, checked without torch: importing torch takes seconds.

A machine may have fewer CUDA devices than NVML and CUDA_VISIBLE_DEVICES allow, so `devices` counts again with torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from esper.common.configuration.config import ConfigError
from esper.common.system.process import RankInfo, available_cores
from esper.training.lanes.nvml import load_nvml, query_nvml

AUTO = "auto"
DEVICE_EXAMPLES = {"--devices": "auto, cuda:0, cuda:1 … or cpu:0, cpu:1 …", "--policy-device": "cpu, cuda:0, cuda:1 …"}
FALLBACK_HINT = {
    "--devices": "use --devices auto",
    "--policy-device": "use --policy-device cpu",
}
"""Alternative that always works, keyed by option."""

ALL_USABLE: Mapping[str, str] = {}
DeviceCounts = Mapping[str, int | None]
"""Number of devices by kind, `cuda` and `cpu`; None if unknown."""


def max_device_counts() -> DeviceCounts:
    """Return how many devices of each kind torch can find at most."""
    return {"cuda": max_cuda_devices(), "cpu": available_cores()}


def early_lanes(names: Sequence[str], rank_info: RankInfo) -> list[str] | None:
    """Return the lanes of a rank, or None if only torch can count the CUDA devices that `auto` selects.

    Raises:
        ConfigError: A device name is invalid, cannot be found, or is given twice, or the node has too few lanes.
    """
    counts = max_device_counts()
    if is_auto(names) and counts["cuda"] != 0:
        return None
    return assign_lanes_to_rank(resolve_lanes(names, counts), rank_info, leave_out=is_auto(names))


def is_auto(names: Sequence[str]) -> bool:
    """Return True if `--devices` leaves the choice to the program."""
    return tuple(names) == (AUTO,)


def resolve_lanes(names: Sequence[str], counts: DeviceCounts, unusable: Mapping[str, str] = ALL_USABLE) -> list[str]:
    """Return the names of the lanes, each with its index, such as `cuda:0` or `cpu:1`.

    `auto` selects every usable CUDA device or, without any, one CPU lane for each core that this process may use.

    Args:
        unusable: Why CUDA devices cannot be used, keyed by name.

    Raises:
        ConfigError: A device name is invalid, not found, not usable, or given twice.
    """
    if is_auto(names):
        gpus = [f"cuda:{index}" for index in range(counts["cuda"] or 0)]
        return [gpu for gpu in gpus if gpu not in unusable] or [f"cpu:{index}" for index in range(counts["cpu"] or 0)]
    lanes = [resolve_name("--devices", name, counts, unusable) for name in names]
    repeated = [name for name, count in Counter(lanes).items() if count > 1]
    if repeated:
        raise ConfigError(f"--devices names {repeated[0]} more than once; a device is one lane")
    return lanes


def resolve_name(option: str, name: str, counts: DeviceCounts, unusable: Mapping[str, str] = ALL_USABLE) -> str:
    """Return the name of a device with its index.

    Raises:
        ConfigError: The name, the value of this option, is invalid or not found, or the device is not usable.
    """
    if name.startswith("mps"):  # never tested on Apple GPUs
        raise ConfigError(
            f"{option} {name} is not supported: hosts train on CUDA devices and CPUs only; "
            f"use {'cpu' if option == '--policy-device' else 'auto'}"
        )
    match = re.fullmatch(r"(cuda|cpu)(?::(\d{1,9}))?", name)
    if match is None:
        raise ConfigError(f"{option} {name!r} is not a device; use {DEVICE_EXAMPLES[option]}")
    kind, index = match[1], int(match[2] or 0)
    count = counts[kind]
    if count is not None and index >= count:
        available = f"this machine has {', '.join(f'{kind}:{i}' for i in range(count)) or f'no {kind} device'}"
        raise ConfigError(f"{option} {name} not found; {available}; {FALLBACK_HINT[option]}")
    lane = f"{kind}:{index}"
    if lane in unusable:
        raise ConfigError(f"{option} {name} cannot be used: {unusable[lane]}; {FALLBACK_HINT[option]}")
    return lane


def assign_lanes_to_rank(lanes: Sequence[str], rank_info: RankInfo, *, leave_out: bool) -> list[str]:
    """Return the lanes of a rank: the lanes of each machine (node) are assigned round-robin to its ranks.

    A scheduler may let each rank see only GPUs of its own; then the rank uses all of them. With several nodes, lane
    names start with the rank of the node, and with GPUs of its own with that of the process: `1/cuda:0`.

    Args:
        leave_out: Leave out lanes that would make the ranks unequal, rather than refuse them.

    Raises:
        ConfigError: The node has more ranks than lanes, or its ranks cannot have equally many.
    """
    ranks = rank_info.local_world_size
    if sees_own_gpus(lanes, rank_info):
        return [f"{rank_info.rank}/{lane}" for lane in lanes]
    if ranks > len(lanes):
        raise ConfigError(
            f"{ranks} ranks on a machine cannot share {', '.join(lanes)}: each needs its own device; start "
            f"torchrun with --nproc-per-node {len(lanes)}, or name more --devices"
        )
    unequal = len(lanes) % ranks
    if unequal and not leave_out:
        raise ConfigError(
            f"{ranks} ranks on a machine cannot share {len(lanes)} devices equally; name {len(lanes) - unequal} of "
            f"{', '.join(lanes)} with --devices, or start torchrun with --nproc-per-node {len(lanes)}"
        )
    node = f"{rank_info.node_rank}/" if rank_info.num_nodes > 1 else ""
    return [f"{node}{lane}" for lane in lanes[rank_info.local_rank : len(lanes) - unequal : ranks]]


def sees_own_gpus(lanes: Sequence[str], rank_info: RankInfo) -> bool:
    """Return True if a scheduler lets this rank see GPUs that the other ranks of its machine do not see.

    `Run` compares the GPUs of the ranks, so that no two ranks use the same.
    """
    is_limited = os.environ.get("CUDA_VISIBLE_DEVICES") is not None
    return is_limited and len(lanes) < rank_info.local_world_size and not any(map(is_cpu_lane, lanes))


def is_cpu_lane(lane: str) -> bool:
    """True if a lane, which may be named with its node, trains on a CPU."""
    return lane.rpartition("/")[2].startswith("cpu")


def lanes_with_worker(lanes: Sequence[str]) -> list[str]:
    """Return those lanes of a process that have a worker: every lane except the first.

    The first lane uses its thread, which then has the GIL to itself.
    """
    return list(lanes[1:])


@cache
def max_cuda_devices() -> int | None:
    """Return how many CUDA devices torch can find at most; None if that is unknown without torch."""
    build = _torch_build()
    if build is None or build["hip"] != "None":
        return None
    if build["cuda"] == "None":
        return 0
    if not _has_cuda_driver():
        return 0
    nvml = load_nvml()
    gpus = None if nvml is None else query_nvml(nvml.nvmlDeviceGetCount)
    if gpus is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else _count_visible(visible, gpus)


def _torch_build() -> dict[str, str] | None:
    """Return the versions of CUDA and ROCm for which torch was built, as Python source; None if they are not found."""
    spec = find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version is None or not version.exists():
        return None
    build = dict(re.findall(r"^(cuda|hip)\b[^=]*= *(.+)$", version.read_text(), re.MULTILINE))
    return build if build.keys() == {"cuda", "hip"} else None


def _has_cuda_driver() -> bool:
    """True if this machine has the library of the CUDA driver, or if that is unknown."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _count_visible(visible: str, gpus: int) -> int:
    """Return the number of devices in CUDA_VISIBLE_DEVICES. CUDA ignores the first invalid entry and all after it.

    Names, which start with `GPU-` or `MIG-`, count as valid.
    """
    count = 0
    for entry in map(str.strip, visible.split(",")):
        number = re.match(r"[+-]?\d{1,9}", entry)
        if not (0 <= int(number[0]) < gpus if number else entry.startswith(("GPU-", "MIG-"))):
            break
        count += 1
    return count
