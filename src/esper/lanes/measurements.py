"""Measurements of a lane with one env, before the envs of the population are built."""

from __future__ import annotations

import time

from esper.envs.env import Env
from esper.lanes.lane import Lane
from esper.lanes.runner import DeviceResults
from esper.tasks.splits import batches


def measure_epoch(env: Env, lane: Lane) -> float:
    """Return the seconds of an epoch of an env on a lane."""

    def train(env: Env) -> DeviceResults:
        return env.run_epoch(0, 0, lane.stopwatch, last=False)

    lane.submit([env], train)()  # the first epoch loads kernels and fills caches
    start = time.perf_counter()
    lane.submit([env], train)()
    seconds = time.perf_counter() - start
    lane.stopwatch.pop_seconds()
    return seconds


def measure_launching(env: Env, lane: Lane) -> float:
    """Return the fraction of the time of a batch that Python spends on its launches.

    An epoch would not do: the queue of a GPU holds about a thousand launches. If there are more, Python waits for the
    GPU before the last ones.
    """
    launching = 0.0

    def train(env: Env) -> DeviceResults:
        nonlocal launching
        batch = next(iter(batches(env.epoch_data(0, 0), env.task.batch_size)))
        start = time.perf_counter()
        trained = env.train_batch(env.active_optimizers(), batch)
        launching = time.perf_counter() - start
        return [trained.score_B[:1].float()]

    lane.submit([env], train)()  # the first batch loads kernels
    start = time.perf_counter()
    lane.submit([env], train)()
    seconds = time.perf_counter() - start
    lane.stopwatch.pop_seconds()
    return launching / seconds
