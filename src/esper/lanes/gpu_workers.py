"""Number of worker processes of a GPU whose envs are too small to keep it busy from one process."""

from __future__ import annotations

import torch

from esper.process import RankInfo, available_cores

MAX_WORKERS = 8
"""Maximum number of workers of a GPU."""
MIN_ENVS_PER_WORKER = 4
WORKER_BYTES = 2 << 30
"""Free memory of the GPU that a worker needs: its CUDA context takes about 1.1 GiB, its envs the rest."""
MIN_LAUNCHING = 0.5
"""Fraction of an epoch in which the GPU waits for launches, from which on more processes pay."""


def affordable_workers(device: torch.device, envs: int, gpus: int) -> int:
    """Return how many workers of a GPU this machine can afford; 0 if it is less than two.

    Args:
        device: The GPU.
        envs: Number of envs of its lane.
        gpus: Number of GPUs of this rank.
    """
    cores = available_cores() // RankInfo.from_environment().local_world_size // gpus - 1  # one is for this process
    free, _ = torch.cuda.mem_get_info(device)
    count = min(MAX_WORKERS, cores, envs // MIN_ENVS_PER_WORKER, free // WORKER_BYTES)
    return count if count > 1 else 0
