"""Which devices a run may use, resolved and checked before anything starts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence

import torch

from esper.config import ConfigError


def resolve_devices(names: Sequence[str]) -> list[str]:
    """Names of the lanes, each with its index: `cuda:0`, `cpu:1`.

    `auto` is every CUDA device or, without any, one CPU lane for each core that this process may use.

    Raises:
        ConfigError: a device is not one, is not there, or is named twice.
    """
    present = {
        "cuda": torch.cuda.device_count(),
        "cpu": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    if list(names) == ["auto"]:
        kind = "cuda" if present["cuda"] else "cpu"
        return [f"{kind}:{index}" for index in range(present[kind])]
    lanes = [_resolve(name, present) for name in names]
    repeated = [name for name, count in Counter(lanes).items() if count > 1]
    if repeated:
        raise ConfigError(f"--devices names {repeated[0]} more than once; a device is one lane")
    return lanes


def torch_device(lane: str) -> torch.device:
    """The device behind a lane: all CPU lanes share one."""
    return torch.device("cpu") if lane.startswith("cpu") else torch.device(lane)


def _resolve(name: str, present: dict[str, int]) -> str:
    match = re.fullmatch(r"(cuda|cpu)(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"--devices {name!r} is not a device: use auto, cuda:0, cuda:1 … or cpu:0, cpu:1 …")
    kind, index = match[1], int(match[2] or 0)
    count = present[kind]
    if index >= count:
        there = f"this machine has {', '.join(f'{kind}:{i}' for i in range(count)) or f'no {kind} device'}"
        raise ConfigError(f"--devices {name} is not there: {there}; --devices auto takes what there is")
    return f"{kind}:{index}"
