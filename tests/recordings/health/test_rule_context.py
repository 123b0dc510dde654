"""Rules with running extremes find the same anomalies as a reference that scans all past steps."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterator, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.configuration.config import AnomalyConfig
from esper.recordings import events as ev
from esper.recordings.health.detector import AnomalyDetector, AnomalyEvent
from esper.recordings.health.rules.envs import EXPLODING_MIN_SAMPLES
from esper.recordings.health.rules.lanes import STRAGGLING_STEPS
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state import health_stats
from esper.recordings.state.state import Keyframe, RunState
from tests.factory import device_sampled, env_stepped, run_started, stamp

ENVS = 4
STRANGE = (math.nan, math.inf, -math.inf)
CHANCE_LOSS = run_started().chance_loss
LIMITS = AnomalyConfig(explosion_steps=2, explosion_factor=4.0)
"""Thresholds that random steps exceed now and then."""


def course(seed: int, length: int) -> list[ev.AnyEvent]:
    """Return random steps of several envs and rounds, with stalled envs, short-lived seeds and non-finite values."""
    draw = random.Random(seed)
    strange = draw.choice((0.0, 0.0, 0.02, 0.2))
    new_round = draw.choice((0.0, 0.01, 0.05))
    paces = [draw.choice((0.2, 1.0)) for _ in range(3)]
    ages, rounds = [[0, 0] for _ in range(ENVS)], 1
    run: list[ev.AnyEvent] = [run_started(ENVS), ev.RoundStarted(round=1)]

    def norm() -> float:
        return (
            draw.choice(STRANGE) if draw.random() < strange else draw.choice((0.0, 0.0, 0.01, 0.1, 0.2, 1.0, 1.5, 3.0))
        )

    for step in range(1, length + 1):
        if draw.random() < new_round:
            rounds += 1
            run.append(ev.RoundStarted(round=rounds))
        env = draw.randrange(ENVS)
        slots: list[ev.SlotReading] = []
        for slot in range(2):
            ages[env][slot] = 0 if draw.random() < 0.1 else ages[env][slot] + draw.choice((0, 1, 1, 1, 1, 3))
            grad_norm = None if draw.random() < 0.2 else norm()
            alpha = draw.choice((None, 0.5, 0.5, 0.5))
            slots.append(
                ev.SlotReading(
                    stage="training", blueprint="norm", age=ages[env][slot], alpha=alpha, grad_norm=grad_norm
                )
            )
        accuracy = draw.choice(STRANGE) if draw.random() < strange else draw.choice((0.2, 0.3, 0.5, 0.9)[: env + 1])
        run.append(
            env_stepped(
                env,
                rounds,
                step,
                score=accuracy,
                grad_norm=norm(),
                slots=slots,
                skipped_batches=int(draw.random() < 0.4),
                train_loss=draw.choice((1.0, 2.0, 2.4, 2.4, 2.4)),
            )
        )
        if draw.random() < 0.3:
            lane, busy = draw.randrange(3), draw.choice((0.5, 0.9, 0.9, 0.9))
            active = 1 + draw.randrange(1 + lane)
            busy = None if draw.random() < 0.05 else busy * active * paces[lane]
            run.append(device_sampled(f"cpu:{lane}", envs=1 + lane, active=active, busy=busy, allocated=None))
    return run


def exploding(before: Sequence[float | None], norm: float | None, factor: float, clip: float) -> float | None:
    """Return the limit that a norm exceeds."""
    finite = [value for value in before if value is not None and math.isfinite(value)]
    if norm is None or not math.isfinite(norm) or len(finite) < EXPLODING_MIN_SAMPLES or not median(finite) > 0:
        return None
    limit = max(factor * median(finite), clip)
    return limit if norm > limit else None


def broken_by_step(
    event: ev.EnvStepped, earlier: Sequence[ev.EnvStepped], active: Container[str]
) -> Iterator[tuple[str, float, float | None]]:
    """Yield rule, value and threshold of the anomalies of a step, computed from all earlier steps.

    `active` are the rules whose anomaly is active in the env: their thresholds are lower, and need one step only.
    """
    for rule, value in (("loss", event.train_loss), ("loss", event.loss), ("score", event.score)):
        if not math.isfinite(value):
            yield f"non-finite {rule}", value, None
    for value in (event.grad_norm, *(slot.grad_norm for slot in event.slots)):
        if value is not None and not math.isfinite(value):
            yield "non-finite gradient", value, None
    known = [one for one in (*earlier, event) if one.env == event.env][-health_stats.MAX_STEPS :]
    episode = [one for one in known if one.round == event.round]
    owners: list[list[float | None]] = [[one.grad_norm for one in episode]]
    for index, slot in enumerate(event.slots):
        if slot.alpha is not None:
            mine = episode[len(episode) - min(slot.age + 1, len(episode)) :]
            owners.append([one.slots[index].grad_norm for one in mine])
    relief = LIMITS.recovery if "exploding gradient" in active else 1.0
    for norms in owners:
        before = norms[: -LIMITS.explosion_steps]
        recent = norms[-1:] if relief < 1 else norms[-LIMITS.explosion_steps :]
        over = [exploding(before, norm, LIMITS.explosion_factor * relief, relief) for norm in recent]
        if None not in over:
            yield "exploding gradient", norms[-1] or 0.0, over[-1]
    relief = LIMITS.recovery if "loss above chance" in active else 1.0
    threshold = CHANCE_LOSS * LIMITS.chance_factor
    chance = [one.train_loss > threshold * relief for one in episode]
    needed = LIMITS.chance_steps if relief == 1.0 else 1
    falls = len(episode) >= needed and event.train_loss < episode[-needed].train_loss
    if len(chance) >= needed and all(chance[-needed:]) and not (relief == 1.0 and falls):
        yield "loss above chance", event.train_loss, threshold
    low = LIMITS.dead_gradient / (LIMITS.recovery if "dead seed" in active else 1.0)
    needed = LIMITS.dead_seed_steps if "dead seed" not in active else 1
    for index, slot in enumerate(event.slots):
        norms = [one.slots[index].grad_norm for one in episode[-needed:]]
        if slot.age >= needed and len(norms) == needed and all(norm is not None and norm < low for norm in norms):
            yield "dead seed", slot.grad_norm or 0.0, LIMITS.dead_gradient
    last = known[-LIMITS.skipped_steps :]
    if len(last) == LIMITS.skipped_steps and all(one.skipped_batches for one in last):
        yield "repeated skips", sum(one.skipped_batches for one in last), float(LIMITS.skipped_steps)


def broken_by_sample(
    event: ev.DeviceSampled, earlier: Sequence[ev.DeviceSampled], active: Container[str]
) -> Iterator[tuple[str, float, float | None]]:
    """Yield rule, value and threshold of the straggling lane, computed from all earlier samples."""
    loads: dict[str, float] = {}
    for lane in {one.device for one in (*earlier, event)}:
        samples = [one for one in (*earlier, event) if one.device == lane]
        recent = samples[-STRAGGLING_STEPS:]
        busy = [one.busy / one.active for one in recent if one.busy is not None and one.active]
        if len(busy) == STRAGGLING_STEPS:
            loads[lane] = sum(busy) / len(busy)
    mine = loads.pop(event.device, None)
    usual = median(loads.values()) if loads else 0.0
    relief = LIMITS.recovery if "straggling lane" in active else 1.0
    if mine is not None and usual > 0 and mine > LIMITS.straggler_ratio * relief * usual:
        yield "straggling lane", mine / usual, LIMITS.straggler_ratio


def reference(run: Sequence[ev.AnyEvent]) -> Iterator[list[tuple[object, ...]]]:
    """Yield, for each event of a run, the anomalies that begin and end with it."""
    open_: dict[str, dict[str, str]] = {}  # subject in which the anomaly was found, keyed by subject, then by rule
    steps: list[ev.EnvStepped] = []
    samples: list[ev.DeviceSampled] = []
    for event in run:
        if isinstance(event, ev.EnvStepped):
            where = f"env {event.env}"
            found = [*broken_by_step(event, steps, open_.get(where, {}))]
            steps.append(event)
        elif isinstance(event, ev.DeviceSampled):
            where = event.device
            found = [*broken_by_sample(event, samples, open_.get(where, {}))]
            samples.append(event)
        else:
            if isinstance(event, ev.RoundStarted):
                open_ = {subject: known for subject, known in open_.items() if not subject.startswith("env")}
            yield []
            continue
        known, now = open_.get(where, {}), dict[str, str]()
        said: list[tuple[object, ...]] = []
        for rule, value, threshold in found:
            if rule in now:
                continue
            now[rule] = known.get(rule, "")
            if not now[rule]:
                others = [known[rule] for known in open_.values() if rule in known] if where.startswith("env") else []
                now[rule] = others[0] if others else where
                said.append(("joined" if others else "found", rule, now[rule], value, threshold))
        open_[where] = now
        for rule in sorted(known.keys() - now.keys()):
            is_shared = any(mine.get(rule) == known[rule] for mine in open_.values())
            said.append(("left" if is_shared else "ended", rule, known[rule]))
        yield said


def as_tuples(findings: Sequence[AnomalyEvent]) -> list[tuple[object, ...]]:
    kinds = {ev.AnomalyFound: "found", ev.AnomalyJoined: "joined", ev.AnomalyLeft: "left", ev.AnomalyEnded: "ended"}
    return [
        (kinds[type(one)], one.rule, one.where, one.value, one.threshold)
        if isinstance(one, ev.AnomalyFound | ev.AnomalyJoined)
        else (kinds[type(one)], one.rule, one.where)
        for one in findings
    ]


COURSES = st.builds(course, st.integers(0, 2**32), st.integers(20, 160))


@given(run=COURSES, kept=st.sampled_from((health_stats.MAX_STEPS, 15, 12)))
def test_rules_match_a_reference_over_all_past_steps(run: list[ev.AnyEvent], kept: int) -> None:
    detector = AnomalyDetector(Thresholds(LIMITS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health_stats, "MAX_STEPS", kept)
        for event, expected in zip(run, reference(run), strict=True):
            assert repr(as_tuples(detector.check(event))) == repr(expected)


@given(run=COURSES, data=st.data())
def test_resumed_run_finds_the_same_anomalies(run: list[ev.AnyEvent], data: st.DataObject) -> None:
    detector, state = AnomalyDetector(Thresholds(LIMITS)), RunState()
    stops = data.draw(st.sets(st.integers(0, len(run) - 1), max_size=3))
    for number, (event, expected) in enumerate(zip(stamp(run), reference(run), strict=True)):
        if number in stops:
            detector = AnomalyDetector(Thresholds(LIMITS))
            detector.resume(Keyframe.from_state(state).decode_state())
        findings = detector.check(event)
        assert repr(as_tuples(findings)) == repr(expected)
        for one in (event, *findings):
            state.apply(one)


def test_example_series_break_every_history_rule() -> None:
    found = [one for seed in range(10) for said in reference(course(seed, 160)) for one in said]
    begun = {rule for _, rule, *_ in found}
    assert begun >= {"exploding gradient", "loss above chance", "dead seed", "repeated skips"}
    assert begun >= {"straggling lane", "non-finite score"}
    assert {kind for kind, *_ in found} == {"found", "joined", "left", "ended"}
