"""Anomaly rules: their thresholds, their checks, and the table of rules by event type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from esper.domain import Rule
from esper.health.rule_context import RuleContext, Scope
from esper.telemetry import events as ev
from esper.telemetry.health_stats import MemoryHealth, memory_name, non_finite_update

DEAD_GRAD_NORM = 1e-8
"""Gradient norm of a policy head below which the head is dead."""
KL_SPIKE = 0.1
"""Maximum KL divergence of an update, nats. Clipped updates of a healthy policy stay below a fifth of it."""
ENTROPY_FLOOR = 0.05
"""Normalised entropy, 0 to 1, below which a policy head has stopped exploring."""
EXPLODING_FACTOR = 10.0
"""Multiple of the median of the earlier norms in the episode above which a gradient explodes."""
EXPLODING_MIN_NORM = 1.0
"""Norm up to which no gradient counts as exploding: the default clipping norm."""
EXPLODING_MIN_SAMPLES = 3
"""Earlier norms that the median needs. `EpisodeExtremes.second_lowest_norms` is a lower bound of it from three on."""
MAX_CONSECUTIVE_SKIPS = 3
"""Consecutive steps with skipped batches that are an anomaly. The initial search for a loss scale takes one or two."""
STALLED_STEPS = 10
"""Steps without a better accuracy after which an env can be stalled."""
STALLED_MIN_GAP = 0.1
"""Minimum gap, in accuracy, of a stalled env to the median of the other envs: a converged env is not stalled."""
MAX_SCALE_RATIO = 64.0
"""Maximum ratio of two loss scales on one device. At six halvings, its envs no longer train at similar precision."""
MIN_LOSS_SCALE = 1.0
"""Loss scale below which scaling does harm: it shrinks gradients, and each further halving loses precision."""
MAX_SCALE_OSCILLATIONS = 2
"""Oscillations of a loss scale, among its last changes, from which on the dashboard marks it."""
MAX_MEMORY_FRACTION = 0.9
"""Fraction of device memory in use above which it counts as nearly full."""
MEMORY_GROWTH_ROUNDS = 5
"""Consecutive rounds with growing memory that are an anomaly."""
MIN_MEMORY_GROWTH_FRACTION = 0.01
"""Minimum growth over those rounds as a fraction of the device's memory. Less is allocator noise."""
STRAGGLER_RATIO = 1.5
"""Multiple of the median time per env of the other lanes above which a lane straggles."""
STRAGGLING_STEPS = 10
"""Steps over which the time per env is averaged."""
STALE_AFTER_STEPS = 10.0
"""Duration without an event, in usual steps, above which the engine is stale."""
STALE_MIN_S = 5.0
"""Minimum duration without an event, in seconds, because short steps are irregular."""


