"""Rules with running extremes find the same anomalies as a reference that scans all past steps."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.health import rules
from esper.health.detector import AnomalyDetector, AnomalyEvent
from esper.health.rule_context import SortedAccuracies
from esper.telemetry import events as ev
from esper.telemetry import health_stats
from esper.telemetry.state import Keyframe, RunState
from tests.factory import device_sampled, env_stepped, run_started, stamp

ENVS = 4
STRANGE = (math.nan, math.inf, -math.inf)
Broken: TypeAlias = dict[tuple[str, str], tuple[float, float | None]]
"""Value and threshold, keyed by rule and subject."""


def course(seed: int, length: int) -> list[ev.AnyEvent]:
    """Return random steps of several envs and rounds, with stalled envs, short-lived seeds and non-finite values."""
    draw = random.Random(seed)
    strange = draw.choice((0.0, 0.0, 0.02, 0.2))
    new_round = draw.choice((0.0, 0.01, 0.05))
    paces = [draw.choice((0.2, 1.0)) for _ in range(3)]
    ages, rounds = [[0, 0] for _ in range(ENVS)], 1
    run: list[ev.AnyEvent] = [run_started(ENVS), ev.RoundStarted(round=1)]

    def norm() -> float:
        return draw.choice(STRANGE) if draw.random() < strange else draw.choice((0.0, 0.01, 0.1, 0.2, 1.0, 1.5, 3.0))

    for step in range(1, length + 1):
        if draw.random() < new_round:
            rounds += 1
            run.append(ev.RoundStarted(round=rounds))
        env = draw.randrange(ENVS)
        slots: list[ev.SlotReading] = []
        for slot in range(2):
            ages[env][slot] = 0 if draw.random() < 0.1 else ages[env][slot] + draw.choice((0, 1, 1, 1, 1, 3))
            grad_norm = None if draw.random() < 0.2 else norm()
            slots.append(ev.SlotReading(stage="training", age=ages[env][slot], grad_norm=grad_norm))
        accuracy = draw.choice(STRANGE) if draw.random() < strange else draw.choice((0.2, 0.3, 0.5, 0.9)[: env + 1])
        run.append(
            env_stepped(
                env, rounds, step, accuracy=accuracy, grad_norm=norm(), slots=slots, lost=int(draw.random() < 0.4)
            )
        )
        if draw.random() < 0.3:
            lane, busy = draw.randrange(3), draw.choice((0.5, 0.9, 0.9, 0.9))
            active = 1 + draw.randrange(1 + lane)
            busy = None if draw.random() < 0.05 else busy * active * paces[lane]
            run.append(device_sampled(f"cpu:{lane}", envs=1 + lane, active=active, busy=busy, allocated=None))
    return run


def broken_by_step(event: ev.EnvStepped, earlier: Sequence[ev.EnvStepped]) -> Iterator[tuple[str, float, float | None]]:
    """Yield rule, value and threshold of the anomalies of a step, computed from all earlier steps."""
    for rule, value in (("loss", event.train_loss), ("loss", event.loss), ("accuracy", event.accuracy)):
        if not math.isfinite(value):
            yield f"non-finite {rule}", value, None
    for value in (event.grad_norm, *(slot.grad_norm for slot in event.slots)):
        if value is not None and not math.isfinite(value):
            yield "non-finite gradient", value, None
    known = [one for one in earlier if one.env == event.env][1 - health_stats.MAX_STEPS :]
    episode = [one for one in known if one.round == event.round]
    owners: list[tuple[list[float | None], float | None]] = [([one.grad_norm for one in episode], event.grad_norm)]
    for index, slot in enumerate(event.slots):
        mine = episode[len(episode) - min(slot.age, len(episode)) :]
        owners.append(([one.slots[index].grad_norm for one in mine], slot.grad_norm))
    for before, norm in owners:
        finite = [value for value in before if value is not None and math.isfinite(value)]
        if norm is None or not math.isfinite(norm) or len(finite) < rules.EXPLODING_MIN_SAMPLES:
            continue
        limit = max(rules.EXPLODING_FACTOR * median(finite), rules.EXPLODING_MIN_NORM)
        if median(finite) > 0 and limit < norm:
            yield "exploding gradient", norm, limit
    last = [*known, event][-rules.MAX_CONSECUTIVE_SKIPS :]
    if len(last) == rules.MAX_CONSECUTIVE_SKIPS and all(one.lost for one in last):
        yield "repeated skips", sum(one.lost for one in last), float(rules.MAX_CONSECUTIVE_SKIPS)
    accuracies = [one.accuracy for one in [*episode, event]]
    split = len(accuracies) - rules.STALLED_STEPS
    if split > 0 and not max(accuracies[split:]) > max(accuracies[:split]):
        latest = {one.env: one.accuracy for one in earlier if one.env != event.env}
        limit = (median(latest.values()) if latest else event.accuracy) - rules.STALLED_MIN_GAP
        if event.accuracy < limit:
            yield "stalled env", event.accuracy, limit


def broken_by_sample(
    event: ev.DeviceSampled, earlier: Sequence[ev.DeviceSampled]
) -> Iterator[tuple[str, float, float | None]]:
    """Yield rule, value and threshold of the straggling lane, computed from all earlier samples."""
    loads: dict[str, float] = {}
    for lane in {one.device for one in (*earlier, event)}:
        samples = [one for one in (*earlier, event) if one.device == lane]
        recent = samples[-rules.STRAGGLING_STEPS :]
        busy = [one.busy / one.active for one in recent if one.busy is not None and one.active]
        if len(busy) == rules.STRAGGLING_STEPS:
            loads[lane] = sum(busy) / len(busy)
    mine = loads.pop(event.device, None)
    usual = median(loads.values()) if loads else 0.0
    if mine is not None and usual > 0 and mine > rules.STRAGGLER_RATIO * usual:
        yield "straggling lane", mine / usual, rules.STRAGGLER_RATIO


def reference(run: Sequence[ev.AnyEvent]) -> Iterator[list[tuple[object, ...]]]:
    """Yield, for each event of a run, the anomalies that begin and end with it."""
    open_: dict[str, Broken] = {}
    rounds: dict[str, int] = {}
    steps: list[ev.EnvStepped] = []
    samples: list[ev.DeviceSampled] = []
    for event in run:
        now: Broken = {}
        if isinstance(event, ev.EnvStepped):
            where = f"env {event.env}"
            if rounds.get(where) != event.round:
                rounds[where] = event.round
                open_.pop(where, None)
            found = [*broken_by_step(event, steps)]
            steps.append(event)
        elif isinstance(event, ev.DeviceSampled):
            where, found = event.device, [*broken_by_sample(event, samples)]
            samples.append(event)
        else:
            yield []
            continue
        for rule, value, threshold in found:
            now.setdefault((rule, where), (value, threshold))
        known, open_[where] = open_.get(where, {}), now
        begun = [("found", *key, *now[key]) for key in now if key not in known]
        yield [*begun, *(("ended", *key) for key in sorted(known.keys() - now.keys()))]


def as_tuples(findings: Sequence[AnomalyEvent]) -> list[tuple[object, ...]]:
    return [
        ("found", one.rule, one.where, one.value, one.threshold)
        if isinstance(one, ev.AnomalyFound)
        else ("ended", one.rule, one.where)
        for one in findings
    ]


COURSES = st.builds(course, st.integers(0, 2**32), st.integers(20, 160))


@settings(max_examples=100)
@given(run=COURSES, kept=st.sampled_from((health_stats.MAX_STEPS, 15, 12)))
def test_rules_match_a_reference_over_all_past_steps(run: list[ev.AnyEvent], kept: int) -> None:
    detector = AnomalyDetector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health_stats, "MAX_STEPS", kept)
        for event, expected in zip(run, reference(run), strict=True):
            assert repr(as_tuples(detector.check(event))) == repr(expected)


@settings(max_examples=30)
@given(run=COURSES, data=st.data())
def test_resumed_run_finds_the_same_anomalies(run: list[ev.AnyEvent], data: st.DataObject) -> None:
    detector, state = AnomalyDetector(), RunState()
    stops = data.draw(st.sets(st.integers(0, len(run) - 1), max_size=3))
    for number, (event, expected) in enumerate(zip(stamp(run), reference(run), strict=True)):
        if number in stops:
            detector = AnomalyDetector()
            detector.resume(Keyframe.from_state(state).decode_state())
        findings = detector.check(event)
        assert repr(as_tuples(findings)) == repr(expected)
        for one in (event, *findings):
            state.apply(one)


def test_example_series_break_every_history_rule() -> None:
    begun = {one[1] for seed in range(10) for said in reference(course(seed, 160)) for one in said}
    assert begun >= {"exploding gradient", "repeated skips", "stalled env", "straggling lane", "non-finite accuracy"}


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from((0.1, 0.2, 0.3, 0.4, math.nan, math.inf))), min_size=1, max_size=40
    )
)
def test_median_of_other_envs_excludes_the_env(updates: list[tuple[int, float]]) -> None:
    accuracies, latest = SortedAccuracies(), dict[int, float]()
    for env, accuracy in updates:
        latest[env] = accuracy
        accuracies.set_accuracy(env, accuracy)
        others = [value for other, value in latest.items() if other != env]
        assert repr(accuracies.median_of_others(env)) == repr(median(others) if others else None)
