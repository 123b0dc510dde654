"""Root cause of a symptom of an env: the chain of signals that led to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from esper.health.rules.envs import explosion_limit
from esper.health.thresholds import Thresholds
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.health_stats import EnvStepStats
from esper.telemetry.sentences import describe_transition, pluralise
from esper.telemetry.state import RunState

SCORE_DROP = 0.1
"""Drop of the score below the best of the episode that counts as a symptom."""
MAX_GAP_STEPS = 3
"""Maximum number of steps between two signals of one chain."""
LOSS_RISE_FACTOR = 1.5
"""Multiple of the minimum loss of the episode above which the loss is a signal."""


class ChainEntry(NamedTuple):
    """Entry of a causal chain."""

    seq: int
    """Sequence number of the event."""
    round: int
    step: int
    severity: str
    text: str


class RootCause(NamedTuple):
    """Symptom of an env and its causal chain."""

    symptom: ChainEntry | None
    """None if the env has no symptom."""
    chain: list[ChainEntry]
    """Signals that led to the symptom, first to last; empty if no cause was found."""
    recent: list[Anomaly]
    """Anomalies of this episode, latest first."""
    earlier: list[Anomaly]
    """Anomalies of earlier episodes, latest first. Their network is gone."""


def find_root_cause(state: RunState, env: int) -> RootCause:
    """Return the last symptom of an env in this episode, and its causal chain; also when it had other anomalies.

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
    found = _last_symptom(recent, slots, state.score_name) or _active_anomaly(state, env, recent)
    if found is None:
        return RootCause(None, [], of_episode, earlier)
    last, symptom = found
    episode = recent[: last + 1]
    thresholds = Thresholds.from_recording(state.started)
    signals = [signal for index in range(len(episode)) for signal in _signals(episode, index, slots, thresholds)]
    signals += [
        ChainEntry(move.seq, move.round, move.step, "info", describe_transition(move))
        for move in state.envs[env].moves
        if move.round == symptom.round and move.step <= symptom.step
    ]
    signals.sort(key=lambda signal: (signal.step, signal.seq))
    chain = _chain([signal for signal in signals if not _is_same_finding(symptom, signal)], symptom)
    return RootCause(symptom, chain, of_episode, earlier)


def _is_same_finding(symptom: ChainEntry, signal: ChainEntry) -> bool:
    """Return True if a signal repeats the symptom. In the step of a warning, every other warning repeats it."""
    same = signal.text == symptom.text or (symptom.severity == signal.severity == "warning")
    return same and signal.seq == symptom.seq


def _last_symptom(recent: list[EnvStepStats], slots: Sequence[str], score_name: str) -> tuple[int, ChainEntry] | None:
    """Return index and entry of the last start of the worst symptom: non-finite, else score drop, else skip."""
    for find_symptom in (partial(_non_finite, slots=slots), partial(_score_drop, name=score_name), _skips):
        for index in range(len(recent) - 1, -1, -1):
            episode = [step for step in recent[: index + 1] if step.round == recent[index].round]
            text = find_symptom(episode)
            if text and not find_symptom(episode[:-1]):  # it begins here
                step = recent[index]
                return index, ChainEntry(step.seq, step.round, step.step, "error", text)
    return None


def _active_anomaly(state: RunState, env: int, recent: list[EnvStepStats]) -> tuple[int, ChainEntry] | None:
    """Return the step index and entry of the worst active anomaly of an env."""
    for anomaly in state.active_anomalies():
        found = anomaly.in_env(env)
        if found is None or env not in anomaly.active_envs:
            continue
        for index in range(len(recent) - 1, -1, -1):
            step = recent[index]
            if step.seq < found.seq:
                text = found.text.removeprefix(f"env {env:02d}: ")
                return index, ChainEntry(step.seq, step.round, step.step, anomaly.found.severity, text)
    return None


def _non_finite(episode: list[EnvStepStats], slots: Sequence[str]) -> str | None:
    if not episode:
        return None
    step = episode[-1]
    seeds = [(f"gradient of the {slot} seed", norm) for slot, norm in zip(slots, step.slots, strict=False)]
    values = [("validation loss", step.loss), ("gradient of the host", step.grad_norm), *seeds]
    broken = [name for name, value in values if value is not None and not math.isfinite(value)]
    return f"not finite: {', '.join(broken)}" if broken else None


def _score_drop(episode: list[EnvStepStats], name: str) -> str | None:
    if len(episode) < 2:
        return None
    best = max(step.score for step in episode[:-1])
    now = episode[-1].score
    return f"{name} fell from {best:.1%} to {now:.1%}" if now < best - SCORE_DROP else None


def _skips(episode: list[EnvStepStats]) -> str | None:
    return _skip_text(episode[-1].skipped_batches) if episode and episode[-1].skipped_batches else None


def _skip_text(count: int) -> str:
    return f"{pluralise(count, 'batch', 'batches')} skipped because of an overflow"


def _signals(episode: list[EnvStepStats], index: int, slots: Sequence[str], thresholds: Thresholds) -> list[ChainEntry]:
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
    return [ChainEntry(step.seq, step.round, step.step, "warning", text) for text in texts]


def _chain(signals: list[ChainEntry], symptom: ChainEntry) -> list[ChainEntry]:
    """Return the signals linked to the symptom, each at most `MAX_GAP_STEPS` steps before the next."""
    chain: list[ChainEntry] = []
    step = symptom.step
    for signal in reversed(signals):
        if step - signal.step > MAX_GAP_STEPS:
            break
        chain.insert(0, signal)
        if signal.severity != "info":  # a stage transition alone does not extend the chain
            step = signal.step
    return chain
