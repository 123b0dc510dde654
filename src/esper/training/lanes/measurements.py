"""Measurements of a lane with one env, before the envs of the population are built."""

from __future__ import annotations

import time

import torch

from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.envs.graph_check import graph_problem
from esper.training.lanes.lane import Lane
from esper.training.lanes.runner import DeviceResults, EnvTask


def measure_epoch(env: Env, lane: Lane) -> float:
    """Return the seconds of an epoch of an env on a lane, on a GPU with CUDA graphs if they are used."""
    return _time_last(env, lane, lambda env: env.run_epoch(0, lane.stopwatch, last=False))


def check_graphs(env: Env, lane: Lane, graphs: CudaGraphs) -> str | None:
    """Return why an env is not trained by CUDA graphs, as `graph_problem` does. The env must not be used afterwards.

    Raises:
        FaultError: The env cannot be trained.
    """
    problem: str | None = None

    def check(env: Env) -> DeviceResults:
        nonlocal problem
        problem = graph_problem(env, graphs)
        return [torch.zeros(1, device=lane.device)]

    lane.submit([env], check)()
    lane.stopwatch.pop_seconds()
    return problem


def measure_launching(env: Env, lane: Lane) -> float:
    """Return the fraction of the time of a batch that Python spends on its launches.

    An epoch would not do: the queue of a GPU holds about a thousand launches. If there are more, Python waits for the
    GPU before the last ones.
    """
    launching = 0.0

    def train(env: Env) -> DeviceResults:
        nonlocal launching
        batch = next(iter(env.training_batches(0)))
        start = time.perf_counter()
        trained = env.train_batch(env.active_optimizers(), batch)
        launching = time.perf_counter() - start
        return [trained.record.flatten()[:1].float()]

    seconds = _time_last(env, lane, train)
    return launching / seconds


def _time_last(env: Env, lane: Lane, task: EnvTask) -> float:
    """Return the seconds of a task after it ran before: kernels are loaded and recorded, and caches are filled."""
    for _ in range(2):
        lane.submit([env], task)()
    start = time.perf_counter()
    lane.submit([env], task)()
    seconds = time.perf_counter() - start
    lane.stopwatch.pop_seconds()
    return seconds
