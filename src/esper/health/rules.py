"""The anomaly rules and their thresholds, one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from statistics import median
from typing import Any, NamedTuple

from esper.domain import Rule
from esper.health.rule_context import RuleContext
from esper.telemetry import events as ev
from esper.telemetry.health_stats import MemoryHealth, memory_name, non_finite_update

DEAD_GRAD_NORM = 1e-8
"""A head that learns less than this in an update does not learn."""
KL_SPIKE = 0.1
"""Nats. Clipped updates of a healthy policy stay below a fifth of it."""
ENTROPY_FLOOR = 0.05
"""Share of the greatest entropy below which a head has stopped to explore."""
EXPLODING_FACTOR = 10.0
"""Times the median of its earlier norms in the episode: a gradient that explodes, not one that is merely large."""
EXPLODING_MIN_NORM = 1.0
"""Norm up to which nothing explodes: that to which, unless told otherwise, gradients are clipped."""
EXPLODING_MIN_SAMPLES = 3
"""Earlier norms that the median needs; `EpisodeSoFar.low` bounds it from three on."""
MAX_CONSECUTIVE_SKIPS = 3
"""Steps in a row that lost a batch to an overflow: the first search for a scale takes one or two."""
STALLED_STEPS = 10
"""Steps without a better accuracy."""
STALLED_MIN_GAP = 0.1
"""And so far below the median of the other envs, as a share: an env that is done is not stalled."""
MAX_SCALE_RATIO = 64.0
"""Greatest over least loss scale on one device: six halvings apart, its envs no longer train in the same numbers."""
MIN_LOSS_SCALE = 1.0
"""Loss scale below which scaling does harm: it makes gradients smaller, and each further halving loses precision."""
MAX_SCALE_OSCILLATIONS = 2
"""Times that a loss scale grew only to fall again, among its last changes."""
MAX_MEMORY_FRACTION = 0.9
"""Share of a device's vitals."""
MEMORY_GROWTH_ROUNDS = 5
"""Rounds in a row in which the memory grew."""
MIN_MEMORY_GROWTH_FRACTION = 0.01
"""Share of a device's memory by which it grew over those rounds: less is the noise of an allocator."""
STRAGGLER_RATIO = 1.5
"""Times the time per env of the median lane."""
STRAGGLING_STEPS = 10
"""Steps over which a lane's time is averaged."""
STALE_AFTER_STEPS = 10.0
"""Times a usual step without a word from the engine."""
STALE_MIN_S = 5.0
"""And at least so long: quick steps have their hiccups."""


def check_stale(cadence: float | None, age: float) -> ev.AnomalyFound | None:
    """The one rule that is about the dashboard's own clock, so that no event can tell of it.

    Args:
        cadence: seconds of a usual step; None before the first.
        age: seconds since the last event came.
    """
    limit = max(STALE_AFTER_STEPS * cadence, STALE_MIN_S) if cadence is not None else math.inf
    if age <= limit:
        return None
    return ev.AnomalyFound(
        rule=Rule.STALE_TELEMETRY.value,
        severity="warning",
        where="engine",
        value=age,
        threshold=limit,
        text=f"nothing was heard of the engine for {age:.0f} s, and a step usually takes {cadence:.2g} s",
    )


_NON_FINITE_RULES = {
    "loss": Rule.NON_FINITE_LOSS,
    "accuracy": Rule.NON_FINITE_ACCURACY,
    "gradient": Rule.NON_FINITE_GRADIENT,
}
"""Keyed by a word in the name of the quantity."""


def _env_not_finite(event: ev.EnvStepped, evidence: RuleContext) -> Iterable[ev.AnomalyFound]:
    if not evidence.not_finite:
        return ()
    return [
        ev.AnomalyFound(
            rule=next(rule.value for word, rule in _NON_FINITE_RULES.items() if word in what),
            severity="error",
            where=f"env {event.env}",
            env=event.env,
            value=value,
            text=f"env {event.env:02d}: {what} is {_word(value)} at round {event.round} step {event.step}",
        )
        for what, value in evidence.not_finite
    ]


def _warning(event: ev.EnvStepped, rule: Rule, value: float, threshold: float, text: str) -> ev.AnomalyFound:
    """Of an env, which `text` does not name."""
    return ev.AnomalyFound(
        rule=rule.value,
        severity="warning",
        where=f"env {event.env}",
        env=event.env,
        value=value,
        threshold=float(threshold),
        text=f"env {event.env:02d}: {text}",
    )


