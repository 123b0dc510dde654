"""Anomaly rules of envs: checks of their steps, of all their episodes, and of rollbacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from esper.common.configuration.config import AnomalyConfig
from esper.common.domain import Rule
from esper.common.formatting import format_value, pluralise
from esper.recordings import events as ev
from esper.recordings.health.rule_context import RuleContext
from esper.recordings.health.rules.registry import rule, warning
from esper.recordings.state.health_stats import RunHealth

EXPLODING_MIN_SAMPLES = 3
"""Earlier norms that the median needs. `EpisodeExtremes.second_lowest_norms` is a lower bound of it from three on."""
MIN_STALLED_ENVS = 2
"""Minimum number of stalled envs: a single one is no reason to act."""
_NON_FINITE_RULES = {
    "loss": Rule.NON_FINITE_LOSS,
    "score": Rule.NON_FINITE_SCORE,
    "gradient": Rule.NON_FINITE_GRADIENT,
}
"""Keyed by `NonFiniteValue.quantity`."""


@rule(
    ev.EnvStepped,
    {
        Rule.NON_FINITE_LOSS: "the loss of an env is NaN or infinite",
        Rule.NON_FINITE_SCORE: "the score of an env is NaN or infinite",
        Rule.NON_FINITE_GRADIENT: "the gradient of a host or seed is NaN or infinite",
    },
)
def _check_env_finite(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    if not context.not_finite:
        return ()
    return [
        ev.AnomalyFound(
            rule=_NON_FINITE_RULES[quantity].value,
            severity="error",
            where=f"env {event.env}",
            env=event.env,
            value=value,
            text=f"env {event.env:02d}: {name} is {format_value(value)} at round {event.round} step {event.step}",
        )
        for quantity, name, value in context.not_finite
    ]


def _env_warning(event: ev.EnvStepped, rule: Rule, value: float, threshold: float, text: str) -> ev.AnomalyFound:
    """Return a warning about an env; its text is `text` after the name of the env."""
    return warning(rule, f"env {event.env}", value, threshold, f"env {event.env:02d}: {text}", event.env)


def explosion_limit(earlier: Sequence[float | None], norm: float | None, clip: float, factor: float) -> float | None:
    """Return the limit that an exploding gradient norm exceeds; None if the norm is not exploding.

    Args:
        earlier: Earlier norms of the same owner in the episode; only the finite ones count.
        norm: The norm; None if the owner did not train.
        clip: Norm to which the gradient is clipped: no norm below it explodes.
        factor: Multiple of the median of the earlier norms above which the norm explodes.
    """
    if norm is None or not math.isfinite(norm):
        return None
    known = [value for value in earlier if value is not None and math.isfinite(value)]
    if len(known) < EXPLODING_MIN_SAMPLES:
        return None
    usual = median(known)
    limit = max(factor * usual, clip)
    return limit if usual > 0 and limit < norm else None


@rule(
    ev.EnvStepped,
    {
        Rule.EXPLODING_GRADIENT: "the gradient norm of a host, or of a seed that affects the output, is above the "
        "clipping norm and above {limits.explosion_factor:g} times its median in the episode, for "
        "{limits.explosion_steps} steps"
    },
)
def _check_gradient_norms(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    low, thresholds = context.episodes[event.env].second_lowest_norms, context.thresholds
    factor = thresholds.limits.explosion_factor * context.hysteresis(Rule.EXPLODING_GRADIENT, event.env)
    found: tuple[ev.AnomalyFound, ...] = ()
    if event.grad_norm is not None and event.grad_norm > factor * low[0]:
        found = _check_owner_norm(event, context, 0, thresholds.host_clip)
    for owner, slot in enumerate(event.slots, 1):
        # The gradient of a seed without an alpha changes nothing: the output does not depend on the seed yet.
        if slot.grad_norm is not None and slot.alpha is not None and slot.grad_norm > factor * low[owner]:
            found = (*found, *_check_owner_norm(event, context, owner, thresholds.seed_clip))
    return found


def _check_owner_norm(
    event: ev.EnvStepped, context: RuleContext, owner: int, clip: float
) -> tuple[ev.AnomalyFound, ...]:
    """Check the last norms of the host (owner 0) or of the seed in slot `owner - 1`."""
    steps = context.health.envs[event.env].episode
    name, norms = "the host", [step.grad_norm for step in steps]
    if owner:
        name = context.health.describe_seed(event, owner - 1)
        # Only the norms of this seed, not those of an earlier seed in the slot.
        norms = [step.slots[owner - 1] for step in steps[-event.slots[owner - 1].age - 1 :]]
    limits, relief = context.limits, context.hysteresis(Rule.EXPLODING_GRADIENT, event.env)
    last = limits.explosion_steps
    is_active = context.is_active(Rule.EXPLODING_GRADIENT, event.env)
    earlier, recent = norms[:-last], norms[-1:] if is_active else norms[-last:]
    factor, limit = limits.explosion_factor * relief, None
    for norm in recent:
        limit = explosion_limit(earlier, norm, clip * relief, factor)
        if limit is None:
            return ()
    if limit is None or norms[-1] is None:
        return ()
    during = f"{last} consecutive steps" if last > 1 else "a step"
    text = f"the gradient of {name} is {norms[-1]:.3g} at round {event.round} step {event.step}, "
    text += f"more than {limits.explosion_factor:g} times its median for {during}"
    return (_env_warning(event, Rule.EXPLODING_GRADIENT, norms[-1], limit, text),)


@rule(
    ev.EnvStepped,
    {
        Rule.LOSS_ABOVE_CHANCE: "the training loss of an env is above {limits.chance_factor:g} times the chance loss "
        "for {limits.chance_steps} steps, and does not fall: the learning rate may be too high"
    },
)
def _check_chance(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    """Find a training loss that stays clearly above the chance loss, and does not fall.

    An untrained network can start above it, and with a low learning rate it comes down slowly.
    """
    chance = context.health.chance_of(event.env)
    if chance is None:
        return ()
    threshold = chance * context.limits.chance_factor
    limit = threshold * context.hysteresis(Rule.LOSS_ABOVE_CHANCE, event.env)
    if not event.train_loss > limit:
        return ()
    last = context.limits.chance_steps
    recent = context.health.envs[event.env].last_steps(last)
    lasted = len(recent) == last and all(step.train_loss > limit for step in recent)
    begins = lasted and not event.train_loss < recent[0].train_loss
    if not begins and not context.is_active(Rule.LOSS_ABOVE_CHANCE, event.env):
        return ()
    text = f"training loss {event.train_loss:.3g} at round {event.round} step {event.step}, above the chance loss "
    text += f"({chance:.3g}) for {last} consecutive steps, and not falling"
    return (_env_warning(event, Rule.LOSS_ABOVE_CHANCE, event.train_loss, threshold, text),)


@rule(
    ev.EnvStepped,
    {
        Rule.DEAD_SEED: "the gradient norm of a seed that trains is below {limits.dead_gradient:g} for "
        "{limits.dead_seed_steps} steps"
    },
)
def _check_dead_seeds(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    threshold, required = context.limits.dead_gradient, context.limits.dead_seed_steps
    limit = threshold / context.hysteresis(Rule.DEAD_SEED, event.env)
    last = 1 if context.is_active(Rule.DEAD_SEED, event.env) else required
    found: list[ev.AnomalyFound] = []
    for index, slot in enumerate(event.slots):
        if slot.grad_norm is None or not slot.grad_norm < limit or slot.blueprint is None or slot.age < last:
            continue
        recent = [step.slots[index] for step in context.health.envs[event.env].last_steps(last)]
        if len(recent) == last and all(norm is not None and norm < limit for norm in recent):
            text = f"{context.health.describe_seed(event, index)} has had almost no gradient for {required} steps: "
            text += f"{slot.grad_norm:.1e} at round {event.round} step {event.step}"
            found.append(_env_warning(event, Rule.DEAD_SEED, slot.grad_norm, threshold, text))
    return found


@rule(
    ev.EnvStepped,
    {Rule.REPEATED_SKIPS: "an env skipped batches, because of overflows, in {limits.skipped_steps} steps in a row"},
)
def _check_skips(event: ev.EnvStepped, context: RuleContext) -> Iterable[ev.AnomalyFound]:
    if not event.skipped_batches:
        return ()
    last = context.limits.skipped_steps
    recent = context.health.envs[event.env].recent[-last:]
    if len(recent) < last or not all(step.skipped_batches for step in recent):
        return ()
    skipped = sum(step.skipped_batches for step in recent)
    text = f"{skipped} batches skipped because of overflows in {last} consecutive steps"
    return (_env_warning(event, Rule.REPEATED_SKIPS, skipped, last, text),)


@rule(
    ev.RoundStarted,
    {
        Rule.STALLED_ENV: "two or more envs, and {limits.stalled_envs:.0%} of all, stalled in each of "
        "{limits.stalled_rounds} rounds: they ended {limits.stalled_gap:.2g} below the median score (in a family: of "
        "their structure), without a better score for {limits.stalled_steps} steps"
    },
)
def _check_stalls(event: ev.RoundStarted, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    limits = context.limits
    if context.health.is_search:  # its envs train different candidates, and worse ones are pruned
        return
    limit = limits.stalled_envs * context.hysteresis(Rule.STALLED_ENV, "envs")
    rounds = range(event.round - limits.stalled_rounds, event.round)
    fractions: list[float] = []
    for round_ in rounds:
        stalled, total = _count_stalled(context.health, round_, limits)
        if stalled < MIN_STALLED_ENVS or stalled < limit * total:
            return
        fractions.append(stalled / total)
    text = f"{fractions[-1]:.0%} of the envs stalled in round {event.round - 1}, and {limits.stalled_envs:.0%} or more "
    text += (
        f"in each of the last {pluralise(len(rounds), 'round')}: their {context.health.score_name} stopped improving "
    )
    skill = "" if context.health.score_scale.is_plain else " of skill"
    text += f"{100 * limits.stalled_gap:.0f} pp{skill} below the median"
    text += " of their structure" if context.health.chance_by_structure else ""
    yield warning(Rule.STALLED_ENV, "envs", fractions[-1], limits.stalled_envs, text)


def _count_stalled(health: RunHealth, round_: int, limits: AnomalyConfig) -> tuple[int, int]:
    """Return the number of envs that had stalled at the end of a round, and the number of all envs.

    Only envs of one structure are compared: the tasks of a family differ in the score that they allow.
    """
    ends = [end for env in health.envs.values() for end in env.ends if end.round == round_]
    stalled = 0
    for structure in {end.structure for end in ends}:
        alike = [end for end in ends if end.structure == structure]
        scores = [health.score_scale.fraction(end.score, health.chance_score) for end in alike]
        finite = [score for score in scores if math.isfinite(score)]
        low = median(finite) - limits.stalled_gap if finite else -math.inf
        stalled += sum(
            end.steps_since_best >= limits.stalled_steps and score < low
            for end, score in zip(alike, scores, strict=True)
        )
    return stalled, len(ends)


@rule(
    ev.GovernorRolledBack,
    {Rule.GOVERNOR_ROLLBACK: "an env broke down and was rolled back to its last good state"},
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
