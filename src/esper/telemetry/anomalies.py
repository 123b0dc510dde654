"""The rules by which a value is an anomaly. One table; every threshold has a name, and is to be found only here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from esper.telemetry import events as ev

DEAD_GRAD_NORM = 1e-8
"""A head that learns less than this in an update does not learn."""
KL_SPIKE = 0.1
"""Nats. Clipped updates of a healthy policy stay below a fifth of it."""
ENTROPY_FLOOR = 0.05
"""Share of the greatest entropy below which a head has stopped to explore."""
MEMORY_CEILING = 0.9
"""Share of a device's memory."""
SCALE_SPREAD = 64.0
"""Greatest over least loss scale on one device: six halvings apart, its envs no longer train in the same numbers."""


def inspect(event: ev.AnyEvent) -> list[ev.AnomalyFound]:
    """The anomalies in one event. Depends on nothing but the event."""
    rules = _RULES.get(type(event))
    return [found for rule in rules for found in rule(event)] if rules else []


def _env_not_finite(event: ev.EnvStepped) -> Iterator[ev.AnomalyFound]:
    # The sum is finite only if every term is, but for an overflow, which the closer look then clears.
    total = event.train_loss + event.loss + event.train_accuracy + event.accuracy + event.grad_norm
    for slot in event.slots:
        if slot.grad_norm is not None:
            total += slot.grad_norm
    return iter(()) if math.isfinite(total) else _env_values_not_finite(event)


def _env_values_not_finite(event: ev.EnvStepped) -> Iterator[ev.AnomalyFound]:
    values = [
        ("non-finite loss", "the training loss", event.train_loss),
        ("non-finite loss", "the validation loss", event.loss),
        ("non-finite accuracy", "the training accuracy", event.train_accuracy),
        ("non-finite accuracy", "the validation accuracy", event.accuracy),
        ("non-finite gradient", "the gradient of the host", event.grad_norm),
    ]
    for number, slot in enumerate(event.slots):
        if slot.grad_norm is not None:
            name = f"the gradient of the {slot.blueprint or 'seed'} in slot {number + 1}"
            values.append(("non-finite gradient", name, slot.grad_norm))
    for rule, what, value in values:
        if not math.isfinite(value):
            yield ev.AnomalyFound(
                rule=rule,
                severity="error",
                where=f"env {event.env}",
                env=event.env,
                value=value,
                text=f"env {event.env:02d}: {what} is {_word(value)} at round {event.round} step {event.step}",
            )


def _update_not_finite(event: ev.PolicyUpdated) -> Iterator[ev.AnomalyFound]:
    values = {
        "policy loss": event.policy_loss,
        "value loss": event.value_loss,
        "gradient norm": event.grad_norm,
    }
    for name, value in values.items():
        if not math.isfinite(value):
            text = f"the {name} of the policy is {_word(value)} in round {event.round}"
            yield ev.AnomalyFound(rule="non-finite update", severity="error", where=name, value=value, text=text)


def _kl_spike(event: ev.PolicyUpdated) -> Iterator[ev.AnomalyFound]:
    if not event.kl <= KL_SPIKE:  # a NaN is one, too
        yield ev.AnomalyFound(
            rule="KL spike",
            severity="warning" if math.isfinite(event.kl) else "error",
            where="policy",
            value=event.kl,
            threshold=KL_SPIKE,
            text=f"the policy moved by {_word(event.kl)} nats in round {event.round}, more than {KL_SPIKE}",
        )


def _head_gradient(event: ev.PolicyUpdated) -> Iterator[ev.AnomalyFound]:
    for name, head in event.heads.items():
        if head.grad_norm is not None and not math.isfinite(head.grad_norm):
            yield ev.AnomalyFound(
                rule="non-finite head",
                severity="error",
                where=f"head {name}",
                value=head.grad_norm,
                text=f"the gradient of head {name} is {_word(head.grad_norm)} in round {event.round}",
            )
        elif head.entropy is not None and (head.grad_norm is None or head.grad_norm < DEAD_GRAD_NORM):
            reached = "no gradient" if head.grad_norm is None else f"a gradient of only {head.grad_norm:.1e}"
            yield ev.AnomalyFound(
                rule="dead head",
                severity="warning",
                where=f"head {name}",
                value=head.grad_norm or 0.0,
                threshold=DEAD_GRAD_NORM,
                text=f"head {name} had choices in round {event.round}, yet {reached} reached it",
            )


def _head_entropy(event: ev.PolicyUpdated) -> Iterator[ev.AnomalyFound]:
    for name, head in event.heads.items():
        if head.entropy is not None and not head.entropy >= ENTROPY_FLOOR:
            yield ev.AnomalyFound(
                rule="entropy collapse",
                severity="warning",
                where=f"head {name}",
                value=head.entropy,
                threshold=ENTROPY_FLOOR,
                text=f"head {name} hardly explores: entropy {_word(head.entropy)} in round {event.round}, "
                f"below {ENTROPY_FLOOR}",
            )


def _memory_full(event: ev.DeviceSampled) -> Iterator[ev.AnomalyFound]:
    if event.used is not None and event.total and event.used / event.total > MEMORY_CEILING:
        share = event.used / event.total
        yield ev.AnomalyFound(
            rule="memory nearly full",
            severity="warning",
            where=event.device,
            value=share,
            threshold=MEMORY_CEILING,
            text=f"{event.device}: {share:.0%} of its memory is in use, more than {MEMORY_CEILING:.0%}",
        )


def _scales_diverge(event: ev.DeviceSampled) -> Iterator[ev.AnomalyFound]:
    if event.scale_min and event.scale_max and event.scale_max / event.scale_min > SCALE_SPREAD:
        spread = event.scale_max / event.scale_min
        yield ev.AnomalyFound(
            rule="loss scales diverge",
            severity="warning",
            where=event.device,
            value=spread,
            threshold=SCALE_SPREAD,
            text=f"{event.device}: loss scales of its envs are a factor of {spread:.0f} apart, over {SCALE_SPREAD:.0f}",
        )


def _word(value: float) -> str:
    """A value as people write it."""
    if math.isfinite(value):
        return f"{value:.3g}"
    return "NaN" if math.isnan(value) else "infinite"


_RULES: dict[type[ev.Event], tuple[Callable[[Any], Iterator[ev.AnomalyFound]], ...]] = {
    ev.EnvStepped: (_env_not_finite,),
    ev.PolicyUpdated: (_update_not_finite, _kl_spike, _head_gradient, _head_entropy),
    ev.DeviceSampled: (_memory_full, _scales_diverge),
}
