"""The events of a run: everything that a run says about itself.

Every event is one line of JSON with a `type`, a sequence number `seq` (from 1, without gaps) and a wall-clock `time`
in seconds since the epoch. Rounds and steps are counted from 1, as people count them; envs and slots from 0, as they
index arrays. Accuracies, shares and alphas are fractions of 1; durations are seconds; sizes are bytes.

*Absent* and *not finite* are two different things. What was not measured is `None`, and is left out of the JSON.
A measured value that is not finite is written as the string "NaN", "Infinity" or "-Infinity", as protobuf's JSON does.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from esper.telemetry.event_parts import GateCheck as GateCheck
from esper.telemetry.event_parts import HeadChoice as HeadChoice
from esper.telemetry.event_parts import HeadReading as HeadReading
from esper.telemetry.event_parts import SlotReading as SlotReading

SCHEMA_VERSION = 1
"""Raised when a field or an event is removed or changes its meaning; new ones do not need it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="type"):
    """One telemetry record. The hub numbers and dates it when it is emitted."""

    seq: int = 0
    """Sequence number in the run, from 1, without gaps."""
    time: float = 0.0
    """Wall clock, seconds since the epoch, to the millisecond."""


class RunStarted(Event, frozen=True, kw_only=True, tag=True):
    """The first event of a run, and of each process that goes on with it: what it is, and how it is laid out."""

    run: str
    """Name of the run: its directory under the telemetry directory."""
    task: str
    """What the hosts learn."""
    policy: str
    """Who grows the networks."""
    rounds: int
    """Rounds in the run."""
    steps: int
    """Steps in an episode."""
    slots: list[str]
    """Names of the slots, in the order of the forward pass."""
    lanes: list[str]
    """For each env, the device of its lane: `lanes[3] == "cuda:1"`."""
    seed: int
    """Of everything random."""
    host_parameters: int
    """Parameters of a host before it grows."""
    batches: int | None = None
    """Batches in one epoch of an env."""
    growth_interval: int | None = None
    """Clean batches after which a loss scale doubles; absent without loss scaling."""
    versions: dict[str, str]
    """Versions of esper-sanctum, Python and torch."""
    config: dict[str, Any] = {}
    """The resolved configuration, as in `run.json`."""


class RoundStarted(Event, frozen=True, kw_only=True, tag=True):
    """Every env was reset to a fresh host."""

    round: int


class EnvStepped(Event, frozen=True, kw_only=True, tag=True):
    """One env trained one epoch and was validated."""

    round: int
    step: int
    env: int
    op: str
    """What the policy chose: wait, germinate, advance, set_alpha, cull or fossilize."""
    target: str | None = None
    """Name of the slot that the op was applied to."""
    train_loss: float
    """Mean cross-entropy over the epoch, nats."""
    train_accuracy: float
    """Over the epoch."""
    loss: float
    """Mean cross-entropy on the validation split, nats."""
    accuracy: float
    """On the validation split."""
    reward: float
    """In units of validation accuracy."""
    reward_parts: dict[str, float]
    """Components of the reward; they sum to it."""
    value: float | None = None
    """The critic's estimate before the step, in units of return; absent for policies without a critic."""
    op_probability: float | None = None
    """Probability that the policy gave to the op; absent for policies that are not stochastic."""
    op_probabilities: dict[str, float] = {}
    """By op, the probability of each legal one, to four decimals; empty for policies that are not stochastic."""
    decision: dict[str, HeadChoice] = {}
    """By head, what was chosen beside the op: only the heads that the op uses. Probabilities to four decimals."""
    grad_norm: float
    """Mean L2 norm of the host's gradient over the epoch, before clipping."""
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host."""
    loss_scale: float | None = None
    """The loss scaler's scale; absent where there is no scaler."""
    growth_tracker: int | None = None
    """Clean batches since the scale last changed; at `RunStarted.growth_interval` it doubles. Absent as the scale."""
    skipped: dict[str, int] = {}
    """Optimizer steps skipped for non-finite gradients in this epoch, by owner (host or slot); only those with any."""
    lost: int = 0
    """Batches of this epoch that taught nothing, since a gradient of any owner was not finite under loss scaling."""
    slots: list[SlotReading]
    """In the order of `RunStarted.slots`."""


