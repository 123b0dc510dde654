"""Telemetry events: everything that a run records about itself.

Each event is one line of JSON with a `type`, a sequence number `seq` (from 1, without gaps) and a wall-clock `time` in
seconds since the epoch. Rounds and steps are counted from 1, envs from 0. Scores, fractions and alphas are between
0 and 1, durations are in seconds, and sizes are in bytes.

A field that was not measured is `None`, and is absent from the JSON. A measured value that is not finite is written as
the string "NaN", "Infinity" or "-Infinity", as in the JSON mapping of protobuf.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from esper.domain import Severity, StageName
from esper.telemetry.anomalies import AnomalyEnded as AnomalyEnded
from esper.telemetry.anomalies import AnomalyFound as AnomalyFound
from esper.telemetry.anomalies import AnomalyJoined as AnomalyJoined
from esper.telemetry.anomalies import AnomalyLeft as AnomalyLeft
from esper.telemetry.control_events import ControlRequested as ControlRequested
from esper.telemetry.control_events import DecisionExplained as DecisionExplained
from esper.telemetry.control_events import Paused as Paused
from esper.telemetry.control_events import Resumed as Resumed
from esper.telemetry.event_parts import Event as Event
from esper.telemetry.event_parts import GateCheck as GateCheck
from esper.telemetry.event_parts import HeadChoice as HeadChoice
from esper.telemetry.event_parts import HeadReading as HeadReading
from esper.telemetry.event_parts import SlotReading as SlotReading
from esper.telemetry.event_parts import StructureInfo as StructureInfo

SCHEMA_VERSION = 1
"""Version of the events. It increases when an event or field is removed or changes its meaning, not for new ones."""


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
    chance_loss: float
    """Loss of a constant output."""
    chance_score: float
    """Score of a constant output."""
    batches: int
    """Number of batches in one epoch of an env."""
    growth_interval: int | None = None
    """Batches without overflow after which the loss scale doubles; absent without loss scaling."""
    versions: dict[str, str]
    """Versions of esper-sanctum, Python and torch."""
    config: dict[str, Any]
    """Resolved configuration, as in `run.json`."""


class RoundStarted(Event, frozen=True, kw_only=True, tag=True):
    """A round started, and every env was reset to a fresh host."""

    round: int


class EnvStepped(Event, frozen=True, kw_only=True, tag=True):
    """An env finished a step: one decision, one epoch of training, and one validation."""

    round: int
    step: int
    env: int
    op: str
    """Op that the policy chose: wait, germinate, advance, set_alpha, cull, or fossilize."""
    target: str | None = None
    """Name of the slot that the op applies to; absent for wait."""
    train_loss: float
    """Training loss, mean over the epoch."""
    train_score: float
    """Score on the training split, mean over the epoch."""
    loss: float
    """Validation loss; the cross-entropy in nats, unless the task has its own loss."""
    score: float
    """Score on the validation split."""
    reward: float
    """Reward of the step, in units of the score."""
    reward_parts: dict[str, float]
    """Components of the reward, which sum to it, keyed by name."""
    value: float | None = None
    """Return that the critic predicted before the step; absent for policies without a critic."""
    op_probability: float | None = None
    """Probability of the chosen op; absent if the policy is deterministic."""
    op_probabilities: dict[str, float] = {}
    """Probability of each legal op, rounded to four decimals; empty if the policy is deterministic."""
    decision: dict[str, HeadChoice] = {}
    """Choice of each other head that the op uses, keyed by head. Probabilities are rounded to four decimals."""
    grad_norm: float | None = None
    """L2 norm of the host's gradient before clipping, mean over the epoch; absent if the host is frozen."""
    parameter_ratio: float
    """Parameters of host and seeds divided by those of the bare host."""
    loss_scale: float | None = None
    """Loss scale after the epoch; absent without loss scaling."""
    growth_tracker: int | None = None
    """Batches without overflow since the scale changed; it doubles at `RunStarted.growth_interval`. Absent like it."""
    skipped_batches: int = 0
    """Batches of this epoch without an optimizer step, because a gradient overflowed under loss scaling."""
    overflows_by_owner: dict[str, int] = {}
    """Batches in which a gradient overflowed, keyed by its owner (`host` or a slot); only owners with any."""
    metrics: dict[str, float] = {}
    """Further metrics of the task on the validation split, keyed by name."""
    slots: list[SlotReading]
    """State of each slot, in the order of `RunStarted.slot_names`. An env of a family can have fewer slots."""

    def slot(self, index: int) -> SlotReading | None:
        """Return the state of a slot; None if the env does not have it."""
        return self.slots[index] if index < len(self.slots) else None


