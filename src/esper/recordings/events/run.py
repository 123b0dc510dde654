"""Events of the whole run, its policy and its devices."""

from __future__ import annotations

from typing import Any

import msgspec

from esper.common.domain import Severity
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings.events.base import Event
from esper.recordings.events.search import SearchInfo


class StructureInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A structure of a family of tasks."""

    name: str
    """Name of the structure."""
    slots: int
    """Number of its slots, the first ones of `slot_names`."""
    host_parameters: int
    """Parameters of the bare host."""
    chance_loss: float
    """Loss of a constant output."""


class RunStarted(Event, frozen=True, kw_only=True, tag=True):
    """A process started or resumed the run. Holds the configuration and layout of the run."""

    run: str
    """Name of the run, which is the name of its directory."""
    task: str
    """Task that the hosts learn."""
    policy: str
    """Policy that decides what grows."""
    rounds: int
    """Number of rounds in the run."""
    steps: int
    """Number of steps in an episode."""
    slot_names: list[str]
    """Names of the slots, in the order of the forward pass."""
    lanes: list[str]
    """Name of each env's lane, by env index: `lanes[3] == "cuda:1"`."""
    seed: int
    """Random seed."""
    host_parameters: int
    """Parameters of the bare host; of a family, those of the structure with the most slots."""
    structures: list[StructureInfo] = []
    """Structures of a family of tasks; empty for another task."""
    score_name: str
    """Name of the task's score."""
    score_scale: ScoreScale = PERCENT
    """Range and better end of the score."""
    chance_loss: float
    """Loss of a constant output."""
    chance_score: float
    """Score of a constant output."""
    batches: int
    """Number of batches in one epoch of an env."""
    growth_interval: int | None = None
    """Batches without overflow after which the loss scale doubles; absent without loss scaling."""
    versions: dict[str, str]
    """Versions of esper-sanctum, Python and torch, and the instruction set for which torch computes on the CPU."""
    search: SearchInfo | None = None
    """Budget and aim of a growth; absent for another run."""
    task_code: dict[str, str] = {}
    """Digests of the files of a task that is the user's own code, keyed by relative path; empty for a built-in task."""
    recipe: dict[str, str] = {}
    """How hosts and seeds are trained, in words, keyed by field of the task: optimizers and schedule. Of a family, the
    words of its structures."""
    task_defaults: dict[str, Any] = {}
    """Part of a configuration that the task itself sets: its slots and settings; empty if it is not known."""
    config: dict[str, Any]
    """Resolved configuration, as in `run.json`."""


class RoundStarted(Event, frozen=True, kw_only=True, tag=True):
    """A round started, and every env was reset to a fresh host."""

    round: int


class HeadReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Gradient norm and entropy of one policy head in one update."""

    grad_norm: float | None = None
    """L2 norm of the head's gradient before clipping, mean over the minibatches; absent if the head got no gradient."""
    entropy: float | None = None
    """Entropy divided by log(number of legal actions), mean over the decisions with a choice; absent without any."""


class PolicyUpdated(Event, frozen=True, kw_only=True, tag=True):
    """The policy was updated at the end of a round."""

    round: int
    policy_loss: float
    """Clipped surrogate loss, mean over the minibatches."""
    value_loss: float
    """Half the squared error of the critic divided by the variance of its targets, mean over the minibatches."""
    entropy: float
    """Normalised entropy, 0 to 1, mean over the heads that the chosen ops use."""
    kl: float
    """Estimate of KL(old ‖ new) in nats: mean(ratio − 1 − log ratio)."""
    clip_fraction: float
    """Fraction of the probability ratios that were clipped."""
    explained_variance: float | None = None
    """1 − var(returns − values) / var(returns), with the rewards that followed each step as its return; absent if the
    returns do not vary."""
    within_step_explained_variance: float | None = None
    """The same with the mean of each step subtracted from returns and values, so that only differences between envs
    count; absent if no step has returns that vary."""
    grad_norm: float
    """L2 norm of the policy's gradient before clipping, mean over the minibatches."""
    learning_rate: float
    """Learning rate of this update."""
    minibatches: int
    """Number of optimizer steps."""
    stopped_early: bool
    """True if the KL limit ended the update before its last epoch."""
    episode_return: float
    """Undiscounted return of the episodes, mean over the envs."""
    heads: dict[str, HeadReading]
    """Gradient norm and entropy of each head, keyed by head."""