class SeedMoved(Event, frozen=True, kw_only=True, tag=True):
    """A seed went from one stage of its lifecycle to another."""

    round: int
    step: int
    env: int
    slot: str
    before: str
    """Stage that it left."""
    after: str
    """Stage that it reached."""
    blueprint: str | None = None
    """Architecture of the seed; absent where there is none."""
    reason: str
    """Why: the op that asked for it, or the timer or gate that let it through."""


class _GateEvent(Event, frozen=True, kw_only=True):
    round: int
    step: int
    env: int
    slot: str
    gate: str
    """G1, G2, G3 or G5."""
    checks: list[GateCheck]
    """All conditions of the gate, those that hold too."""


class GateRefused(_GateEvent, frozen=True, kw_only=True, tag=True):
    """A gate began to hold a seed back, or holds it back for another reason than before."""


class GateOpened(_GateEvent, frozen=True, kw_only=True, tag=True):
    """A gate that held a seed back does so no more, and the seed has yet to move on."""


class PolicyUpdated(Event, frozen=True, kw_only=True, tag=True):
    """The policy learned from a round."""

    round: int
    policy_loss: float
    """Clipped surrogate, mean over the minibatches."""
    value_loss: float
    """Of the critic, mean over the minibatches: half the squared error, in variances of the returns."""
    entropy: float
    """Mean normalised entropy over the relevant heads."""
    kl: float
    """Estimate of KL(old || new), mean(ratio − 1 − log ratio), nats."""
    clip_fraction: float
    """Share of the probability ratios that were clipped."""
    explained_variance: float | None = None
    """1 − var(returns − values) / var(returns); absent when the returns do not vary."""
    grad_norm: float
    """Global L2 norm, mean over the minibatches, before clipping."""
    learning_rate: float
    """Of this update."""
    minibatches: int
    """Optimizer steps taken."""
    stopped_early: bool
    """The KL limit ended the update before its last epoch."""
    episode_return: float
    """Mean over the envs, undiscounted."""
    heads: dict[str, HeadReading]
    """By name of the head."""


class DeviceSampled(Event, frozen=True, kw_only=True, tag=True):
    """State of one device. For a CPU lane, memory is that of the run's processes, and of the machine."""

    device: str
    """Name of the lane: `cuda:0`, `cpu:1`."""
    envs: int
    """Envs that live on it."""
    active: int | None = None
    """Those of them that trained in this step: an env that broke down sits out. Absent where lanes share their envs."""
    busy: float | None = None
    """Share of the step that the lane spent working."""
    allocated: int | None = None
    """CUDA: held by live tensors. CPU: resident in the run's processes, or a rank's; what they share counts once."""
    reserved: int | None = None
    """CUDA: held by the caching allocator."""
    used: int | None = None
    """In use on the device or machine, by anyone."""
    total: int | None = None
    """Size of the memory."""
    utilisation: float | None = None
    """Share of the time that the device was busy, by its driver."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    scale_min: float | None = None
    """Least loss scale among the envs of the device; absent without loss scaling."""
    scale_max: float | None = None
    """Greatest of them."""
    owners: dict[str, int] = {}
    """Bytes of live tensors by owner: hosts and seeds (parameters, gradients and buffers) and optimizers of this
    device's envs; policy (its experience and optimizer too) and data where they are on it. What all lanes of one CPU
    share counts to the first of them."""


class PhaseTimed(Event, frozen=True, kw_only=True, tag=True):
    """Where the time since the last went. The update and checkpoint of a round count to the first step of the next."""

    round: int
    step: int
    wall: float
    """Seconds in all."""
    phases: dict[str, float]
    """Seconds by phase; in `other`, lanes wait for each other, or nothing was measured."""


class AnomalyFound(Event, frozen=True, kw_only=True, tag=True):
    """A value left the range that the rule table in `anomalies.py` allows."""

    rule: str
    """Name of the rule."""
    severity: str
    """warning or error."""
    where: str
    """What it happened to: `env 7`, `head op`, `cuda:1`."""
    env: int | None = None
    """Env that it is about; absent where it is about none."""
    value: float
    """What was measured."""
    threshold: float | None = None
    """What the rule allows, in the same unit; absent where any such value is an anomaly."""
    text: str
    """One sentence for people."""


class AnomalyEnded(Event, frozen=True, kw_only=True, tag=True):
    """A value came back into the range that a rule allows. With a fresh host, those of an env end without a word."""

    rule: str
    """Name of the rule, as in AnomalyFound."""
    where: str
    """What it had happened to, as there."""
    env: int | None = None
    """Env that it was about; absent where it was about none."""


class GovernorRolledBack(Event, frozen=True, kw_only=True, tag=True):
    """The governor took an env back to its last good snapshot; the env sits out the rest of the round."""

    round: int
    step: int
    env: int
    reason: str
    """What was wrong, for people: the end of a sentence that begins with the env."""
    value: float
    """What was measured."""
    threshold: float | None = None
    """What it had to keep to; absent where it had only to be finite."""
    penalty: float = 0.0
    """Charged for it, in units of accuracy: a part of the step's reward."""
    culled: list[str] = []
    """Slots whose seed was removed."""


