"""Measurements of a lane with one env, before the envs of the population are built."""

from __future__ import annotations

import time

from esper.envs.env import Env
from esper.lanes.lane import Lane
from esper.lanes.runner import DeviceResults, EnvTask
from esper.tasks.splits import batches


def measure_epoch(env: Env, lane: Lane) -> float:
    """Return the seconds of an epoch of an env on a lane."""
    return _time_second(env, lane, lambda env: env.run_epoch(0, lane.stopwatch, last=False))


def measure_launching(env: Env, lane: Lane) -> float:
    """Return the fraction of the time of a batch that Python spends on its launches.

    An epoch would not do: the queue of a GPU holds about a thousand launches. If there are more, Python waits for the
    GPU before the last ones.
    """
    launching = 0.0

    def train(env: Env) -> DeviceResults:
        nonlocal launching
        batch = next(iter(batches(env.epoch_data(0), env.task.batch_size)))
        start = time.perf_counter()
        trained = env.train_batch(env.active_optimizers(), batch)
        launching = time.perf_counter() - start
        return [trained.score_B[:1].float()]

    seconds = _time_second(env, lane, train)
    return launching / seconds


def _time_second(env: Env, lane: Lane, task: EnvTask) -> float:
    """Run a task twice, and return the seconds of the second time. The first time loads kernels and fills caches."""
    lane.submit([env], task)()
    start = time.perf_counter()
    lane.submit([env], task)()
    seconds = time.perf_counter() - start
    lane.stopwatch.pop_seconds()
    return seconds
