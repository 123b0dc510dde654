"""Downsampled series, step traces and blueprint statistics."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.domain import StageName
from esper.recordings import events as ev
from esper.recordings.state.series import MAX_POINTS, DownsampledSeries, five_numbers
from esper.recordings.state.state import Keyframe, RunState
from tests.factory import SLOTS, env_stepped, policy_updated, run_started, stamp


def series_of(values: list[float | None]) -> DownsampledSeries:
    series = DownsampledSeries()
    for value in values:
        series.append(value)
    return series


@given(st.integers(0, 3000))
def test_series_of_any_length_has_few_points_and_keeps_mean(count: int) -> None:
    series = series_of([float(value) for value in range(count)])
    assert len(series.points) < MAX_POINTS
    assert len(series.points) * series.every + len(series.rest) == count
    assert all(point == index * series.every + (series.every - 1) / 2 for index, point in enumerate(series.points))


def test_series_point_ignores_missing_values() -> None:
    values: list[float | None] = [1.0, None, None, None, 2.0, math.nan]
    series = series_of(values + [0.0] * (MAX_POINTS - 6))
    assert series.every == 2
    assert series.values[:2] == [1.0, None]
    assert math.isnan(series.values[2] or 0.0)


def test_series_continues_after_a_keyframe() -> None:
    whole, first = RunState(), RunState()
    run = stamp([run_started(), *(policy_updated(round_, kl=round_ / 7) for round_ in range(1, 600))])
    for event in run:
        whole.apply(event)
    for event in run[:300]:
        first.apply(event)
    second = Keyframe.from_state(first).decode_state()
    for event in run[300:]:
        second.apply(event)
    assert second.curves == whole.curves
    assert whole.curves["KL/policy"].every == 4
    assert set(whole.curves["gradient norm/head alpha_curve"].values) == {None}


def moved(step: int, after: StageName, *, slot: str = "mid", blueprint: str = "norm") -> ev.SeedMoved:
    return ev.SeedMoved(
        round=1, step=step, env=0, slot=slot, before="dormant", after=after, blueprint=blueprint, reason="op"
    )  # fmt: skip


def grown(
    step: int, stage: StageName, dependence: float | None = None, blueprint: str | None = "norm"
) -> ev.EnvStepped:
    """Return a step of env 0 with a seed in the second slot."""
    reading = ev.SlotReading(stage=stage, blueprint=blueprint, parameters=40, dependence=dependence)
    slots = [ev.SlotReading(stage="dormant"), reading, ev.SlotReading(stage="dormant")]
    return env_stepped(0, step=step, slots=slots)


def ended(env: int = 0) -> ev.EpisodeEnded:
    return ev.EpisodeEnded(
        round=1, env=env, score=0.5, best_score=0.5, episode_return=0.0, parameter_ratio=1.0, fossilized=0,
        culled=0,
    )  # fmt: skip


def folded(*events: ev.AnyEvent) -> RunState:
    state = RunState()
    for event in stamp([run_started(), ev.RoundStarted(round=1), *events]):
        state.apply(event)
    return state


def test_blueprint_stats_counts_each_seed_once() -> None:
    state = folded(
        grown(1, "germinated"), moved(1, "germinated"),
        grown(2, "blending", 0.5), grown(3, "blending", 0.125), moved(3, "probationary"),
        grown(4, "culled", blueprint=None), moved(4, "culled"),
        grown(5, "germinated"), moved(5, "germinated"),
        grown(6, "fossilized", 0.25), moved(6, "fossilized"),
        ended(),
    )  # fmt: skip
    stats = state.blueprints["norm"]
    assert (stats.planted, stats.fossilized, stats.culled) == (2, 1, 1)
    assert stats.size == 40


def test_trace_covers_the_current_episode() -> None:
    first = env_stepped(0, step=1, op_probability=0.25)
    state = folded(first, env_stepped(0, step=2))
    one, two = state.envs[0].trace
    assert (one.step, one.stages, one.dependences) == (1, "dbe", [None, 0.04, None])
    assert (one.seq, one.score, one.train_score, one.alphas) == (3, 0.35, 0.3, [None, 0.5, None])
    assert (one.op, one.probability, two.step) == ("wait", 0.25, 2)
    assert Keyframe.from_state(state).decode_state().envs == state.envs
    for event in stamp([ev.RoundStarted(round=2)], first=100):
        state.apply(event)
    assert state.envs[0].trace == []
    assert len(SLOTS) == len(one.stages)


def test_ops_are_counted_by_round() -> None:
    state = folded(env_stepped(0), env_stepped(1, op="cull"), env_stepped(2), ev.RoundStarted(round=2), env_stepped(0))
    assert state.ops == [{"wait": 2, "cull": 1}, {"wait": 1}]
    for event in stamp((ev.RoundStarted(round=round_) for round_ in range(3, 60)), first=100):
        state.apply(event)
    assert len(state.ops) == 24


@pytest.mark.parametrize("scores", [[math.nan, 0.5, 0.4], [0.5, math.nan, 0.4]])
def test_best_accuracy_survives_a_nan(scores: list[float]) -> None:
    steps = [env_stepped(0, 1, step, score=accuracy) for step, accuracy in enumerate(scores, 1)]
    assert folded(*steps).envs[0].best_score == 0.5


def test_best_accuracy_includes_the_one_after_a_rollback() -> None:
    assert folded(env_stepped(0, score=0.1), ended()).envs[0].best_score == 0.5


def test_best_env_is_the_first_that_reached_the_best_accuracy() -> None:
    scores = [(1, 1, 0.4), (3, 1, 0.6), (1, 2, 0.6), (2, 2, 0.6)]
    state = folded(*(env_stepped(env, step=step, score=accuracy) for env, step, accuracy in scores))
    assert state.best_env is state.envs[3]
    assert folded().best_env is None


def test_culled_seed_in_a_slot_without_reading_is_counted() -> None:
    state = RunState()
    for event in stamp([run_started(), env_stepped(slots=[]), moved(2, "culled", slot="late")]):
        state.apply(event)
    assert state.blueprints["norm"].culled == 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=70))
def test_five_numbers_equal_percentiles_of_numpy(values: list[float]) -> None:
    assert five_numbers(values) == pytest.approx(np.percentile(values, [0, 25, 50, 75, 100]))


def test_five_numbers_are_those_of_the_finite_values() -> None:
    assert five_numbers([math.inf, 3.0, math.nan, 1.0, 2.0, -math.inf]) == (1.0, 1.5, 2.0, 2.5, 3.0)
    assert all(map(math.isnan, five_numbers([math.nan])))