def check_stale(cadence: float | None, age: float) -> ev.AnomalyFound | None:
    """Return an anomaly if the engine has not emitted an event for too long, else None.

    The dashboard calls this rule by its clock, because no event can trigger it.

    Args:
        cadence: Usual duration of a step in seconds; None before the first step.
        age: Seconds since the last event.
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
        text=f"no event from the engine for {age:.0f} s; a step usually takes {cadence:.2g} s",
    )


_NON_FINITE_RULES = {
    "loss": Rule.NON_FINITE_LOSS,
    "accuracy": Rule.NON_FINITE_ACCURACY,
    "gradient": Rule.NON_FINITE_GRADIENT,
}
"""Keyed by a word in the name of the quantity."""


def _check_env_finite(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    if not context.not_finite:
        return ()
    return [
        ev.AnomalyFound(
            rule=next(rule.value for word, rule in _NON_FINITE_RULES.items() if word in what),
            severity="error",
            where=f"env {event.env}",
            env=event.env,
            value=value,
            text=f"env {event.env:02d}: {what} is {_format_value(value)} at round {event.round} step {event.step}",
        )
        for what, value in context.not_finite
    ]


def _env_warning(event: ev.EnvStepped, rule: Rule, value: float, threshold: float, text: str) -> ev.AnomalyFound:
    """Return a warning about an env; its text is `text` after the name of the env."""
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
    """Return the limit that an exploding gradient norm exceeds; None if the norm is not exploding.

    The limit is `EXPLODING_FACTOR` times the median of the `earlier` finite norms of the same owner in the episode, and
    at least `EXPLODING_MIN_NORM`.
    """
    if norm is None or not math.isfinite(norm):
        return None
    known = [value for value in earlier if value is not None and math.isfinite(value)]
    if len(known) < EXPLODING_MIN_SAMPLES:
        return None
    usual = median(known)
    limit = max(EXPLODING_FACTOR * usual, EXPLODING_MIN_NORM)
    return limit if usual > 0 and limit < norm else None


def _check_gradient_norms(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    low = context.episodes[event.env].second_lowest_norms
    found: tuple[ev.AnomalyFound, ...] = ()
    if event.grad_norm > EXPLODING_FACTOR * low[0]:
        found = _check_owner_norm(event, context, 0, event.grad_norm)
    for owner, slot in enumerate(event.slots, 1):
        if slot.grad_norm is not None and slot.grad_norm > EXPLODING_FACTOR * low[owner]:
            found = (*found, *_check_owner_norm(event, context, owner, slot.grad_norm))
    return found


def _check_owner_norm(
    event: ev.EnvStepped, context: RuleContext, owner: int, norm: float
) -> tuple[ev.AnomalyFound, ...]:
    """Check the norm of the host (owner 0) or of the seed in slot `owner - 1`."""
    before = context.health.envs[event.env].episode[:-1]
    name, earlier = "the host", [step.grad_norm for step in before]
    if owner:
        slot = event.slots[owner - 1]
        name = context.health.describe_seed(event, owner - 1)
        # Only the norms of this seed, not those of an earlier seed in the slot.
        earlier = [step.slots[owner - 1] for step in before[-slot.age :] if slot.age]
    limit = explosion_limit(earlier, norm)
    if limit is None:
        return ()
    text = f"the gradient of {name} is {norm:.3g} at round {event.round} step {event.step}, "
    text += f"more than {EXPLODING_FACTOR:.0f} times its median"
    return (_env_warning(event, Rule.EXPLODING_GRADIENT, norm, limit, text),)


def _check_skips(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    if not event.lost:
        return ()
    recent = context.health.envs[event.env].recent[-MAX_CONSECUTIVE_SKIPS:]
    if len(recent) < MAX_CONSECUTIVE_SKIPS or not all(step.lost for step in recent):
        return ()
    skipped = sum(step.lost for step in recent)
    text = f"{skipped} batches skipped because of overflows in {MAX_CONSECUTIVE_SKIPS} consecutive steps"
    return (_env_warning(event, Rule.REPEATED_SKIPS, skipped, MAX_CONSECUTIVE_SKIPS, text),)


def _check_progress(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    if context.episodes[event.env].steps_since_best < STALLED_STEPS:
        return ()
    others = context.accuracies.median_of_others(event.env)
    if others is None or not event.accuracy < others - STALLED_MIN_GAP:
        return ()
    accuracies = [step.accuracy for step in context.health.envs[event.env].episode]
    if len(accuracies) <= STALLED_STEPS or max(accuracies[-STALLED_STEPS:]) > max(accuracies[:-STALLED_STEPS]):
        return ()
    text = f"accuracy {event.accuracy:.1%}, not improved for {STALLED_STEPS} steps; the median of the other envs is "
    text += f"{others:.1%}"
    return (_env_warning(event, Rule.STALLED_ENV, event.accuracy, others - STALLED_MIN_GAP, text),)


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
            text=f"{what} is {_format_value(value)} in round {event.round}",
        )


def _check_kl(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if not event.kl <= KL_SPIKE:  # so that a NaN is an anomaly, too
        yield ev.AnomalyFound(
            rule=Rule.KL_SPIKE.value,
            severity="warning" if math.isfinite(event.kl) else "error",
            where="policy",
            value=event.kl,
            threshold=KL_SPIKE,
            text=f"the KL of the policy update is {_format_value(event.kl)} nats in round {event.round}, "
            f"more than {KL_SPIKE}",
        )


def _check_head_gradients(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    for name, head in event.heads.items():
        forced = head.entropy is None  # no decision had a choice, so the head has nothing to learn
        if not forced and (head.grad_norm is None or head.grad_norm < DEAD_GRAD_NORM):
            gradient = "no gradient" if head.grad_norm is None else f"a gradient of only {head.grad_norm:.1e}"
            yield ev.AnomalyFound(
                rule=Rule.DEAD_HEAD.value,
                severity="warning",
                where=f"head {name}",
                value=head.grad_norm or 0.0,
                threshold=DEAD_GRAD_NORM,
                text=f"head {name} received {gradient} in round {event.round}, although it had choices",
            )


def _check_head_entropies(event: ev.PolicyUpdated, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    for name, head in event.heads.items():
        if head.entropy is not None and not head.entropy >= ENTROPY_FLOOR:
            yield ev.AnomalyFound(
                rule=Rule.ENTROPY_COLLAPSE.value,
                severity="warning",
                where=f"head {name}",
                value=head.entropy,
                threshold=ENTROPY_FLOOR,
                text=f"head {name} hardly explores: entropy {_format_value(head.entropy)} in round {event.round}, "
                f"below {ENTROPY_FLOOR}",
            )


def memory_growth(memory: MemoryHealth) -> float | None:
    """Return the growth of a memory in bytes per round over the last `MEMORY_GROWTH_ROUNDS` rounds.

    None if the memory did not grow in each of them, or grew by allocator noise only.
    """
    growth = memory.growth_per_round(MEMORY_GROWTH_ROUNDS)
    noise = MIN_MEMORY_GROWTH_FRACTION * (memory.total or 0)
    return growth if growth is not None and growth * MEMORY_GROWTH_ROUNDS > noise else None


def predict_full_round(memory: MemoryHealth) -> int | None:
    """Return the round in which a growing memory will be full; None if it does not grow or its size is unknown."""
    growth = memory_growth(memory)
    last = memory.points[-1] if memory.points else None
    if growth is None or not memory.total or last is None or last.used is None:
        return None
    return last.round + math.ceil(max(memory.total - last.used, 0) / growth)


def _check_memory_use(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    if not context.health.is_memory_reporter(event.device):
        return
    if event.used is not None and event.total and event.used / event.total > MAX_MEMORY_FRACTION:
        fraction = event.used / event.total
        yield ev.AnomalyFound(
            rule=Rule.MEMORY_NEARLY_FULL.value,
            severity="warning",
            where=event.device,
            value=fraction,
            threshold=MAX_MEMORY_FRACTION,
            text=f"{event.device}: {fraction:.0%} of its memory is in use, more than {MAX_MEMORY_FRACTION:.0%}",
        )


def _check_memory_growth(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    memory = context.health.memories[memory_name(event.device)]
    growth = memory_growth(memory)
    if growth is not None and memory.total and context.health.is_memory_reporter(event.device):
        full_round = predict_full_round(memory)
        yield ev.AnomalyFound(
            rule=Rule.MEMORY_GROWS.value,
            severity="warning",
            where=event.device,
            value=growth * MEMORY_GROWTH_ROUNDS / memory.total,
            threshold=MIN_MEMORY_GROWTH_FRACTION,
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
            text=f"{event.device}: the minimum loss scale is {_format_value(event.scale_min)}; "
            f"below {MIN_LOSS_SCALE:g}, each halving only loses precision",
        )


def _check_lane_load(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    load = context.lane_load(event.device, STRAGGLING_STEPS)
    if load is None:
        return
    others = [context.lane_load(lane, STRAGGLING_STEPS) for lane in context.health.lanes if lane != event.device]
    usual = median([other for other in others if other is not None] or [0.0])
    if usual > 0 and load > STRAGGLER_RATIO * usual:
        yield ev.AnomalyFound(
            rule=Rule.STRAGGLING_LANE.value,
            severity="warning",
            where=event.device,
            value=load / usual,
            threshold=STRAGGLER_RATIO,
            text=f"{event.device} takes {load / usual:.1f}× as long per env as the median of the other lanes "
            f"(last {STRAGGLING_STEPS} steps)",
        )


def _format_value(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.3g}"
    return "NaN" if math.isnan(value) else "infinite"


class EventRules(NamedTuple):
    """Rules of one event type."""

    scope: Scope
    rules: tuple[Rule, ...]
    """Rules of the anomalies that `checks` return."""
    checks: tuple[Callable[[Any, RuleContext], Iterable[ev.AnomalyFound]], ...]


RULES_BY_EVENT: dict[type[ev.Event], EventRules] = {
    ev.EnvStepped: EventRules(
        Scope.ENV,
        (*_NON_FINITE_RULES.values(), Rule.EXPLODING_GRADIENT, Rule.REPEATED_SKIPS, Rule.STALLED_ENV),
        (_check_env_finite, _check_gradient_norms, _check_skips, _check_progress),
    ),
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
