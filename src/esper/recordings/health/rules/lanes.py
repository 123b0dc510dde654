"""Anomaly rules of the lanes, at each sample of their devices, and of an engine that is silent or gone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from esper.common.configuration.config import AnomalyConfig
from esper.common.domain import Rule
from esper.common.formatting import format_value
from esper.recordings import events as ev
from esper.recordings.health.rule_context import RuleContext
from esper.recordings.health.rules.registry import rule, warning
from esper.recordings.state.health_stats import MemoryHealth, memory_name

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
STALE_MIN_S = 4.0
"""Minimum duration without an event, in seconds, because short steps are irregular."""
STOPPED_MIN_S = 1.0
"""The same, if the process of the engine is stopped."""


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
    if growth is None or not memory.total or memory.used is None:
        return None
    return memory.rounds[-1][0] + math.ceil(max(memory.total - memory.used, 0) / growth)


def is_nearly_full(fraction: float, limits: AnomalyConfig) -> bool:
    """Return True if this fraction of a memory in use makes it nearly full."""
    return fraction > limits.memory


@rule(ev.DeviceSampled, {Rule.MEMORY_NEARLY_FULL: "more than {limits.memory:.0%} of a device's memory is in use"})
def _check_memory_use(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    if not context.health.is_memory_reporter(event.device) or event.used is None or not event.total:
        return
    fraction, limit = event.used / event.total, context.limits.memory
    if is_nearly_full(fraction / context.hysteresis(Rule.MEMORY_NEARLY_FULL, event.device), context.limits):
        text = f"{event.device}: {fraction:.0%} of its memory is in use, more than {limit:.0%}"
        yield warning(Rule.MEMORY_NEARLY_FULL, event.device, fraction, limit, text)


@rule(
    ev.DeviceSampled,
    {
        Rule.MEMORY_GROWS: f"the run's memory grew in each of the last {MEMORY_GROWTH_ROUNDS} rounds, by more than "
        "{limits.memory_growth:.0%} in all, and may be full before the last round"
    },
)
def _check_memory_growth(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    """Find a memory that grows, unless it will not be full before the last round."""
    memory = context.health.memories[memory_name(event.device)]
    limit = context.limits.memory_growth
    now = limit * context.hysteresis(Rule.MEMORY_GROWS, event.device)
    growth = memory_growth(memory, now)
    if growth is None or not context.health.is_memory_reporter(event.device):
        return
    full_round, rounds = predict_full_round(memory, now), context.health.rounds
    # The forecast of one of several ranks does not know the growth of the others on its machine.
    is_forecast_reliable = not context.is_active(Rule.MEMORY_GROWS, event.device) and "/" not in event.device
    fits = full_round is not None and rounds is not None and full_round > rounds
    if not (is_forecast_reliable and fits):
        value = growth * MEMORY_GROWTH_ROUNDS / memory.rounds[-MEMORY_GROWTH_ROUNDS - 2][1]
        text = f"{event.device}: memory grew by {growth / 2**20:.0f} MiB per round "
        text += f"in the last {MEMORY_GROWTH_ROUNDS} rounds"
        process = memory.growing_process(MEMORY_GROWTH_ROUNDS)
        text += f", mostly that of the {process}" if process is not None else ""
        text += f"; at this rate it is full in round {full_round}" if full_round is not None else ""
        yield warning(Rule.MEMORY_GROWS, event.device, value, limit, text)


@rule(
    ev.DeviceSampled,
    {Rule.LOSS_SCALES_DIVERGE: f"loss scales on one device differ by a factor above {MAX_SCALE_RATIO:.0f}"},
)
def _check_scale_ratio(event: ev.DeviceSampled, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if event.scale_min is None or not event.scale_max:
        return
    ratio = event.scale_max / event.scale_min if event.scale_min else math.inf
    if ratio > MAX_SCALE_RATIO:
        text = f"{event.device}: loss scales of its envs differ by a factor of {ratio:.0f}, "
        text += f"more than {MAX_SCALE_RATIO:.0f}"
        yield warning(Rule.LOSS_SCALES_DIVERGE, event.device, ratio, MAX_SCALE_RATIO, text)


@rule(ev.DeviceSampled, {Rule.LOSS_SCALE_BELOW_1: f"a loss scale is below {MIN_LOSS_SCALE:g}"})
def _check_scale_minimum(event: ev.DeviceSampled, _: RuleContext) -> Iterator[ev.AnomalyFound]:
    if event.scale_min is not None and not event.scale_min >= MIN_LOSS_SCALE:
        text = f"{event.device}: the minimum loss scale is {format_value(event.scale_min)}; "
        text += f"below {MIN_LOSS_SCALE:g}, each halving only loses precision"
        yield warning(Rule.LOSS_SCALE_BELOW_1, event.device, event.scale_min, MIN_LOSS_SCALE, text)


@rule(
    ev.DeviceSampled,
    {
        Rule.STRAGGLING_LANE: "a lane takes more than {limits.straggler_ratio:g} times as long per env as the median "
        f"of the other lanes, over {STRAGGLING_STEPS} steps"
    },
)
def _check_lane_load(event: ev.DeviceSampled, context: RuleContext) -> Iterator[ev.AnomalyFound]:
    load = context.lane_load(event.device, STRAGGLING_STEPS)
    if load is None:
        return
    others = [context.lane_load(lane, STRAGGLING_STEPS) for lane in context.health.lanes if lane != event.device]
    usual = median([other for other in others if other is not None] or [0.0])
    limit = context.limits.straggler_ratio
    if usual > 0 and load > limit * context.hysteresis(Rule.STRAGGLING_LANE, event.device) * usual:
        text = f"{event.device} takes {load / usual:.1f}× as long per env as the median of the other lanes "
        text += f"(last {STRAGGLING_STEPS} steps)"
        yield warning(Rule.STRAGGLING_LANE, event.device, load / usual, limit, text)


@rule(
    None,
    {
        Rule.STALE_TELEMETRY: "the engine has reported nothing for {limits.stale_steps:g} times the duration of a "
        f"step, and for {STALE_MIN_S:g} seconds; or its process is stopped"
    },
)
def check_stale(
    cadence: float | None, age: float, limits: AnomalyConfig, stopped: int | None = None
) -> ev.AnomalyFound | None:
    """Return an anomaly if the engine has not emitted an event for too long, else None.

    The screens call this rule by their clock, because no event can trigger it.

    Args:
        cadence: Usual duration of a step in seconds; None before the first step, or if no events are expected.
        age: Seconds since the last event.
        limits: Thresholds of the run.
        stopped: Number of the engine's process, if a signal has stopped it; None if not, or if it is not known.
    """
    limit = max(limits.stale_steps * cadence, STALE_MIN_S) if cadence is not None else math.inf
    if stopped is not None:
        text = f"process {stopped} is stopped: no event from the engine for {age:.0f} s; "
        text += f"`kill -CONT {stopped}` continues it"
        return warning(Rule.STALE_TELEMETRY, "engine", age, min(limit, STOPPED_MIN_S), text)
    if age <= limit:
        return None
    text = f"no event from the engine for {age:.0f} s; a step usually takes {cadence:.2g} s"
    return warning(Rule.STALE_TELEMETRY, "engine", age, limit, text)


@rule(None, {Rule.CRASHED_RUN: "the process of the run has ended without recording the end of the run"})
def crash_anomaly(can_resume: bool) -> ev.AnomalyFound:
    """Return the anomaly of a run whose process has ended without an event.

    Args:
        can_resume: True if the run has a checkpoint from which it can be resumed.
    """
    resumable = " and can be resumed" if can_resume else ""
    text = f"the run crashed{resumable}: its process ended, and its recording has no end"
    return ev.AnomalyFound(rule=Rule.CRASHED_RUN.value, severity="error", where="engine", value=1.0, text=text)
