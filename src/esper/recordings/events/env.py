"""Events of one env."""

from __future__ import annotations

import msgspec

from esper.common.domain import StageName
from esper.recordings.events.base import Event


class EpisodeStarted(Event, frozen=True, kw_only=True, tag=True):
    """An env of a family of tasks started an episode. Other tasks have no such event."""

    round: int
    env: int
    structure: str
    """Name of the structure."""
    settings: dict[str, float | str] = {}
    """Settings of its context, keyed by name."""


class HeadChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Choice of one policy head."""

    choice: str
    """Name of a slot, blueprint, style, or curve; a number of steps; or an alpha."""
    probability: float | None = None
    """Probability of the choice, given the choices of the earlier heads; absent if the policy is deterministic."""


class SlotReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """State of one slot of an env at the end of a step."""

    stage: StageName
    """dormant, germinated, training, blending, probationary, fossilized, culled, or embargoed."""
    blueprint: str | None = None
    """Blueprint of the seed; absent if the slot is empty."""
    blend: str | None = None
    """Formula that blends the seed into the host: add, multiply or gate; absent if the slot is empty."""
    alpha: float | None = None
    """Blending weight of the seed's output, 0 to 1; absent before the blending stage and if the slot is empty."""
    age: int = 0
    """Steps since the seed germinated."""
    parameters: int = 0
    """Parameters of the seed; 0 if the slot is empty."""
    grad_norm: float | None = None
    """L2 norm of the seed's gradient before clipping, mean over the epoch; absent if the seed did not train."""
    dependence: float | None = None
    """Validation score with all seeds minus the score without this one, with the opposite sign if less is better;
    absent if not measured."""
    dependence_se: float | None = None
    """Standard error of the dependence, paired over the validation samples; absent if not measured."""
    shapley: float | None = None
    """Shapley value among the blended seeds; only at the end of an episode, and with `--counterfactual shapley`."""


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
    learning_rate: float | None = None
    """Learning rate of the host in the last batch of the epoch; absent if the host is frozen."""
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


class GateCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One condition of a gate."""

    name: str
    """Name of the condition."""
    passed: bool
    """True if the condition holds."""
    value: float | None = None
    """Measured value, in the unit of the condition; absent if nothing was measured."""
    threshold: float | None = None
    """Limit that the value is compared with, in the same unit."""


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


class EpisodeEnded(Event, frozen=True, kw_only=True, tag=True):
    """An env finished its episode."""

    round: int
    env: int
    score: float
    """Validation score after the last step."""
    best_score: float
    """Best validation score of the episode."""
    episode_return: float
    """Undiscounted sum of the rewards."""
    parameter_ratio: float
    """Parameters of host and seeds divided by those of the bare host, after the last step."""
    fossilized: int
    """Number of seeds that were fossilized in this episode."""
    culled: int
    """Number of seeds that were culled in this episode."""


class DecisionExplained(Event, frozen=True, kw_only=True, tag=True):
    """The policy explained its decision for an env, after a request."""

    round: int
    step: int
    env: int
    choices: dict[str, HeadChoice]
    """Choice of each head that the op uses, keyed by head."""
    without: dict[str, dict[str, float]]
    """Probabilities of the same choices after one group of features was replaced by its mean, or the memory by its
    initial state; keyed by group and head."""
