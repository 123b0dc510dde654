"""Anomaly rules of the policy: checks of its updates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from esper.common.domain import Rule
from esper.common.formatting import format_value
from esper.recordings import events as ev
from esper.recordings.health.rule_context import RuleContext
from esper.recordings.health.rules.registry import rule, warning
from esper.recordings.state.health_stats import non_finite_update


@rule(
    ev.PolicyUpdated,
    {
        Rule.NON_FINITE_HEAD: "the gradient of a policy head is NaN or infinite",
        Rule.NON_FINITE_UPDATE: "a loss or the gradient of the policy is NaN or infinite",
    },
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


@rule(ev.PolicyUpdated, {Rule.KL_SPIKE: "the KL divergence of a policy update is above {limits.kl:g} nats"})
def _check_kl(event: ev.PolicyUpdated, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limit = context.limits.kl
    if not event.kl <= limit * context.hysteresis(Rule.KL_SPIKE, "policy"):  # so that a NaN is an anomaly, too
        yield ev.AnomalyFound(
            rule=Rule.KL_SPIKE.value,
            severity="warning" if math.isfinite(event.kl) else "error",
            where="policy",
            value=event.kl,
            threshold=limit,
            text=f"the KL of the policy update is {format_value(event.kl)} nats in round {event.round}, "
            f"more than {limit:g}",
        )


@rule(
    ev.PolicyUpdated,
    {Rule.DEAD_HEAD: "the gradient norm of a policy head that had choices is below {limits.dead_gradient:g}"},
)
def _check_head_gradients(event: ev.PolicyUpdated, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limit = context.limits.dead_gradient
    for name, head in event.heads.items():
        low = limit / context.hysteresis(Rule.DEAD_HEAD, f"head {name}")
        forced = head.entropy is None  # no decision had a choice, so the head has nothing to learn
        if not forced and (head.grad_norm is None or head.grad_norm < low):
            gradient = "no gradient" if head.grad_norm is None else f"a gradient of only {head.grad_norm:.1e}"
            text = f"head {name} received {gradient} in round {event.round}, although it had choices"
            yield warning(Rule.DEAD_HEAD, f"head {name}", head.grad_norm or 0.0, limit, text)


@rule(
    ev.PolicyUpdated,
    {Rule.ENTROPY_COLLAPSE: "the entropy of a policy head is below {limits.entropy:g} of its maximum"},
)
def _check_head_entropies(event: ev.PolicyUpdated, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limit = context.limits.entropy
    for name, head in event.heads.items():
        low = limit / context.hysteresis(Rule.ENTROPY_COLLAPSE, f"head {name}")
        if head.entropy is not None and not head.entropy >= low:
            text = f"head {name} hardly explores: entropy {format_value(head.entropy)} in round {event.round}, "
            yield warning(Rule.ENTROPY_COLLAPSE, f"head {name}", head.entropy, limit, text + f"below {limit:g}")
