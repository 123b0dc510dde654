"""Root cause of a symptom of an env: the chain of signals that led to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from esper.health.rules import explosion_limit
from esper.telemetry.health_stats import EnvStepStats
from esper.telemetry.sentences import pluralise
from esper.telemetry.state import RunState

ACCURACY_DROP = 0.1
"""Drop of the accuracy below the best of the episode that counts as a symptom."""
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


def find_root_cause(state: RunState, env: int) -> RootCause:
    """Return the last symptom of an env in the recorded steps, and its causal chain within the episode.

    If the env has no symptom, or only in an earlier episode, an active anomaly is the symptom.
    """
    vitals = state.vitals.envs.get(env)
    slots = state.started.slots if state.started else []
    if vitals is None:
        return RootCause(None, [])
    found, open_ = _last_symptom(vitals.recent, slots), _open_anomaly(state, env, vitals.recent)
    if found is None or (open_ is not None and vitals.recent[found[0]].round < vitals.recent[open_[0]].round):
        found = open_
    if found is None:
        return RootCause(None, [])
    at, symptom = found
    episode = [vital for vital in vitals.recent[: at + 1] if vital.round == symptom.round]
    signals = [signal for index in range(len(episode)) for signal in _signals(episode, index, slots)]
    signals += [
        ChainEntry(
            move.seq, move.round, move.step, "info", f"{move.slot} {move.blueprint or ''} {move.after}: {move.reason}"
        )
        for move in state.envs[env].moves
        if move.round == symptom.round and move.step <= symptom.step
    ]
    signals.sort(key=lambda signal: (signal.step, signal.seq))
    return RootCause(symptom, _chain([signal for signal in signals if not _is_same_finding(symptom, signal)], symptom))


def _is_same_finding(symptom: ChainEntry, signal: ChainEntry) -> bool:
    """Return True if a signal repeats the symptom. In the step of a warning, every other warning repeats it."""
    same = signal.text == symptom.text or (symptom.severity == signal.severity == "warning")
    return same and signal.seq == symptom.seq


def _last_symptom(recent: list[EnvStepStats], slots: Sequence[str]) -> tuple[int, ChainEntry] | None:
    """Return index and entry of the last start of the worst symptom: non-finite, else accuracy drop, else skip."""
    for find_symptom in (partial(_non_finite, slots=slots), _accuracy_drop, _skips):
        for index in range(len(recent) - 1, -1, -1):
            episode = [vital for vital in recent[: index + 1] if vital.round == recent[index].round]
            text = find_symptom(episode)
            if text and not find_symptom(episode[:-1]):  # it begins here
                vital = recent[index]
                return index, ChainEntry(vital.seq, vital.round, vital.step, "error", text)
    return None


def _open_anomaly(state: RunState, env: int, recent: list[EnvStepStats]) -> tuple[int, ChainEntry] | None:
    """Return the step index and entry of the worst active anomaly of an env."""
    for found in (anomaly.found for anomaly in state.active_anomalies() if anomaly.found.env == env):
        for index in range(len(recent) - 1, -1, -1):
            vital = recent[index]
            if vital.seq < found.seq:
                text = found.text.removeprefix(f"env {env:02d}: ")
                return index, ChainEntry(vital.seq, vital.round, vital.step, found.severity, text)
    return None


def _non_finite(episode: list[EnvStepStats], slots: Sequence[str]) -> str | None:
    if not episode:
        return None
    vital = episode[-1]
    seeds = [(f"gradient of the {slot} seed", norm) for slot, norm in zip(slots, vital.slots, strict=False)]
    values = [("validation loss", vital.loss), ("gradient of the host", vital.grad_norm), *seeds]
    broken = [name for name, value in values if value is not None and not math.isfinite(value)]
    return f"not finite: {', '.join(broken)}" if broken else None


def _accuracy_drop(episode: list[EnvStepStats]) -> str | None:
    if len(episode) < 2:
        return None
    best = max(vital.accuracy for vital in episode[:-1])
    now = episode[-1].accuracy
    return f"accuracy fell from {best:.1%} to {now:.1%}" if now < best - ACCURACY_DROP else None


def _skips(episode: list[EnvStepStats]) -> str | None:
    return _skip_text(episode[-1].lost) if episode and episode[-1].lost else None


def _skip_text(count: int) -> str:
    return f"{pluralise(count, 'batch', 'batches')} skipped because of an overflow"


def _signals(episode: list[EnvStepStats], index: int, slots: Sequence[str]) -> list[ChainEntry]:
    """Return the quantities that left their range at a step."""
    vital, before = episode[index], episode[:index]
    texts: list[str] = []
    if vital.lost:
        texts.append(_skip_text(vital.lost))
    if before and vital.scale and before[-1].scale and vital.scale < before[-1].scale:
        texts.append(f"loss scale fell from 2^{math.log2(before[-1].scale):g} to 2^{math.log2(vital.scale):g}")
    norms: list[tuple[str, float, list[float | None]]] = [("host", vital.grad_norm, [v.grad_norm for v in before])]
    for number, (slot, norm) in enumerate(zip(slots, vital.slots, strict=False)):
        if norm is not None:
            # Only the norms of this seed: there is a step without a norm before it began to train.
            seed_norms = takewhile(lambda earlier: earlier is not None, (v.slots[number] for v in reversed(before)))
            norms.append((f"{slot} seed", norm, [*seed_norms]))
    for name, norm, earlier in norms:
        limit = explosion_limit(earlier, norm)
        if limit is not None:
            texts.append(f"gradient of the {name} is {norm:.3g}, more than {limit:.3g}")
    losses = [v.loss for v in before if math.isfinite(v.loss)]
    if losses and math.isfinite(vital.loss) and vital.loss > LOSS_RISE_FACTOR * min(losses):
        texts.append(f"validation loss is {vital.loss:.3g}; its minimum was {min(losses):.3g}")
    return [ChainEntry(vital.seq, vital.round, vital.step, "warning", text) for text in texts]


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
