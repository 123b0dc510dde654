"""Root cause of a symptom of an env: the decisions that can have caused it, and the signals that led to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from esper.common.domain import Rule
from esper.common.formatting import pluralise
from esper.recordings.health.causes import PossibleCause, drop_starts, find_candidates
from esper.recordings.health.rules.envs import explosion_limit
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state.anomalies import Anomaly
from esper.recordings.state.health_stats import EnvStepStats
from esper.recordings.state.series import StepTrace
from esper.recordings.state.state import RunState

MAX_GAP_STEPS = 3
"""Maximum number of steps between two linked signals, and between a cause and the first of them."""
LOSS_RISE_FACTOR = 1.5
"""Multiple of the minimum loss of the episode above which the loss is a signal."""
_SLOW_RULES = frozenset({Rule.DEAD_SEED, Rule.STALLED_ENV})
"""Rules for lasting conditions, which no move of an alpha begins."""


class Finding(NamedTuple):
    """Symptom or signal in a step of an env."""

    seq: int
    """Sequence number of the event."""
    round: int
    step: int
    severity: str
    text: str


class RootCause(NamedTuple):
    """Symptom of an env, the decisions that can have caused it, and the signals that led to it."""

    symptom: Finding | None
    """None if the env has no symptom."""
    is_drop: bool
    """True if the symptom is a drop of the score: a simulation can test its candidates."""
    candidates: list[PossibleCause]
    """Newest first."""
    note: str
    """Sentence that replaces the candidates; empty if there are any, and if decisions are not the matter."""
    signals: list[Finding]
    """Signals that led to the symptom, first to last. A drop can have signals that are older than its cause."""
    recent: list[Anomaly]
    """Anomalies of this episode, latest first."""
    earlier: list[Anomaly]
    """Anomalies of earlier episodes, latest first. Their network is gone."""


class _Symptom(NamedTuple):
    finding: Finding
    best_step: int | None = None
    """Step of the best score before the drop; None if the symptom is another one."""
    is_slow: bool = False


def find_root_cause(state: RunState, env: int) -> RootCause:
    """Return the last symptom of an env in this episode, and its cause; also when it had other anomalies.

    If the env has no symptom, an active anomaly is the symptom.
    """
    health = state.health.envs.get(env)
    slots = state.started.slot_names if state.started else []
    past = [anomaly for anomaly in reversed(state.anomalies.values()) if env in anomaly.envs]
    of_episode = [anomaly for anomaly in past if anomaly.last_round == state.round]
    earlier = [anomaly for anomaly in past if anomaly.last_round < state.round]
    recent = health.recent if health is not None else []
    this_round = max(state.round, recent[-1].round if recent else 0)
    recent = [step for step in recent if step.round == this_round]
    trace = state.envs[env].trace
    found = (
        _last_start(recent, lambda step: _non_finite(step, slots))
        or _last_drop(trace, this_round, state)
        or _last_start(recent, _skips)
        or _active_anomaly(state, env, recent)
    )
    if found is None:
        return RootCause(None, False, [], "", [], of_episode, earlier)
    symptom = found.finding
    episode = [step for step in recent if step.step <= symptom.step]
    thresholds = Thresholds.from_recording(state.started)
    signals = [signal for index in range(len(episode)) for signal in _signals(episode, index, slots, thresholds)]
    linked = _linked([signal for signal in signals if not _is_same_finding(symptom, signal)], symptom)
    is_drop = found.best_step is not None
    candidates, note = ([], "") if found.is_slow else _candidates(found, linked, trace, slots, env)
    return RootCause(symptom, is_drop, candidates, note, linked, of_episode, earlier)


def _candidates(
    symptom: _Symptom, signals: Sequence[Finding], trace: Sequence[StepTrace], slots: Sequence[str], env: int
) -> tuple[list[PossibleCause], str]:
    """Return the decisions that can have caused a symptom, and if there are none, a sentence that says so.

    A drop of the score is caused after the best score. Any other symptom is caused before its first signal.
    """
    finding = symptom.finding
    if symptom.best_step is not None:
        since, last, span = symptom.best_step, finding.step, f"since the best score in step {symptom.best_step}"
    else:
        last = signals[0].step if signals else finding.step
        since, span = last - MAX_GAP_STEPS, f"within {MAX_GAP_STEPS} steps"
    before = [step for step in trace if step.step <= last]
    candidates = find_candidates(before, slots, since, finding.round, env)
    note = "" if candidates else f"no decision changed the network {span}; training itself may be the cause"
    return candidates, note


def _is_same_finding(symptom: Finding, signal: Finding) -> bool:
    """Return True if a signal repeats the symptom. In the step of a warning, every other warning repeats it."""
    same = signal.text == symptom.text or (symptom.severity == signal.severity == "warning")
    return same and signal.seq == symptom.seq


def _last_start(recent: list[EnvStepStats], find_text: Callable[[EnvStepStats], str | None]) -> _Symptom | None:
    """Return the last step in which a symptom began; None if no step has it."""
    for index in range(len(recent) - 1, -1, -1):
        step, text = recent[index], find_text(recent[index])
        if text and not (index and find_text(recent[index - 1])):
            return _Symptom(Finding(step.seq, step.round, step.step, "error", text))
    return None


def _last_drop(trace: list[StepTrace], round_: int, state: RunState) -> _Symptom | None:
    """Return the last drop of the score; None if there was none."""
    scale = state.score_scale
    starts = drop_starts(trace, scale, state.started.chance_score if state.started else 0.0)
    if not starts:
        return None
    step, best = trace[starts[-1].step_index], trace[starts[-1].best_index]
    fell = "fell" if scale.best == "high" else "rose"
    text = f"{state.score_name} {fell} from {scale.text(best.score)} to {scale.text(step.score)}"
    return _Symptom(Finding(step.seq, round_, step.step, "error", text), best.step)


def _active_anomaly(state: RunState, env: int, recent: list[EnvStepStats]) -> _Symptom | None:
    """Return the worst active anomaly of an env; None if there is none."""
    for anomaly in state.active_anomalies():
        found = anomaly.in_env(env)
        if found is None or env not in anomaly.active_envs:
            continue
        step = next((step for step in reversed(recent) if step.seq < found.seq), None)
        if step is not None:
            text, is_slow = found.text.removeprefix(f"env {env:02d}: "), anomaly.found.rule in _SLOW_RULES
            return _Symptom(Finding(step.seq, step.round, step.step, anomaly.found.severity, text), is_slow=is_slow)
    return None


def _non_finite(step: EnvStepStats, slots: Sequence[str]) -> str | None:
    seeds = [(f"gradient of the {slot} seed", norm) for slot, norm in zip(slots, step.slots, strict=False)]
    values = [("validation loss", step.loss), ("gradient of the host", step.grad_norm), *seeds]
    broken = [name for name, value in values if value is not None and not math.isfinite(value)]
    return f"not finite: {', '.join(broken)}" if broken else None


def _skips(step: EnvStepStats) -> str | None:
    return _skip_text(step.skipped_batches) if step.skipped_batches else None


def _skip_text(count: int) -> str:
    return f"{pluralise(count, 'batch', 'batches')} skipped because of an overflow"


def _signals(episode: list[EnvStepStats], index: int, slots: Sequence[str], thresholds: Thresholds) -> list[Finding]:
    """Return the quantities that left their range at a step."""
    step, before = episode[index], episode[:index]
    texts: list[str] = []
    if step.skipped_batches:
        texts.append(_skip_text(step.skipped_batches))
    if before and step.scale and before[-1].scale and step.scale < before[-1].scale:
        texts.append(f"loss scale fell from 2^{math.log2(before[-1].scale):g} to 2^{math.log2(step.scale):g}")
    norms: list[tuple[str, float, list[float | None]]] = []
    if step.grad_norm is not None:
        norms.append(("host", step.grad_norm, [past.grad_norm for past in before]))
    for slot_index, (slot, norm) in enumerate(zip(slots, step.slots, strict=False)):
        if norm is not None:
            # Only the norms of this seed: there is a step without a norm before it began to train.
            seed_norms = takewhile(
                lambda past_norm: past_norm is not None, (past.slots[slot_index] for past in reversed(before))
            )
            norms.append((f"{slot} seed", norm, [*seed_norms]))
    for name, norm, earlier in norms:
        clip = thresholds.host_clip if name == "host" else thresholds.seed_clip
        limit = explosion_limit(earlier, norm, clip, thresholds.limits.explosion_factor)
        if limit is not None:
            texts.append(f"gradient of the {name} is {norm:.3g}, more than {limit:.3g}")
    losses = [past.loss for past in before if math.isfinite(past.loss)]
    if losses and math.isfinite(step.loss) and step.loss > LOSS_RISE_FACTOR * min(losses):
        texts.append(f"validation loss is {step.loss:.3g}; its minimum was {min(losses):.3g}")
    return [Finding(step.seq, step.round, step.step, "warning", text) for text in texts]


def _linked(signals: list[Finding], symptom: Finding) -> list[Finding]:
    """Return the signals linked to the symptom, each at most `MAX_GAP_STEPS` steps before the next."""
    linked: list[Finding] = []
    step = symptom.step
    for signal in reversed(signals):
        if step - signal.step > MAX_GAP_STEPS:
            break
        linked.insert(0, signal)
        step = signal.step
    return linked
