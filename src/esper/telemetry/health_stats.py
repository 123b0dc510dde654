"""Running statistics of each env and device, which the anomaly rules read.

RunState folds them for the screens, the hub's Inspector for the rules; both through the same methods.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter

import msgspec

from esper.telemetry import events as ev
from esper.telemetry.series import append_bounded

MAX_STEPS = 60
"""Steps of an env, and samples of a lane, that are looked back on."""
MAX_SCALE_CHANGES = 120
"""Changes of a loss scale, and steps that lost a batch, that are kept."""
MAX_MEMORY_POINTS = 120
"""Most points of the memory's course."""
MAX_ROUNDS = 24
"""Rounds whose greatest memory is kept."""


class EnvStepStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One step of one env."""

    seq: int
    round: int
    step: int
    loss: float
    accuracy: float
    grad_norm: float
    """Of the host, mean L2 norm before clipping."""
    slots: list[float | None]
    """The same of the seed in each slot; None where there is none, or none that trains."""
    scale: float | None
    lost: int
    """Batches skipped for an overflow."""


class EnvHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Vital signs of one env, over the rounds: its loss scale outlives its episodes."""

    recent: list[EnvStepStats] = msgspec.field(default_factory=list)
    """The last steps."""
    steps: int = 0
    """Steps since the run began."""
    lost: int = 0
    """Batches lost to overflows since then."""
    scales: list[tuple[int, float]] = msgspec.field(default_factory=list)
    """Where the loss scale changed: number of the step, from 1, and the scale after it. The staircase, exactly."""
    skips: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Steps that lost batches: number of the step, and how many."""

    def fold(self, event: ev.EnvStepped, norms: list[float | None]) -> None:
        """Take a step in. `norms` are the gradient norms of its slots."""
        self.steps += 1
        if event.loss_scale is not None and (not self.scales or self.scales[-1][1] != event.loss_scale):
            append_bounded(self.scales, (self.steps, event.loss_scale), MAX_SCALE_CHANGES)
        if event.lost:
            self.lost += event.lost
            append_bounded(self.skips, (self.steps, event.lost), MAX_SCALE_CHANGES)
        vital = EnvStepStats(
            event.seq, event.round, event.step, event.loss, event.accuracy, event.grad_norm,
            norms, event.loss_scale, event.lost,
        )  # fmt: skip
        append_bounded(self.recent, vital, MAX_STEPS)

    @property
    def episode(self) -> list[EnvStepStats]:
        """The steps of the last episode that are known."""
        if not self.recent:
            return []
        return self.recent[bisect_left(self.recent, self.recent[-1].round, key=attrgetter("round")) :]

    def recent_scales(self, steps: int) -> list[float | None]:
        """The loss scale after each of the last `steps` steps; None before the first that is known."""
        stairs: list[float | None] = []
        changes = iter(reversed(self.scales))
        change = next(changes, None)
        for number in range(self.steps, max(self.steps - steps, 0), -1):
            while change is not None and change[0] > number:
                change = next(changes, None)
            stairs.append(change[1] if change else None)
        return stairs[::-1]

    def recent_skips(self, steps: int) -> dict[int, int]:
        """Of the last `steps` steps, those that lost batches: place from 0, and how many."""
        first = max(self.steps - steps, 0)
        return {number - first - 1: lost for number, lost in self.skips if number > first}

    @property
    def num_oscillations(self) -> int:
        """How often, among the changes known, the loss scale grew and next fell: a ping-pong when it is often."""
        values = [scale for _, scale in self.scales]
        rises = [after > before for before, after in itertools.pairwise(values)]
        return sum(rise and not after for rise, after in itertools.pairwise(rises))


class NonFiniteCount(msgspec.Struct, kw_only=True):
    """How often a quantity was not finite, and when first."""

    nan: int = 0
    inf: int = 0
    first_round: int
    first_step: int | None
    """None for a quantity of a whole round."""
    last_seq: int
    env: int | None = None

    def count(self, value: float, seq: int) -> None:
        """Take one in."""
        if math.isnan(value):
            self.nan += 1
        else:
            self.inf += 1
        self.last_seq = seq


def non_finite_update(event: ev.PolicyUpdated) -> Iterator[tuple[str, float]]:
    """What is not finite in an update of the policy, in the same words."""
    values = {
        "the policy loss": event.policy_loss,
        "the value loss": event.value_loss,
        "the gradient of the policy": event.grad_norm,
    }
    for name, head in event.heads.items():
        if head.grad_norm is not None:
            values[f"the gradient of head {name}"] = head.grad_norm
    for name, value in values.items():
        if not math.isfinite(value):
            yield name, value


class LaneHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Vital signs of one lane."""

    busy: list[float | None] = msgspec.field(default_factory=list)
    """Share of each of the last steps that it spent working."""
    loads: list[float | None] = msgspec.field(default_factory=list)
    """The same by the number of envs that trained; None where none did."""
    utilisation: list[float | None] = msgspec.field(default_factory=list)
    temperature: list[float | None] = msgspec.field(default_factory=list)
    power: list[float | None] = msgspec.field(default_factory=list)

    def fold(self, event: ev.DeviceSampled) -> None:
        """Take a sample in."""
        append_bounded(self.busy, event.busy, MAX_STEPS)
        load = event.busy / event.active if event.busy is not None and event.active else None
        append_bounded(self.loads, load, MAX_STEPS)
        append_bounded(self.utilisation, event.utilisation, MAX_STEPS)
        append_bounded(self.temperature, event.temperature, MAX_STEPS)
        append_bounded(self.power, event.power, MAX_STEPS)

    def mean_load(self, steps: int) -> float | None:
        """Mean busy share per env over the last `steps` steps; None while fewer were measured."""
        recent = [load for load in self.loads[-steps:] if load is not None]
        return sum(recent) / len(recent) if len(recent) == steps else None


