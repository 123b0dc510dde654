"""Number of worker processes of a GPU that one process cannot keep busy, because the networks are small."""

from __future__ import annotations

import torch

from esper.common.system.process import RankInfo, available_cores

MAX_WORKERS = 8
"""Maximum number of workers of a GPU."""
MIN_ENVS_PER_WORKER = 4
CONTEXT_BYTES = 1_200 << 20
"""Memory of the GPU that the CUDA context of a process takes."""
MIN_LAUNCHING = 0.5
"""Fraction of a batch that Python spends on its launches, above which more processes pay off."""


def useful_workers(envs: int, gpus: int) -> int:
    """Return how many workers of a GPU have a core and enough envs; 0 if fewer than two.

    Args:
        gpus: Number of GPUs of this rank.
    """
    cores = available_cores() // RankInfo.from_environment().local_world_size // gpus - 1  # one is for this process
    return _at_least_two(min(MAX_WORKERS, cores, envs // MIN_ENVS_PER_WORKER))


def fitting_workers(device: torch.device, useful: int) -> int:
    """Return how many of the useful workers fit into the free memory of a GPU; 0 if fewer than two.

    A worker needs a CUDA context and about as much memory as this process holds now: data, frozen weights and the
    activations of a batch.
    """
    free, _ = torch.cuda.mem_get_info(device)
    return _at_least_two(min(useful, free // (CONTEXT_BYTES + torch.cuda.memory_reserved(device))))


def _at_least_two(count: int) -> int:
    return count if count > 1 else 0