class EpisodeEnded(Event, frozen=True, kw_only=True, tag=True):
    """One env finished its episode."""

    round: int
    env: int
    accuracy: float
    """On the validation split, at the end."""
    best_accuracy: float
    """Greatest of its steps."""
    episode_return: float
    """Sum of its rewards, undiscounted."""
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host, at the end."""
    fossilized: int
    """Seeds made permanent in this episode."""
    culled: int
    """Seeds removed in this episode."""


class CheckpointSaved(Event, frozen=True, kw_only=True, tag=True):
    """A checkpoint is on disk, whole and verified. `round` and `step` are the last that were completed."""

    round: int
    step: int
    path: str
    """Its directory."""
    bytes: int
    """Size of its files."""
    accuracy: float | None = None
    """Median over the envs of the validation accuracy measured last, a share; absent before any was."""
    seconds: float | None = None
    """What it took to write; absent where it was found on disk, by a run that goes on from it."""
    written: float | None = None
    """When it was written, where it was found: seconds since the epoch."""
    origin: str
    """Who asked: schedule, end, keyboard, signal, command line; dashboard, where that broke down or its terminal is
    gone; fault, where a step has failed and this is the beginning of its round; restore, where it was found."""


class ControlRequested(Event, frozen=True, kw_only=True, tag=True):
    """The engine has taken a request in. What it does about it is told by what follows."""

    kind: str
    """pause, resume, step, checkpoint, restore, stop or abandon."""
    origin: str
    """Who asked: keyboard, signal or dashboard; `attach USER@HOST PID` for an attached viewer."""
    path: str | None = None
    """restore: the checkpoint to go back to."""
    ignored: str | None = None
    """Why nothing comes of it; absent where something does."""


class Paused(Event, frozen=True, kw_only=True, tag=True):
    """The engine holds at a step boundary; or in the midst of a step that has failed."""

    round: int
    """Of the last step completed."""
    step: int
    origin: str
    """Who asked, as in `CheckpointSaved`; `engine` where the run cannot go on by itself."""
    reason: str | None = None
    """Why it cannot: a sentence for people. None where somebody asked."""
    cause: str | None = None
    """What of it: fault, a step is half done; unsaved, the same, and the beginning of its round cannot be saved;
    recording, no event can be written, and the run goes on by itself when one can; checkpoint, the one that was to end
    the run cannot be written. None where somebody asked."""


class Resumed(Event, frozen=True, kw_only=True, tag=True):
    """The engine goes on: from a pause, or, where `checkpoint` is given, from that checkpoint."""

    round: int
    step: int
    origin: str
    """Who asked, as in `CheckpointSaved`."""
    checkpoint: str | None = None
    """Its directory; absent after a pause."""


class Logged(Event, frozen=True, kw_only=True, tag=True):
    """A message for people."""

    severity: str
    """info, warning or error."""
    text: str
    """One sentence."""


class RunEnded(Event, frozen=True, kw_only=True, tag=True):
    """The last event of a run, unless it was killed."""

    outcome: str
    """done, stopped or failed."""
    reason: str | None = None
    """Why; absent when all rounds were done."""


EnvEvent: TypeAlias = EnvStepped | SeedMoved | GateRefused | GateOpened | GovernorRolledBack | EpisodeEnded
"""Events of one env."""

AnyEvent: TypeAlias = (
    RunStarted
    | RoundStarted
    | EnvStepped
    | SeedMoved
    | GateRefused
    | GateOpened
    | PolicyUpdated
    | DeviceSampled
    | PhaseTimed
    | AnomalyFound
    | AnomalyEnded
    | GovernorRolledBack
    | EpisodeEnded
    | CheckpointSaved
    | ControlRequested
    | Paused
    | Resumed
    | Logged
    | RunEnded
)