class MemoryPoint(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Memory at a moment, bytes."""

    round: int
    allocated: int | None
    reserved: int | None
    used: int | None
    owners: dict[str, int]


class MemoryHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The course of one memory. All CPU lanes of a machine share one, which its first lane tells of."""

    total: int | None = None
    peak: int = 0
    """The most that this run held since it began."""
    every: int = 1
    """Samples to a point: it doubles when there are too many points."""
    pending: int = 0
    """Samples since the last point."""
    points: list[MemoryPoint] = msgspec.field(default_factory=list)
    rounds: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """For each of the last rounds, the most that was held in it."""

    def fold(self, event: ev.DeviceSampled, round_: int) -> None:
        """Take a sample in."""
        self.total = event.total
        if self.pending == 0:
            point = MemoryPoint(round_, event.allocated, event.reserved, event.used, event.owners)
            self.points.append(point)
        if len(self.points) > MAX_MEMORY_POINTS:
            self.points = self.points[::2]
            self.every *= 2
        self.pending = (self.pending + 1) % self.every
        now = bytes_held(event)
        if now is None:
            return
        self.peak = max(self.peak, now)
        if self.rounds and self.rounds[-1][0] == round_:
            self.rounds[-1] = (round_, max(self.rounds[-1][1], now))
        else:
            append_bounded(self.rounds, (round_, now), MAX_ROUNDS)

    def growth_per_round(self, rounds: int) -> float | None:
        """Bytes a round by which it grew over the last `rounds` whole rounds, if it grew in each; else None."""
        whole = self.rounds[-rounds - 2 : -1]  # the round in progress may still rise
        if len(whole) <= rounds or whole[-1][1] <= whole[-2][1]:  # most often it stays as it is
            return None
        if any(after[1] <= before[1] for before, after in itertools.pairwise(whole)):
            return None
        return (whole[-1][1] - whole[0][1]) / (whole[-1][0] - whole[0][0])


class RunHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The vital signs of a run."""

    slots: list[str] = msgspec.field(default_factory=list)
    """Names of the slots."""
    round: int = 0
    envs: dict[int, EnvHealth] = msgspec.field(default_factory=dict)
    lanes: dict[str, LaneHealth] = msgspec.field(default_factory=dict)
    memories: dict[str, MemoryHealth] = msgspec.field(default_factory=dict)
    """Keyed by `memory_name`."""
    bad: dict[str, NonFiniteCount] = msgspec.field(default_factory=dict)
    """What was ever not finite, by place and quantity."""

    def fold_start(self, event: ev.RunStarted) -> None:
        """Take the beginning of a run in."""
        self.slots = event.slots

    def describe_seed(self, event: ev.EnvStepped, index: int) -> str:
        """What people call the seed in one of an env's slots."""
        where = self.slots[index] if index < len(self.slots) else f"slot {index + 1}"
        return f"the {event.slots[index].blueprint or 'seed'} in {where}"

    def fold_step(self, event: ev.EnvStepped) -> list[tuple[str, float]]:
        """Take a step of an env in. Returns what of it is not finite."""
        self.round = event.round
        env = self.envs.get(event.env)
        if env is None:
            env = self.envs[event.env] = EnvHealth()
        norms = [slot.grad_norm for slot in event.slots]
        env.fold(event, norms)
        # The sum is finite only if every term is, but for an overflow, which the closer look then clears.
        total = event.train_loss + event.loss + event.train_accuracy + event.accuracy + event.grad_norm
        for norm in norms:
            if norm is not None:
                total += norm
        if math.isfinite(total):
            return []
        bad = self._non_finite(event)
        for what, value in bad:
            self._count(f"env {event.env:02d}: {what}", value, event.seq, event.round, event.step, event.env)
        return bad

    def fold_update(self, event: ev.PolicyUpdated) -> None:
        """Take an update of the policy in."""
        for what, value in non_finite_update(event):
            self._count(what, value, event.seq, event.round, None, None)

    def fold_sample(self, event: ev.DeviceSampled) -> None:
        """Take a sample of a device in."""
        lane = self.lanes.get(event.device)
        if lane is None:
            lane = self.lanes[event.device] = LaneHealth()
        lane.fold(event)
        if self.is_memory_reporter(event.device):
            memory = memory_name(event.device)
            course = self.memories.get(memory)
            if course is None:
                course = self.memories[memory] = MemoryHealth()
            course.fold(event, self.round)

    def is_memory_reporter(self, device: str) -> bool:
        """Whether it is the lane whose samples stand for its memory: the first of those that share it."""
        memory = memory_name(device)
        return device == next((lane for lane in self.lanes if memory_name(lane) == memory), device)

    def _non_finite(self, event: ev.EnvStepped) -> list[tuple[str, float]]:
        """What is not finite in a step: the quantity, as people name it, and the value."""
        values = [
            ("the training loss", event.train_loss),
            ("the validation loss", event.loss),
            ("the training accuracy", event.train_accuracy),
            ("the validation accuracy", event.accuracy),
            ("the gradient of the host", event.grad_norm),
        ]
        for index, slot in enumerate(event.slots):
            if slot.grad_norm is not None:
                values.append((f"the gradient of {self.describe_seed(event, index)}", slot.grad_norm))
        return [(name, value) for name, value in values if not math.isfinite(value)]

    def _count(self, name: str, value: float, seq: int, round_: int, step: int | None, env: int | None) -> None:
        known = self.bad.get(name)
        if known is None:
            known = NonFiniteCount(first_round=round_, first_step=step, last_seq=seq, env=env)
            self.bad[name] = known
        known.count(value, seq)


def bytes_held(event: ev.DeviceSampled) -> int | None:
    """Bytes that this run holds of a memory: what its allocator has reserved, or the process's on a CPU."""
    return event.allocated if event.reserved is None else event.reserved


@lru_cache
def memory_name(device: str) -> str:
    """Name of the memory of a lane: `1/cpu` for lane `1/cpu:3`; a GPU has one of its own."""
    name, _, _ = device.rpartition(":")
    return name if name.rpartition("/")[2] == "cpu" else device