class DeviceSampled(Event, frozen=True, kw_only=True, tag=True):
    """Load, memory and sensors of a lane's device. On a CPU, `used` and `total` are those of the whole machine."""

    device: str
    """Name of the lane, for example `cuda:0` or `cpu:1`."""
    envs: int
    """Number of envs of the lane."""
    active: int | None = None
    """Number of envs that trained in this step; inactive envs did not. Absent if lanes share their envs."""
    busy: float | None = None
    """Fraction of the step in which the lane was busy."""
    launching: float | None = None
    """Fraction of the step in which a GPU ran only work that the host was still launching. Absent on a CPU."""
    graphs: int | None = None
    """Number of CUDA graphs that were recorded so far. Absent on a CPU."""
    allocated: int | None = None
    """CUDA: bytes of live tensors. CPU: resident bytes of the run's or rank's processes; shared memory counts once."""
    reserved: int | None = None
    """CUDA: bytes held by the caching allocator. Absent on a CPU."""
    used: int | None = None
    """Bytes in use on the device or machine, by all processes."""
    total: int | None = None
    """Size of the memory in bytes."""
    utilisation: float | None = None
    """Fraction of time in which the device was busy, as reported by its driver."""
    temperature: float | None = None
    """Temperature in degrees Celsius."""
    power: float | None = None
    """Power draw in watts."""
    scale_min: float | None = None
    """Minimum loss scale of the envs of the lane; absent without loss scaling."""
    scale_max: float | None = None
    """Maximum loss scale of the envs of the lane; absent without loss scaling."""
    owners: dict[str, int] = {}
    """Bytes of live tensors by owner: hosts and seeds (with gradients and buffers), optimizers, policy (with its
    optimizer and experience) and data. Removed seeds are kept, and count. Tensors that all lanes of a CPU share are
    counted in the first of them."""
    processes: dict[str, int] = {}
    """Resident bytes of each process of the run, without shared memory, keyed by `main process` or `worker of LANE`.
    Only of the first CPU lane, if there are several processes."""


class PhaseTimed(Event, frozen=True, kw_only=True, tag=True):
    """Duration of a step by phase. The first step of a round includes the update and checkpoint of the round before."""

    round: int
    step: int
    wall: float
    """Seconds since the previous PhaseTimed."""
    phases: dict[str, float]
    """Seconds in each phase, keyed by phase. `other`: lanes waited for each other, or nothing was measured."""


class CheckpointSaved(Event, frozen=True, kw_only=True, tag=True):
    """A checkpoint was written and verified. `round` and `step` are the last ones completed."""

    round: int
    step: int
    path: str
    """Directory of the checkpoint."""
    bytes: int
    """Size of its files in bytes."""
    score: float | None = None
    """Last validation score, median over the envs; absent before the first step."""
    seconds: float | None = None
    """Seconds that writing it took; absent if the run was restored from it."""
    written: float | None = None
    """Time of writing, in seconds since the epoch; present if the run was restored from it."""
    origin: str
    """Reason for it: schedule, end, keyboard, signal, command line, dashboard (it crashed or lost its terminal), fault
    (a step failed; this is the start of its round), or restore (the run was restored from this checkpoint)."""


class Logged(Event, frozen=True, kw_only=True, tag=True):
    """A log message."""

    severity: Severity
    """info, warning, or error."""
    text: str
    """Message in one sentence."""


class CallOverdue(Event, frozen=True, kw_only=True, tag=True):
    """A call of the user's code for an env has not returned for long. CallEnded follows if it does."""

    env: int
    lane: str
    """Name of the env's lane."""
    function: str
    """Function of the user's code in which the call is."""
    file: str
    """Path of its file."""
    line: int
    """Line in the file, from 1."""
    seconds: float
    """Duration of the call so far."""
    max_seconds: float
    """Duration after which a stop request ends the run without waiting for the call."""


class CallEnded(Event, frozen=True, kw_only=True, tag=True):
    """An overdue call of the user's code has returned, raised an exception, or ended with its process."""

    env: int
    seconds: float
    """Duration of the call."""


class ClockChanged(Event, frozen=True, kw_only=True, tag=True):
    """The wall clock of the machine was set, or the machine slept. Later events have times of the changed clock."""

    seconds: float
    """Change of the wall clock minus the elapsed time, in seconds; negative if the clock was set back."""


class RunEnded(Event, frozen=True, kw_only=True, tag=True):
    """The run ended. This is its last event, unless the process was killed."""

    outcome: str
    """done, stopped, or failed."""
    reason: str | None = None
    """Reason for the end; absent if all rounds were completed."""
