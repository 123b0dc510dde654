"""Anomaly rules of the policy and the lanes, rollbacks, and the table of all rules by event type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any, NamedTuple

from esper.config_anomalies import AnomalyConfig
from esper.domain import Rule
from esper.health.env_rules import (
    NON_FINITE_RULES,
    check_chance,
    check_dead_seeds,
    check_env_finite,
    check_gradient_norms,
    check_skips,
    check_stalls,
    format_value,
)
from esper.health.rule_context import RuleContext, Scope
from esper.telemetry import events as ev
from esper.telemetry.health_stats import MemoryHealth, memory_name, non_finite_update

MAX_SCALE_RATIO = 64.0
"""Maximum ratio of two loss scales on one device. At six halvings, its envs no longer train at similar precision."""
MIN_LOSS_SCALE = 1.0
"""Loss scale below which scaling does harm: it shrinks gradients, and each further halving loses precision."""
MAX_SCALE_OSCILLATIONS = 2
"""Oscillations of a loss scale, among its last changes, from which on the dashboard marks it."""
MEMORY_GROWTH_ROUNDS = 5
"""Consecutive rounds with growing memory that are an anomaly. The growth of the first rounds stops earlier."""
STRAGGLING_STEPS = 10
"""Steps over which the time per env is averaged."""
STALE_MIN_S = 5.0
"""Minimum duration without an event, in seconds, because short steps are irregular."""


def check_stale(cadence: float | None, age: float, limits: AnomalyConfig) -> ev.AnomalyFound | None:
    """Return an anomaly if the engine has not emitted an event for too long, else None.

    The dashboard calls this rule by its clock, because no event can trigger it.

    Args:
        cadence: Usual duration of a step in seconds; None before the first step.
        age: Seconds since the last event.
        limits: Thresholds of the run.
    """
    limit = max(limits.stale_steps * cadence, STALE_MIN_S) if cadence is not None else math.inf
    if age <= limit:
        return None
    return ev.AnomalyFound(
        rule=Rule.STALE_TELEMETRY.value,
        severity="warning",
        where="engine",
        value=age,
        threshold=limit,
        text=f"no event from the engine for {age:.0f} s; a step usually takes {cadence:.2g} s",
    )


def _check_rollback(event: ev.GovernorRolledBack, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    yield ev.AnomalyFound(
        rule=Rule.GOVERNOR_ROLLBACK.value,
        severity="error",
        where=f"env {event.env}",
        env=event.env,
        value=event.value,
        threshold=event.threshold,
        text=f"env {event.env:02d}: rolled back at round {event.round} step {event.step}: {event.reason}",
    )


def _check_update_finite(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    for what, value in non_finite_update(event):
        head = what.partition(" of head ")[2]
        yield ev.AnomalyFound(
            rule=(Rule.NON_FINITE_HEAD if head else Rule.NON_FINITE_UPDATE).value,
            severity="error",
            where=f"head {head}" if head else what.removeprefix("the "),
            value=value,
            text=f"{what} is {format_value(value)} in round {event.round}",
        )


def _check_kl(event: ev.PolicyUpdated, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limit = context.limits.kl
    if not event.kl <= limit * context.factor(Rule.KL_SPIKE, "policy"):  # so that a NaN is an anomaly, too
        yield ev.AnomalyFound(
            rule=Rule.KL_SPIKE.value,
            severity="warning" if math.isfinite(event.kl) else "error",
            where="policy",
            value=event.kl,
            threshold=limit,
            text=f"the KL of the policy update is {format_value(event.kl)} nats in round {event.round}, "
            f"more than {limit:g}",
        )


def _check_head_gradients(event: ev.PolicyUpdated, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limit = context.limits.dead_gradient
    for name, head in event.heads.items():
        low = limit / context.factor(Rule.DEAD_HEAD, f"head {name}")
        forced = head.entropy is None  # no decision had a choice, so the head has nothing to learn
        if not forced and (head.grad_norm is None or head.grad_norm < low):
            gradient = "no gradient" if head.grad_norm is None else f"a gradient of only {head.grad_norm:.1e}"
            yield ev.AnomalyFound(
                rule=Rule.DEAD_HEAD.value,
                severity="warning",
                where=f"head {name}",
                value=head.grad_norm or 0.0,
                threshold=limit,
                text=f"head {name} received {gradient} in round {event.round}, although it had choices",
            )


def _check_head_entropies(event: ev.PolicyUpdated, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limit = context.limits.entropy
    for name, head in event.heads.items():
        low = limit / context.factor(Rule.ENTROPY_COLLAPSE, f"head {name}")
        if head.entropy is not None and not head.entropy >= low:
            yield ev.AnomalyFound(
                rule=Rule.ENTROPY_COLLAPSE.value,
                severity="warning",
                where=f"head {name}",
                value=head.entropy,
                threshold=limit,
                text=f"head {name} hardly explores: entropy {format_value(head.entropy)} in round {event.round}, "
                f"below {limit:g}",
            )


def memory_growth(memory: MemoryHealth, fraction: float) -> float | None:
    """Return the growth of a memory in bytes per round over the last `MEMORY_GROWTH_ROUNDS` rounds.

    None if the memory did not grow in each of them, or if it grew by at most `fraction` of its earlier size.
    """
    growth = memory.growth_per_round(MEMORY_GROWTH_ROUNDS)
    if growth is None:
        return None
    before = memory.rounds[-MEMORY_GROWTH_ROUNDS - 2][1]
    return growth if growth * MEMORY_GROWTH_ROUNDS > fraction * before else None


def predict_full_round(memory: MemoryHealth, fraction: float) -> int | None:
    """Return the round in which a growing memory will be full; None if it does not grow or its size is unknown."""
    growth = memory_growth(memory, fraction)
    last = memory.points[-1] if memory.points else None
    if growth is None or not memory.total or last is None or last.used is None:
        return None
    return last.round + math.ceil(max(memory.total - last.used, 0) / growth)


def is_nearly_full(fraction: float, limits: AnomalyConfig) -> bool:
    """Return True if this fraction of a memory in use makes it nearly full."""
    return fraction > limits.memory


def _check_memory_use(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    if not context.health.is_memory_reporter(event.device) or event.used is None or not event.total:
        return
    fraction, limit = event.used / event.total, context.limits.memory
    if is_nearly_full(fraction / context.factor(Rule.MEMORY_NEARLY_FULL, event.device), context.limits):
        yield ev.AnomalyFound(
            rule=Rule.MEMORY_NEARLY_FULL.value,
            severity="warning",
            where=event.device,
            value=fraction,
            threshold=limit,
            text=f"{event.device}: {fraction:.0%} of its memory is in use, more than {limit:.0%}",
        )


def _check_memory_growth(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    """Find a memory that grows, unless it will not be full before the last round."""
    memory = context.health.memories[memory_name(event.device)]
    limit = context.limits.memory_growth
    now = limit * context.factor(Rule.MEMORY_GROWS, event.device)
    growth = memory_growth(memory, now)
    if growth is None or not context.health.is_memory_reporter(event.device):
        return
    full_round, rounds = predict_full_round(memory, now), context.health.rounds
    # The forecast of one of several ranks does not know the growth of the others on its machine.
    is_forecast_reliable = not context.is_active(Rule.MEMORY_GROWS, event.device) and "/" not in event.device
    fits = full_round is not None and rounds is not None and full_round > rounds
    if not (is_forecast_reliable and fits):
        yield ev.AnomalyFound(
            rule=Rule.MEMORY_GROWS.value,
            severity="warning",
            where=event.device,
            value=growth * MEMORY_GROWTH_ROUNDS / memory.rounds[-MEMORY_GROWTH_ROUNDS - 2][1],
            threshold=limit,
            text=f"{event.device}: memory grew by {growth / 2**20:.0f} MiB per round "
            f"in the last {MEMORY_GROWTH_ROUNDS} rounds"
            + (f"; at this rate it is full in round {full_round}" if full_round is not None else ""),
        )


def _check_scale_ratio(event: ev.DeviceSampled, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if event.scale_min is None or not event.scale_max:
        return
    ratio = event.scale_max / event.scale_min if event.scale_min else math.inf
    if ratio > MAX_SCALE_RATIO:
        yield ev.AnomalyFound(
            rule=Rule.LOSS_SCALES_DIVERGE.value,
            severity="warning",
            where=event.device,
            value=ratio,
            threshold=MAX_SCALE_RATIO,
            text=f"{event.device}: loss scales of its envs differ by a factor of {ratio:.0f}, "
            f"more than {MAX_SCALE_RATIO:.0f}",
        )


def _check_scale_minimum(event: ev.DeviceSampled, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if event.scale_min is not None and not event.scale_min >= MIN_LOSS_SCALE:
        yield ev.AnomalyFound(
            rule=Rule.LOSS_SCALE_BELOW_1.value,
            severity="warning",
            where=event.device,
            value=event.scale_min,
            threshold=MIN_LOSS_SCALE,
            text=f"{event.device}: the minimum loss scale is {format_value(event.scale_min)}; "
            f"below {MIN_LOSS_SCALE:g}, each halving only loses precision",
        )


def _check_lane_load(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    load = context.lane_load(event.device, STRAGGLING_STEPS)
    if load is None:
        return
    others = [context.lane_load(lane, STRAGGLING_STEPS) for lane in context.health.lanes if lane != event.device]
    usual = median([other for other in others if other is not None] or [0.0])
    limit = context.limits.straggler_ratio
    if usual > 0 and load > limit * context.factor(Rule.STRAGGLING_LANE, event.device) * usual:
        yield ev.AnomalyFound(
            rule=Rule.STRAGGLING_LANE.value,
            severity="warning",
            where=event.device,
            value=load / usual,
            threshold=limit,
            text=f"{event.device} takes {load / usual:.1f}× as long per env as the median of the other lanes "
            f"(last {STRAGGLING_STEPS} steps)",
        )


class EventRules(NamedTuple):
    """Rules of one event type."""

    scope: Scope
    rules: tuple[Rule, ...]
    """Rules of the anomalies that `checks` return."""
    checks: tuple[Callable[[Any, RuleContext], Iterable[ev.AnomalyFound]], ...]


RULES_BY_EVENT: dict[type[ev.Event], EventRules] = {
    ev.EnvStepped: EventRules(
        Scope.ENV,
        (
            *NON_FINITE_RULES.values(),
            Rule.EXPLODING_GRADIENT,
            Rule.LOSS_ABOVE_CHANCE,
            Rule.DEAD_SEED,
            Rule.REPEATED_SKIPS,
        ),
        (check_env_finite, check_gradient_norms, check_chance, check_dead_seeds, check_skips),
    ),
    ev.RoundStarted: EventRules(Scope.ROUND, (Rule.STALLED_ENV,), (check_stalls,)),
    ev.GovernorRolledBack: EventRules(Scope.GOVERNOR, (Rule.GOVERNOR_ROLLBACK,), (_check_rollback,)),
    ev.PolicyUpdated: EventRules(
        Scope.POLICY,
        (Rule.NON_FINITE_HEAD, Rule.NON_FINITE_UPDATE, Rule.KL_SPIKE, Rule.DEAD_HEAD, Rule.ENTROPY_COLLAPSE),
        (_check_update_finite, _check_kl, _check_head_gradients, _check_head_entropies),
    ),
    ev.DeviceSampled: EventRules(
        Scope.LANE,
        (
            Rule.MEMORY_NEARLY_FULL,
            Rule.MEMORY_GROWS,
            Rule.LOSS_SCALES_DIVERGE,
            Rule.LOSS_SCALE_BELOW_1,
            Rule.STRAGGLING_LANE,
        ),
        (_check_memory_use, _check_memory_growth, _check_scale_ratio, _check_scale_minimum, _check_lane_load),
    ),
}
SCOPE_BY_RULE: dict[str, Scope] = {rule: entry.scope for entry in RULES_BY_EVENT.values() for rule in entry.rules}
"""Scope of every rule except `STALE_TELEMETRY`, which the dashboard checks without an event."""