def explosion_limit(earlier: Sequence[float | None], norm: float | None) -> float | None:
    """The norm that `norm` should not exceed, if it does: a multiple of the median of those before it; else None."""
    if norm is None or not math.isfinite(norm):
        return None
    known = [value for value in earlier if value is not None and math.isfinite(value)]
    if len(known) < EXPLODING_MIN_SAMPLES:
        return None
    usual = median(known)
    limit = max(EXPLODING_FACTOR * usual, EXPLODING_MIN_NORM)
    return limit if usual > 0 and limit < norm else None


def _exploding_norm(event: ev.EnvStepped, evidence: RuleContext) -> Iterable[ev.AnomalyFound]:
    low = evidence.episodes[event.env].second_lowest_norms
    found = _exploding_owner(event, evidence, 0, event.grad_norm) if event.grad_norm > EXPLODING_FACTOR * low[0] else ()
    for owner, slot in enumerate(event.slots, 1):
        if slot.grad_norm is not None and slot.grad_norm > EXPLODING_FACTOR * low[owner]:
            found = (*found, *_exploding_owner(event, evidence, owner, slot.grad_norm))
    return found


def _exploding_owner(event: ev.EnvStepped, evidence: RuleContext, owner: int, norm: float) -> Iterable[ev.AnomalyFound]:
    """`owner`: 0 is the host, the others are the slots."""
    before = evidence.health.envs[event.env].episode[:-1]
    name, earlier = "the host", [vital.grad_norm for vital in before]
    if owner:
        slot = event.slots[owner - 1]
        name = evidence.health.describe_seed(event, owner - 1)
        # Only of this seed: the norms of the one before it in the slot say nothing of it.
        earlier = [vital.slots[owner - 1] for vital in before[-slot.age :] if slot.age]
    limit = explosion_limit(earlier, norm)
    if limit is None:
        return ()
    text = f"the gradient of {name} is {norm:.3g} at round {event.round} step {event.step}, "
    text += f"more than {EXPLODING_FACTOR:.0f} times its median"
    return (_warning(event, Rule.EXPLODING_GRADIENT, norm, limit, text),)


def _repeated_skips(event: ev.EnvStepped, evidence: RuleContext) -> Iterable[ev.AnomalyFound]:
    if not event.lost:
        return ()
    recent = evidence.health.envs[event.env].recent[-MAX_CONSECUTIVE_SKIPS:]
    if len(recent) < MAX_CONSECUTIVE_SKIPS or not all(vital.lost for vital in recent):
        return ()
    lost = sum(vital.lost for vital in recent)
    text = f"overflows cost it {lost} batches in {MAX_CONSECUTIVE_SKIPS} steps in a row"
    return (_warning(event, Rule.REPEATED_SKIPS, lost, MAX_CONSECUTIVE_SKIPS, text),)


def _stalled(event: ev.EnvStepped, evidence: RuleContext) -> Iterable[ev.AnomalyFound]:
    if evidence.episodes[event.env].steps_since_best < STALLED_STEPS:
        return ()
    middle = evidence.accuracies.median_of_others(event.env)
    if middle is None or not event.accuracy < middle - STALLED_MIN_GAP:
        return ()
    course = [vital.accuracy for vital in evidence.health.envs[event.env].episode]
    if len(course) <= STALLED_STEPS or max(course[-STALLED_STEPS:]) > max(course[:-STALLED_STEPS]):
        return ()
    text = f"no better for {STALLED_STEPS} steps at {event.accuracy:.1%}, the median of the others is {middle:.1%}"
    return (_warning(event, Rule.STALLED_ENV, event.accuracy, middle - STALLED_MIN_GAP, text),)


