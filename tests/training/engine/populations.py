"""Helpers: small populations without a trainer, scripted actions, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from esper.common.configuration.config import Config
from esper.common.domain import Op, Stage
from esper.networks.seeds.blend import INITIAL_RAMP_EPOCHS, RAMP_EPOCHS
from esper.networks.seeds.slot import Slot
from esper.networks.tasks import load_task
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from esper.training.envs.epoch_result import EpochResult
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action

SLOTS = ("early", "mid", "late")


DIGITS = load_task("digits_impaired")


@cache
def digits() -> Splits:
    """Return the data of the impaired digits, cached."""
    return DIGITS.data(None)


@cache
def digits_profile() -> TaskProfile:
    """Return the properties of the impaired digits, cached."""
    return probe_task(DIGITS, (digits(),))


@contextmanager
def population(
    envs: int = 1,
    lanes: Sequence[str] = ("cpu:0",),
    task: Callable[[Task], Task] = lambda task: task,
    splits: Callable[[Splits], Splits] = lambda splits: splits,
    **options: Any,
) -> Iterator[EnvPool]:
    """A pool of envs on the impaired digits; `task` and `splits` may modify the task and its data.

    An epoch has two batches, unless `task` changes it.
    """
    config = msgspec.structs.replace(Config(envs=envs), **options)
    pool = EnvPool(
        task(replace(DIGITS, samples_per_epoch=2 * DIGITS.batch_size)),
        digits_profile(),
        (splits(digits()),),
        lanes,
        config,
    )
    try:
        yield pool
    finally:
        pool.close()


def live_on(slot: Slot, *, advance: bool) -> None:
    """Let a seed pass its gates: advance it if wanted, make it permanent once it is blended, else end an epoch."""
    slot.grad_norm = slot.dependence = 1.0
    if slot.stage is Stage.TRAINING and advance:
        slot.advance()
    elif slot.stage is Stage.PROBATIONARY:
        slot.fossilize()
    else:
        slot.tick()


def script(env: int, step: int, slots: Sequence[Slot]) -> Action:
    """Return an action that takes each env along a different path; every env visits all stages in a dozen steps."""
    for index, slot in enumerate(slots):
        if slot.can_fossilize and (index + env) % 2:
            return Action(Op.FOSSILIZE, index)
        if slot.can_cull and slot.stage is Stage.PROBATIONARY:
            return Action(Op.CULL, index, alpha_speed=RAMP_EPOCHS.index(3))
        if slot.can_advance:
            return Action(Op.ADVANCE, index)
    index = (env + step) % len(slots)
    if slots[index].can_germinate:
        return Action(
            Op.GERMINATE, index, blueprint=env % 3, style=(env + step) % 4, tempo=INITIAL_RAMP_EPOCHS.index(3)
        )
    return Action(Op.WAIT)


def play(pool: EnvPool, round_index: int, steps: int) -> list[list[EpochResult]]:
    """Play one episode by the script, and return the results of every step of each env."""
    pool.reset(round_index)
    found: list[list[EpochResult]] = [[] for _ in pool.envs]
    for step in range(steps):
        actions = [script(env.index, step, env.network.slots) for env in pool.envs]
        for measured, now in zip(found, measurements(pool, actions, step), strict=True):
            measured.append(now)
        for env in pool.envs:
            env.tick()
    return found


def measurements(pool: EnvPool, actions: Sequence[Action], step: int) -> list[EpochResult]:
    """Play one step in which every env is active, and return the results."""
    return [epoch.measured for epoch in pool.step(actions, step) if epoch is not None]
