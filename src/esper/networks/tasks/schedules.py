"""Schedules of the learning rate over an episode. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from esper.networks.tasks.optimizers import checked_number

COOLDOWN_FRACTION = 0.25
"""Fraction of an episode, at its end, in which the learning rate falls."""
FINAL_LR_FRACTION = 0.1
"""Learning rate of an episode's last step, as a fraction of the full rate."""
_DIVISOR, _FINAL_DIVISOR = 25.0, 1e4
"""Quotients of the peak of one cycle and its start, and of its start and its end, as in PyTorch."""


@dataclass(frozen=True)
class Schedule:
    """Factor of the learning rate over an episode.

    Attributes:
        factor: Function of the finished fraction of the episode, 0 to 1, to the factor.
        name: Name for screens.
        by_step: True: all batches of a step have the factor of its end. False: each batch has that of its start.
    """

    factor: Callable[[float], float]
    name: str
    by_step: bool = False

    def __call__(self, fraction: float) -> float:
        """Return the factor at a finished fraction of the episode, 0 to 1."""
        return self.factor(fraction)


AnySchedule: TypeAlias = Schedule | Callable[[float], float]


def _cooldown(fraction: float) -> float:
    fallen = (fraction - (1.0 - COOLDOWN_FRACTION)) / COOLDOWN_FRACTION
    return 1.0 - (1.0 - FINAL_LR_FRACTION) * max(fallen, 0.0)


constant = Schedule(lambda _: 1.0, "constant")
"""The full learning rate throughout."""
cooldown = Schedule(_cooldown, "cooldown", by_step=True)
"""The full learning rate, then a linear fall to a tenth in the last quarter of the episode.

Without the cooldown, the noise of the last minibatches would be in the final measurement (constant rate with cooldown:
Hägele et al., 2024).
"""


def cosine(warmup: float = 0.05, final: float = 0.0) -> Schedule:
    """Return a schedule that rises linearly from 0, and then falls along half a cosine (Loshchilov and Hutter, 2017).

    Args:
        warmup: Fraction of the episode in which the learning rate rises, 0 to below 1.
        final: Factor at the end, 0 to 1.

    Raises:
        ValueError: A fraction is out of range.
    """
    if not (0 <= warmup < 1 and 0 <= final <= 1):
        raise ValueError(f"cosine: warmup must be from 0 to below 1, and final from 0 to 1, not {warmup} and {final}")

    def factor(fraction: float) -> float:
        if fraction < warmup:
            return fraction / warmup
        return final + (1.0 - final) * _fall((fraction - warmup) / (1.0 - warmup))

    return Schedule(factor, f"cosine, warm-up {warmup:.0%}")


def one_cycle(warmup: float = 0.3) -> Schedule:
    """Return the schedule of one cycle (Smith and Topin, 2018) with the constants of PyTorch.

    The factor rises along half a cosine from 1/25 to 1, and falls to 1/250,000.

    Args:
        warmup: Fraction of the episode in which the learning rate rises, between 0 and 1.

    Raises:
        ValueError: The fraction is out of range.
    """
    if not 0 < warmup < 1:
        raise ValueError(f"one_cycle: warmup must be between 0 and 1, not {warmup}")
    start = 1.0 / _DIVISOR
    end = start / _FINAL_DIVISOR

    def factor(fraction: float) -> float:
        if fraction < warmup:
            return 1.0 - (1.0 - start) * _fall(fraction / warmup)
        return end + (1.0 - end) * _fall((fraction - warmup) / (1.0 - warmup))

    return Schedule(factor, f"one cycle, peak at {warmup:.0%}")


def _fall(fraction: float) -> float:
    """Return half a cosine, from 1 at 0 to 0 at 1."""
    return 0.5 * (1.0 + math.cos(math.pi * fraction))


def describe_schedule(schedule: AnySchedule) -> str:
    """Return the name of a schedule."""
    return schedule.name if isinstance(schedule, Schedule) else str(getattr(schedule, "__name__", "own"))


def lr_factor(schedule: AnySchedule, step: int, steps: int, batch: int, batches: int) -> float:
    """Return the factor of the learning rate for a batch.

    Args:
        step: Index of the step, from 0.
        steps: Steps of the episode.
        batch: Index of the batch in the step, from 0.
        batches: Batches of a step.
    """
    if is_by_step(schedule):
        return schedule((step + 1) / steps)
    return schedule((step * batches + batch) / (steps * batches))


def is_by_step(schedule: AnySchedule) -> bool:
    """Return True if all batches of a step have the same factor, that of its end."""
    return isinstance(schedule, Schedule) and schedule.by_step


def check_schedule(schedule: AnySchedule, steps: int, batches: int) -> None:
    """Compute the factors of an episode. Raises ValueError unless all are finite numbers of at least 0."""
    for step in range(steps):
        for batch in range(1 if is_by_step(schedule) else batches):
            factor = lr_factor(schedule, step, steps, batch, batches)
            where = f"the factor at {(step * batches + batch) / (steps * batches):.3g}"
            checked_number(where, factor, "a finite number of at least 0", lambda x: 0 <= x < math.inf)