def _rolled_back(event: ev.GovernorRolledBack, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    yield ev.AnomalyFound(
        rule=Rule.GOVERNOR_ROLLBACK.value,
        severity="error",
        where=f"env {event.env}",
        env=event.env,
        value=event.value,
        threshold=event.threshold,
        text=f"env {event.env:02d}: rolled back at round {event.round} step {event.step}: {event.reason}",
    )


def _update_not_finite(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    for what, value in non_finite_update(event):
        head = what.partition(" of head ")[2]
        yield ev.AnomalyFound(
            rule=(Rule.NON_FINITE_HEAD if head else Rule.NON_FINITE_UPDATE).value,
            severity="error",
            where=f"head {head}" if head else what.removeprefix("the "),
            value=value,
            text=f"{what} is {_word(value)} in round {event.round}",
        )


def _kl_spike(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if not event.kl <= KL_SPIKE:  # a NaN is one, too
        yield ev.AnomalyFound(
            rule=Rule.KL_SPIKE.value,
            severity="warning" if math.isfinite(event.kl) else "error",
            where="policy",
            value=event.kl,
            threshold=KL_SPIKE,
            text=f"the policy moved by {_word(event.kl)} nats in round {event.round}, more than {KL_SPIKE}",
        )


def _head_gradient(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    for name, head in event.heads.items():
        forced = head.entropy is None  # it never had a choice, so that there is nothing to learn
        if not forced and (head.grad_norm is None or head.grad_norm < DEAD_GRAD_NORM):
            reached = "no gradient" if head.grad_norm is None else f"a gradient of only {head.grad_norm:.1e}"
            yield ev.AnomalyFound(
                rule=Rule.DEAD_HEAD.value,
                severity="warning",
                where=f"head {name}",
                value=head.grad_norm or 0.0,
                threshold=DEAD_GRAD_NORM,
                text=f"head {name} had choices in round {event.round}, yet {reached} reached it",
            )


def _head_entropy(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    for name, head in event.heads.items():
        if head.entropy is not None and not head.entropy >= ENTROPY_FLOOR:
            yield ev.AnomalyFound(
                rule=Rule.ENTROPY_COLLAPSE.value,
                severity="warning",
                where=f"head {name}",
                value=head.entropy,
                threshold=ENTROPY_FLOOR,
                text=f"head {name} hardly explores: entropy {_word(head.entropy)} in round {event.round}, "
                f"below {ENTROPY_FLOOR}",
            )


def memory_growth(course: MemoryHealth) -> float | None:
    """Bytes a round by which a memory grew in each of the last `MEMORY_ROUNDS`; None where it did not, or by noise."""
    grows = course.growth_per_round(MEMORY_GROWTH_ROUNDS)
    noise = MIN_MEMORY_GROWTH_FRACTION * (course.total or 0)
    return grows if grows is not None and grows * MEMORY_GROWTH_ROUNDS > noise else None


def predict_full_round(course: MemoryHealth) -> int | None:
    """Number of the round in which a memory that grows will be full; None where it does not, or nobody knows."""
    grows = memory_growth(course)
    now = course.points[-1] if course.points else None
    if grows is None or not course.total or now is None or now.used is None:
        return None
    return now.round + math.ceil(max(course.total - now.used, 0) / grows)


def _memory_nearly_full(event: ev.DeviceSampled, evidence: RuleContext) -> Iterator[ev.AnomalyFound]:
    if not evidence.health.is_memory_reporter(event.device):
        return
    if event.used is not None and event.total and event.used / event.total > MAX_MEMORY_FRACTION:
        share = event.used / event.total
        yield ev.AnomalyFound(
            rule=Rule.MEMORY_NEARLY_FULL.value,
            severity="warning",
            where=event.device,
            value=share,
            threshold=MAX_MEMORY_FRACTION,
            text=f"{event.device}: {share:.0%} of its memory is in use, more than {MAX_MEMORY_FRACTION:.0%}",
        )


def _memory_grows(event: ev.DeviceSampled, evidence: RuleContext) -> Iterator[ev.AnomalyFound]:
    course = evidence.health.memories[memory_name(event.device)]
    grows = memory_growth(course)
    if grows is not None and course.total and evidence.health.is_memory_reporter(event.device):
        full = predict_full_round(course)
        yield ev.AnomalyFound(
            rule=Rule.MEMORY_GROWS.value,
            severity="warning",
            where=event.device,
            value=grows * MEMORY_GROWTH_ROUNDS / course.total,
            threshold=MIN_MEMORY_GROWTH_FRACTION,
            text=f"{event.device}: memory grew by {grows / 2**20:.0f} MiB a round "
            f"in each of {MEMORY_GROWTH_ROUNDS} rounds"
            + (f"; at this rate it is full in round {full}" if full is not None else ""),
        )


def _scales_diverge(event: ev.DeviceSampled, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if event.scale_min is None or not event.scale_max:
        return
    spread = event.scale_max / event.scale_min if event.scale_min else math.inf
    if spread > MAX_SCALE_RATIO:
        yield ev.AnomalyFound(
            rule=Rule.LOSS_SCALES_DIVERGE.value,
            severity="warning",
            where=event.device,
            value=spread,
            threshold=MAX_SCALE_RATIO,
            text=f"{event.device}: loss scales of its envs are a factor of {spread:.0f} apart, "
            f"over {MAX_SCALE_RATIO:.0f}",
        )


def _scale_too_small(event: ev.DeviceSampled, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if event.scale_min is not None and not event.scale_min >= MIN_LOSS_SCALE:
        yield ev.AnomalyFound(
            rule=Rule.LOSS_SCALE_BELOW_1.value,
            severity="warning",
            where=event.device,
            value=event.scale_min,
            threshold=MIN_LOSS_SCALE,
            text=f"{event.device}: the least of its loss scales is {_word(event.scale_min)}; below {MIN_LOSS_SCALE:g}, "
            "each halving only loses precision",
        )


def _straggling_lane(event: ev.DeviceSampled, evidence: RuleContext) -> Iterator[ev.AnomalyFound]:
    mine = evidence.lane_load(event.device, STRAGGLING_STEPS)
    if mine is None:
        return
    loads = [evidence.lane_load(lane, STRAGGLING_STEPS) for lane in evidence.health.lanes if lane != event.device]
    usual = median([load for load in loads if load is not None] or [0.0])
    if usual > 0 and mine > STRAGGLER_RATIO * usual:
        yield ev.AnomalyFound(
            rule=Rule.STRAGGLING_LANE.value,
            severity="warning",
            where=event.device,
            value=mine / usual,
            threshold=STRAGGLER_RATIO,
            text=f"{event.device}: it needs {mine / usual:.1f} times as long for an env as the other lanes, "
            f"over {STRAGGLING_STEPS} steps",
        )


def _word(value: float) -> str:
    """A value as people write it."""
    if math.isfinite(value):
        return f"{value:.3g}"
    return "NaN" if math.isnan(value) else "infinite"


class Scope(Enum):
    """Kind of object that a rule checks. Each scope belongs to one event type, which starts and ends its anomalies."""

    ENV = "env"
    """One env, at each of its steps."""
    GOVERNOR = "governor"
    """Rollbacks of one env."""
    LANE = "lane"
    """One lane, at each sample of its device."""
    POLICY = "policy"
    """The policy, at each update."""


class EventRules(NamedTuple):
    """Rules of one event type."""

    scope: Scope
    rules: frozenset[Rule]
    """Rules of the anomalies that `checks` return."""
    checks: tuple[Callable[[Any, RuleContext], Iterable[ev.AnomalyFound]], ...]


RULES_BY_EVENT: dict[type[ev.Event], EventRules] = {
    ev.EnvStepped: EventRules(
        Scope.ENV,
        frozenset({*_NON_FINITE_RULES.values(), Rule.EXPLODING_GRADIENT, Rule.REPEATED_SKIPS, Rule.STALLED_ENV}),
        (_env_not_finite, _exploding_norm, _repeated_skips, _stalled),
    ),
    ev.GovernorRolledBack: EventRules(Scope.GOVERNOR, frozenset({Rule.GOVERNOR_ROLLBACK}), (_rolled_back,)),
    ev.PolicyUpdated: EventRules(
        Scope.POLICY,
        frozenset({Rule.NON_FINITE_HEAD, Rule.NON_FINITE_UPDATE, Rule.KL_SPIKE, Rule.DEAD_HEAD, Rule.ENTROPY_COLLAPSE}),
        (_update_not_finite, _kl_spike, _head_gradient, _head_entropy),
    ),
    ev.DeviceSampled: EventRules(
        Scope.LANE,
        frozenset(
            {
                Rule.MEMORY_NEARLY_FULL,
                Rule.MEMORY_GROWS,
                Rule.LOSS_SCALES_DIVERGE,
                Rule.LOSS_SCALE_BELOW_1,
                Rule.STRAGGLING_LANE,
            }
        ),
        (_memory_nearly_full, _memory_grows, _scales_diverge, _scale_too_small, _straggling_lane),
    ),
}
SCOPE_BY_RULE: dict[str, Scope] = {rule: entry.scope for entry in RULES_BY_EVENT.values() for rule in entry.rules}
"""Scope of every rule except `STALE_TELEMETRY`, which the dashboard checks without an event."""
