"""Bounded histories: downsampled series, step traces of an episode, and blueprint statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from esper.common.decisions import Decision
from esper.common.domain import HEADS
from esper.recordings import events as ev

MAX_POINTS = 240
"""Number of points at which a `DownsampledSeries` merges pairs of points."""

T = TypeVar("T")


def append_bounded(values: list[T], value: T, limit: int) -> None:
    """Append a value, and drop the oldest one if the list then has more than `limit` values."""
    values.append(value)
    if len(values) > limit:
        del values[0]


class DownsampledSeries(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One value per round or sample over a whole run. After `MAX_POINTS` values, each point is the mean of several."""

    every: int = 1
    """Values per point."""
    points: list[float | None] = []
    rest: list[float | None] = []
    """Last values, not yet merged into a point."""

    def append(self, value: float | None) -> None:
        """Append a value; None if not measured."""
        self.rest.append(value)
        if len(self.rest) == self.every:
            self.points.append(_mean(self.rest))
            self.rest = []
        if len(self.points) == MAX_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [_mean(list(pair)) for pair in pairs]
            self.every *= 2

    @property
    def values(self) -> list[float | None]:
        """All points, followed by one for `rest`."""
        return [*self.points, _mean(self.rest)] if self.rest else self.points

    @property
    def numbers(self) -> list[int]:
        """Number of the last round or sample of each of the values, counted from 1."""
        ends = [self.every * (index + 1) for index in range(len(self.points))]
        return [*ends, self.every * len(self.points) + len(self.rest)] if self.rest else ends


class FiveNumbers(NamedTuple):
    """Minimum, quartiles and maximum of a quantity over the envs."""

    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float


def five_numbers(values: Sequence[float]) -> FiveNumbers:
    """Return minimum, quartiles and maximum of the finite values; NaN if there is none.

    A quartile between two values is interpolated linearly, as NumPy does by default.
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return FiveNumbers(*[math.nan] * len(FiveNumbers._fields))
    quartiles = (_quantile(ordered, 0.25), median(ordered), _quantile(ordered, 0.75))
    return FiveNumbers(ordered[0], *quartiles, ordered[-1])


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    index, rest = divmod(fraction * (len(ordered) - 1), 1)
    low, high = ordered[int(index)], ordered[math.ceil(index + rest)]
    return low + (high - low) * rest


def _mean(values: list[float | None]) -> float | None:
    """Return the mean of the measured values; non-finite if any of them is."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


class StepTrace(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Details of one step of an env, kept until the next round starts."""

    seq: int
    step: int
    score: float
    train_score: float
    stages: str
    """First letter of each slot's stage."""
    alphas: list[float | None]
    """Alpha of each slot's seed in the next epoch; None if no seed is blended in."""
    dependences: list[float | None]
    """Dependence of the score on the seed of each slot, as a fraction; None if not measured."""
    op: str
    target: str | None
    probability: float | None
    """Probability of the op; None if the policy is deterministic."""
    decision: dict[str, ev.HeadChoice]

    @classmethod
    def from_event(cls, event: ev.EnvStepped) -> StepTrace:
        """Make the trace of a step."""
        stages = ""
        alphas: list[float | None] = []
        dependences: list[float | None] = []
        for slot in event.slots:
            stages += slot.stage[0]
            alphas.append(slot.alpha)
            dependences.append(slot.dependence)
        return cls(
            event.seq,
            event.step,
            event.score,
            event.train_score,
            stages,
            alphas,
            dependences,
            event.op,
            event.target,
            event.op_probability,
            event.decision,
        )


class BlueprintStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Statistics of the seeds of one blueprint since the start of the run."""

    planted: int = 0
    fossilized: int = 0
    culled: int = 0
    sized: int = 0
    """Number of seeds with a known number of parameters."""
    parameters: int = 0
    """Sum of the parameters of these seeds."""

    @property
    def size(self) -> float | None:
        """Mean number of parameters of a seed; None if not known."""
        return self.parameters / self.sized if self.sized else None


def decision_of(step: ev.EnvStepped | StepTrace) -> Decision:
    """Return the decision of a step."""
    choices = {head: choice.choice for head, choice in step.decision.items() if head in HEADS[1:]}
    return Decision(step.op, **{"slot": step.target, **choices})
