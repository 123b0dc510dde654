"""Bounded histories: down-sampled series, the steps of an episode, blueprint statistics."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TypeVar

import msgspec

from esper.telemetry import events as ev

MAX_POINTS = 240
"""Most points of a course."""

T = TypeVar("T")


def append_bounded(values: list[T], value: T, limit: int) -> None:
    """Append a value, and drop the oldest one if the list then has more than `limit` values."""
    values.append(value)
    if len(values) > limit:
        del values[0]


class DownsampledSeries(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One value a round over a whole run, however long: from 240 rounds on a point is the mean over several."""

    every: int = 1
    """Rounds to a point."""
    points: list[float | None] = msgspec.field(default_factory=list)
    rest: list[float | None] = msgspec.field(default_factory=list)
    """Values of the last rounds, fewer than make a point."""
    last: float | None = None

    def append(self, value: float | None) -> None:
        """Add the value of a round; None where nothing was measured."""
        self.last = value
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
        """The points, and one for the rest."""
        return [*self.points, _mean(self.rest)] if self.rest else self.points


def min_median_max(values: Sequence[float]) -> tuple[float, float, float]:
    """Least, median and greatest."""
    return min(values), median(values), max(values)


def _mean(values: list[float | None]) -> float | None:
    """Of what was measured; not finite if any of it is."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


class StepTrace(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is kept of one step of an env until its episode ends."""

    step: int
    stages: str
    """A letter for each slot: the first of its stage."""
    contributions: list[float | None]
    """By slot, as a share of accuracy."""
    parts: dict[str, float]
    """Components of the reward."""
    op: str
    target: str | None
    probability: float | None
    """Of the op."""
    decision: dict[str, ev.HeadChoice]
    loss_scale: float | None
    skipped: dict[str, int]
    """Optimizer steps skipped, by owner."""

    @classmethod
    def from_event(cls, event: ev.EnvStepped) -> StepTrace:
        """The trace that a step leaves."""
        stages = ""
        contributions: list[float | None] = []
        for slot in event.slots:
            stages += slot.stage[0]
            contributions.append(slot.contribution)
        return cls(
            event.step,
            stages,
            contributions,
            event.reward_parts,
            event.op,
            event.target,
            event.op_probability,
            event.decision,
            event.loss_scale,
            event.skipped,
        )


class BlueprintStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the seeds of one blueprint fared since the run began."""

    planted: int = 0
    fossilized: int = 0
    culled: int = 0
    judged: int = 0
    """Seeds whose contribution was measured and is final: they were culled, or their episode is over."""
    contributions: float = 0.0
    """Sum over them of the last contribution that was measured, as shares of accuracy."""
    sized: int = 0
    """Seeds whose size is known."""
    parameters: int = 0
    """Sum over them."""

    @property
    def contribution(self) -> float | None:
        """Mean over the seeds judged."""
        return self.contributions / self.judged if self.judged else None

    @property
    def size(self) -> float | None:
        """Mean parameters of a seed."""
        return self.parameters / self.sized if self.sized else None

    def add_final_contribution(self, contribution: float | None) -> None:
        """Take in what a seed was worth at last; None if that was never measured."""
        if contribution is not None:
            self.judged += 1
            self.contributions += contribution


def last_contribution(trace: list[StepTrace], slot: int) -> float | None:
    """The last contribution measured of the seed that left a slot at the end of `trace`, or just before it."""
    grown = False
    for step in reversed(trace):
        alive = step.stages[slot] in "gtbpf"
        if grown and not alive:
            return None
        grown = grown or alive
        if step.contributions[slot] is not None:
            return step.contributions[slot]
    return None
