"""Health statistics of envs, lanes and memories, which the anomaly rules and the screens read.

`RunState` folds them for the screens and `AnomalyDetector` for the rules, with the same methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings import events as ev
from esper.recordings.state.series import append_bounded

MAX_STEPS = 60
"""Number of last steps of an env, and of last samples of a lane, that are kept."""
MAX_SCALE_CHANGES = 120
"""Number of last changes of a loss scale, and of last steps with skipped batches, that are kept."""
MAX_EPISODES = 10
"""Number of last episodes of an env whose ends are kept."""
MAX_ROUNDS = 24
"""Number of last rounds for which the maximum memory is kept."""


class EnvStepStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Health values of one step of one env."""

    seq: int
    round: int
    step: int
    loss: float
    score: float
    grad_norm: float | None
    """L2 norm of the host's gradient before clipping, mean over the epoch; None if the host is frozen."""
    slots: list[float | None]
    """Gradient norm of the seed in each slot; None if there is no seed or it does not train."""
    scale: float | None
    skipped_batches: int
    """Number of batches skipped because of an overflow."""
    train_loss: float


class EpisodeEnd(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """End of one episode of one env."""

    round: int
    score: float
    """Validation score after the last step."""
    steps_since_best: int
    """Steps since the best score, among the kept steps."""
    structure: str | None = None
    """Structure of its host; None if the task is not a family."""


class EnvHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Health statistics of one env over all rounds, because its loss scale outlives its episodes."""

    recent: list[EnvStepStats] = []
    """Last `MAX_STEPS` steps."""
    steps: int = 0
    """Number of steps since the start of the run."""
    skipped_batches: int = 0
    """Number of batches skipped because of overflows since the start of the run."""
    scales: list[tuple[int, float]] = []
    """Changes of the loss scale: number of the step, from 1, and the scale after it."""
    skipped_by_step: list[tuple[int, int]] = []
    """Steps with skipped batches: number of the step, from 1, and number of batches."""
    ends: list[EpisodeEnd] = []
    """Ends of the last `MAX_EPISODES` episodes."""
    structure: str | None = None
    """Structure of its host; None if the task is not a family."""

    def fold(self, event: ev.EnvStepped, norms: list[float | None]) -> None:
        """Process a step.

        Args:
            event: Step of this env.
            norms: Gradient norm of the seed in each slot.
        """
        self.steps += 1
        if event.loss_scale is not None and (not self.scales or self.scales[-1][1] != event.loss_scale):
            append_bounded(self.scales, (self.steps, event.loss_scale), MAX_SCALE_CHANGES)
        if event.skipped_batches:
            self.skipped_batches += event.skipped_batches
            append_bounded(self.skipped_by_step, (self.steps, event.skipped_batches), MAX_SCALE_CHANGES)
        step = EnvStepStats(
            event.seq, event.round, event.step, event.loss, event.score, event.grad_norm,
            norms, event.loss_scale, event.skipped_batches, event.train_loss,
        )  # fmt: skip
        append_bounded(self.recent, step, MAX_STEPS)

    def fold_end(self, event: ev.EpisodeEnded, scale: ScoreScale) -> None:
        """Process the end of an episode of this env, given the scale of the score."""
        scores = [scale.gain(step.score) for step in self.episode if step.round == event.round]
        best = scores.index(max(scores)) if scores else 0
        end = EpisodeEnd(event.round, event.score, max(len(scores) - 1 - best, 0), self.structure)
        append_bounded(self.ends, end, MAX_EPISODES)

    @property
    def episode(self) -> list[EnvStepStats]:
        """Kept steps of the last episode."""
        return self.last_steps(MAX_STEPS)

    def last_steps(self, steps: int) -> list[EnvStepStats]:
        """Return the last `steps` steps of the last episode; fewer if it has fewer."""
        recent = self.recent[-steps:]
        return [step for step in recent if step.round == recent[-1].round]

    def recent_scales(self, steps: int) -> list[float | None]:
        """Return the loss scale after each of the last `steps` steps; None before the first known one."""
        scales: list[float | None] = []
        changes = iter(reversed(self.scales))
        change = next(changes, None)
        for number in range(self.steps, max(self.steps - steps, 0), -1):
            while change is not None and change[0] > number:
                change = next(changes, None)
            scales.append(change[1] if change else None)
        return scales[::-1]

    def recent_skipped(self, steps: int) -> dict[int, int]:
        """Return the number of skipped batches by index, from 0, among the last `steps` steps."""
        first = max(self.steps - steps, 0)
        return {number - first - 1: count for number, count in self.skipped_by_step if number > first}

    @property
    def num_oscillations(self) -> int:
        """Number of times that the loss scale rose and then fell, among the kept changes."""
        values = [scale for _, scale in self.scales]
        rises = [after > before for before, after in itertools.pairwise(values)]
        return sum(rise and not after for rise, after in itertools.pairwise(rises))


class NonFiniteCount(msgspec.Struct, kw_only=True):
    """Number of non-finite values of a quantity, and where the first one occurred."""

    nan: int = 0
    inf: int = 0
    first_round: int
    first_step: int | None
    """None if the quantity belongs to a whole round."""
    last_seq: int
    env: int | None = None

    def count(self, value: float, seq: int) -> None:
        """Count a non-finite value."""
        if math.isnan(value):
            self.nan += 1
        else:
            self.inf += 1
        self.last_seq = seq


class NonFiniteValue(NamedTuple):
    """A value of a step that is NaN or infinite."""

    quantity: Literal["loss", "score", "gradient"]
    name: str
    """Name in sentences, for example `the gradient of the host`."""
    value: float


def non_finite_update(event: ev.PolicyUpdated) -> Iterator[tuple[str, float]]:
    """Yield name and value of each non-finite quantity of a policy update."""
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
    """Health statistics of one lane, over its last samples."""

    busy: list[float | None] = []
    """Fraction of each step in which the lane was busy."""
    loads: list[float | None] = []
    """Busy and launching fraction per env that trained; None if none did."""
    utilisation: list[float | None] = []
    temperature: list[float | None] = []
    power: list[float | None] = []

    def fold(self, event: ev.DeviceSampled) -> None:
        """Process a sample."""
        append_bounded(self.busy, event.busy, MAX_STEPS)
        load = None if event.busy is None else event.busy + (event.launching or 0.0)
        append_bounded(self.loads, load / event.active if load is not None and event.active else None, MAX_STEPS)
        append_bounded(self.utilisation, event.utilisation, MAX_STEPS)
        append_bounded(self.temperature, event.temperature, MAX_STEPS)
        append_bounded(self.power, event.power, MAX_STEPS)

    def mean_load(self, steps: int) -> float | None:
        """Return the mean busy fraction per env over the last `steps` steps; None if any was not measured."""
        recent = [load for load in self.loads[-steps:] if load is not None]
        return sum(recent) / len(recent) if len(recent) == steps else None


class MemoryHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Health statistics of one memory. All CPU lanes of a machine share one, which its first lane reports."""

    total: int | None = None
    peak: int = 0
    """Maximum number of bytes that the run held."""
    used: int | None = None
    """Bytes that all processes used at the last sample."""
    rounds: list[tuple[int, int]] = []
    """Round number and maximum number of bytes held, for each of the last rounds."""
    processes: list[dict[str, int]] = []
    """Bytes of each process after the last sample of each of these rounds; empty if there is only one."""

    def fold(self, event: ev.DeviceSampled, round_: int) -> None:
        """Process a sample of round `round_`."""
        self.total, self.used = event.total, event.used
        now = bytes_held(event)
        if now is None:
            return
        self.peak = max(self.peak, now)
        if self.rounds and self.rounds[-1][0] == round_:
            self.rounds[-1] = (round_, max(self.rounds[-1][1], now))
            self.processes[-1:] = [event.processes]
        else:
            append_bounded(self.rounds, (round_, now), MAX_ROUNDS)
            append_bounded(self.processes, event.processes, MAX_ROUNDS)

    def growth_per_round(self, rounds: int) -> float | None:
        """Return the growth in bytes per round over the last `rounds` complete rounds; None if not in each."""
        whole = self.rounds[-rounds - 2 : -1]  # the current round is incomplete
        if len(whole) <= rounds or whole[-1][1] <= whole[-2][1]:  # the usual case: no growth in the last round
            return None
        if any(after[1] <= before[1] for before, after in itertools.pairwise(whole)):
            return None
        return (whole[-1][1] - whole[0][1]) / (whole[-1][0] - whole[0][0])

    def growing_process(self, rounds: int) -> str | None:
        """Return the process with most of the growth over the last `rounds` complete rounds; None if none has."""
        whole = self.processes[-rounds - 2 : -1]
        if not whole:
            return None
        growth = {name: now - whole[0].get(name, now) for name, now in whole[-1].items()}
        largest = max(growth, key=growth.__getitem__, default=None)
        return largest if largest is not None and 2 * growth[largest] > sum(growth.values()) > 0 else None


class RunHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Health statistics of a run."""

    slots: list[str] = []
    """Names of the slots."""
    score_name: str = ""
    score_scale: ScoreScale = PERCENT
    chance_score: float = 0.0
    """Name of the task's score; empty before the run has started."""
    chance_loss: float | None = None
    """Loss of a constant output; None before the run has started."""
    chance_by_structure: dict[str, float] = {}
    """Chance loss of each structure of a family, keyed by its name; empty for another task."""
    rounds: int | None = None
    """Number of rounds in the run."""
    round: int = 0
    envs: dict[int, EnvHealth] = {}
    lanes: dict[str, LaneHealth] = {}
    memories: dict[str, MemoryHealth] = {}
    """Keyed by `memory_name`."""
    is_search: bool = False
    """True in a growth, whose envs train different candidates."""
    non_finite: dict[str, NonFiniteCount] = {}
    """Counts of non-finite values, keyed by env and quantity."""

    def fold_start(self, event: ev.RunStarted) -> None:
        """Process the start of a run."""
        self.slots, self.score_name, self.chance_loss = event.slot_names, event.score_name, event.chance_loss
        self.score_scale, self.chance_score = event.score_scale, event.chance_score
        self.chance_by_structure = {structure.name: structure.chance_loss for structure in event.structures}
        self.rounds = event.rounds
        self.is_search = event.search is not None
        # A run that was resumed on other devices has other lanes.
        memories = {memory_name(lane) for lane in event.lanes}
        self.lanes = {name: lane for name, lane in self.lanes.items() if name in event.lanes}
        self.memories = {name: memory for name, memory in self.memories.items() if name in memories}

    def chance_of(self, env: int) -> float | None:
        """Return the chance loss in the episode of an env; None if it is not known."""
        structure = self.envs[env].structure
        return self.chance_loss if structure is None else self.chance_by_structure.get(structure)

    def fold_context(self, event: ev.EpisodeStarted) -> None:
        """Process the context of an episode of an env."""
        self._env(event.env).structure = event.structure

    def describe_seed(self, event: ev.EnvStepped, index: int) -> str:
        """Return a name for the seed in slot `index`, for example `the conv_small in early`."""
        where = self.slots[index] if index < len(self.slots) else f"slot {index + 1}"
        return f"the {event.slots[index].blueprint or 'seed'} in {where}"

    def fold_step(self, event: ev.EnvStepped) -> list[NonFiniteValue]:
        """Process a step of an env. Return its non-finite values."""
        self.round = event.round
        env = self._env(event.env)
        # The sum is finite only if every term is. It can also overflow; `_non_finite` then finds nothing.
        total = event.train_loss + event.loss + event.train_score + event.score + (event.grad_norm or 0.0)
        norms: list[float | None] = []
        for slot in event.slots:
            norms.append(slot.grad_norm)
            if slot.grad_norm is not None:
                total += slot.grad_norm
        env.fold(event, norms)
        if math.isfinite(total):
            return []
        found = self._non_finite(event)
        for _, name, value in found:
            self._count(f"env {event.env:02d}: {name}", value, event.seq, event.round, event.step, event.env)
        return found

    def fold_end(self, event: ev.EpisodeEnded) -> None:
        """Process the end of an episode of an env."""
        env = self.envs.get(event.env)
        if env is not None:
            env.fold_end(event, self.score_scale)

    def fold_update(self, event: ev.PolicyUpdated) -> None:
        """Process an update of the policy."""
        for what, value in non_finite_update(event):
            self._count(what, value, event.seq, event.round, None, None)

    def fold_sample(self, event: ev.DeviceSampled) -> None:
        """Process a sample of a lane's device."""
        lane = self.lanes.get(event.device)
        if lane is None:
            lane = self.lanes[event.device] = LaneHealth()
        lane.fold(event)
        if self.is_memory_reporter(event.device):
            memory = memory_name(event.device)
            history = self.memories.get(memory)
            if history is None:
                history = self.memories[memory] = MemoryHealth()
            history.fold(event, self.round)

    def is_memory_reporter(self, device: str) -> bool:
        """Return True if this lane reports its memory: it is the first of the lanes that share it."""
        memory = memory_name(device)
        return device == next((lane for lane in self.lanes if memory_name(lane) == memory), device)

    def _env(self, index: int) -> EnvHealth:
        env = self.envs.get(index)
        if env is None:
            env = self.envs[index] = EnvHealth()
        return env

    def _non_finite(self, event: ev.EnvStepped) -> list[NonFiniteValue]:
        values = [
            NonFiniteValue("loss", "the training loss", event.train_loss),
            NonFiniteValue("loss", "the validation loss", event.loss),
            NonFiniteValue("score", f"the training {self.score_name}", event.train_score),
            NonFiniteValue("score", f"the validation {self.score_name}", event.score),
        ]
        if event.grad_norm is not None:
            values.append(NonFiniteValue("gradient", "the gradient of the host", event.grad_norm))
        for index, slot in enumerate(event.slots):
            if slot.grad_norm is not None:
                name = f"the gradient of {self.describe_seed(event, index)}"
                values.append(NonFiniteValue("gradient", name, slot.grad_norm))
        return [found for found in values if not math.isfinite(found.value)]

    def _count(self, name: str, value: float, seq: int, round_: int, step: int | None, env: int | None) -> None:
        known = self.non_finite.get(name)
        if known is None:
            known = NonFiniteCount(first_round=round_, first_step=step, last_seq=seq, env=env)
            self.non_finite[name] = known
        known.count(value, seq)


def bytes_held(event: ev.DeviceSampled) -> int | None:
    """Return the bytes that the run holds: reserved by the CUDA allocator, or resident on a CPU; None if unknown."""
    return event.allocated if event.reserved is None else event.reserved


@lru_cache
def memory_name(device: str) -> str:
    """Return the name of a lane's memory: `1/cpu` for lane `1/cpu:3`, and the lane itself for a GPU."""
    name, _, _ = device.rpartition(":")
    return name if name.rpartition("/")[2] == "cpu" else device