class SeedMoved(Event, frozen=True, kw_only=True, tag=True):
    """A slot changed its stage."""

    round: int
    step: int
    env: int
    slot: str
    before: StageName
    """Stage before the transition."""
    after: StageName
    """Stage after the transition."""
    blueprint: str | None = None
    """Blueprint of the seed; absent if the slot is empty."""
    reason: str
    """Cause of the transition: the op, timer, or gate that triggered it."""


class _GateEvent(Event, frozen=True, kw_only=True):
    round: int
    step: int
    env: int
    slot: str
    gate: str
    """G1, G2, G3, or G5."""
    checks: list[GateCheck]
    """All conditions of the gate, including those that hold."""


class GateRefused(_GateEvent, frozen=True, kw_only=True, tag=True):
    """A gate began to refuse a seed, or refuses it for another reason than before."""


class GateOpened(_GateEvent, frozen=True, kw_only=True, tag=True):
    """A gate that refused a seed now passes. The seed has not changed its stage yet."""


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
    optimizer and experience) and data. Tensors that all lanes of a CPU share are counted in the first of them."""


class PhaseTimed(Event, frozen=True, kw_only=True, tag=True):
    """Duration of a step by phase. The first step of a round includes the update and checkpoint of the round before."""

    round: int
    step: int
    wall: float
    """Seconds since the previous PhaseTimed."""
    phases: dict[str, float]
    """Seconds in each phase, keyed by phase. `other`: lanes waited for each other, or nothing was measured."""


class GovernorRolledBack(Event, frozen=True, kw_only=True, tag=True):
    """An env broke down. The governor restored its last good state; the env is inactive for the rest of the round."""

    round: int
    step: int
    env: int
    reason: str
    """Symptom of the breakdown, for example `the loss is NaN`."""
    value: float
    """Measured value."""
    threshold: float | None = None
    """Limit of the value, in the same unit; absent if the value only had to be finite."""
    penalty: float = 0.0
    """Penalty for the breakdown in units of the score; a component of the step's reward."""
    culled: list[str] = []
    """Names of the slots whose seed was removed."""


class EpisodeStarted(Event, frozen=True, kw_only=True, tag=True):
    """An env of a family of tasks started an episode. Other tasks have no such event."""

    round: int
    env: int
    structure: str
    """Name of the structure."""
    settings: dict[str, float | str] = {}
    """Settings of its context, keyed by name."""


class EpisodeEnded(Event, frozen=True, kw_only=True, tag=True):
    """An env finished its episode."""

    round: int
    env: int
    score: float
    """Validation score after the last step."""
    best_score: float
    """Maximum validation score of the episode."""
    episode_return: float
    """Undiscounted sum of the rewards."""
    parameter_ratio: float
    """Parameters of host and seeds divided by those of the bare host, after the last step."""
    fossilized: int
    """Number of seeds that were fossilized in this episode."""
    culled: int
    """Number of seeds that were culled in this episode."""


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
    """Time at which it was written, in seconds since the epoch; present if the run was restored from it."""
    origin: str
    """Reason for it: schedule, end, keyboard, signal, command line, dashboard (it crashed or lost its terminal), fault
    (a step failed; this is the start of its round), or restore (the run was restored from this checkpoint)."""


class Logged(Event, frozen=True, kw_only=True, tag=True):
    """A log message."""

    severity: Severity
    """info, warning, or error."""
    text: str
    """Message in one sentence."""


class RunEnded(Event, frozen=True, kw_only=True, tag=True):
    """The run ended. This is its last event, unless the process was killed."""

    outcome: str
    """done, stopped, or failed."""
    reason: str | None = None
    """Reason for the end; absent if all rounds were completed."""


EnvEvent: TypeAlias = (
    EpisodeStarted
    | EnvStepped
    | SeedMoved
    | GateRefused
    | GateOpened
    | GovernorRolledBack
    | EpisodeEnded
    | DecisionExplained
)
"""Union of the events that concern one env."""

AnyEvent: TypeAlias = (
    RunStarted
    | RoundStarted
    | EpisodeStarted
    | EnvStepped
    | SeedMoved
    | GateRefused
    | GateOpened
    | PolicyUpdated
    | DeviceSampled
    | PhaseTimed
    | AnomalyFound
    | AnomalyJoined
    | AnomalyLeft
    | AnomalyEnded
    | GovernorRolledBack
    | EpisodeEnded
    | CheckpointSaved
    | ControlRequested
    | DecisionExplained
    | Paused
    | Resumed
    | Logged
    | RunEnded
)
