"""Runs grouped by their settings, and the curves of the groups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from esper.common.intervals import joint_level
from esper.recordings.history import run_groups
from esper.recordings.history.run_groups import (
    GroupCurve,
    config_difference,
    difference_curve,
    differing_keys,
    group_curve,
    round_means,
)
from esper.recordings.history.run_groups import group_runs as group
from esper.recordings.history.run_info import RunInfo

BASE = {"envs": 8, "seed": 0, "slots": ["early"], "plan": "", "telemetry-dir": "a", "ppo.entropy-coef": 0.08}


def run(name: str, **changes: Any) -> RunInfo:
    config = BASE | {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return info(name, config)


def info(name: str, config: dict[str, Any]) -> RunInfo:
    return RunInfo(run=name, path=name, state="done", bytes=0, written=0.0, config=config)


def names(runs: Sequence[RunInfo], keys: Sequence[str] | None = None) -> dict[str, str]:
    """Labels of the groups with the names of their runs, joined."""
    return {found.label: "".join(each.run for each in found.runs) for found in group(runs, keys)}


def test_runs_that_differ_in_the_seed_or_the_place_are_one_group() -> None:
    runs = [
        run("a"),
        run("b", seed=1, telemetry_dir="b"),
        run("c", ppo__entropy_coef=0.02),
        run("d", ppo__entropy_coef=0.02, seed=1),
    ]
    assert differing_keys(runs) == ["seed", "ppo.entropy-coef"]
    assert names(runs) == {"entropy-coef 0.08": "ab", "entropy-coef 0.02": "cd"}
    assert [found.values for found in group(runs)] == [{"ppo.entropy-coef": 0.08}, {"ppo.entropy-coef": 0.02}]
    assert names(runs[:2]) == {"all runs": "ab"}
    assert names(runs[:1]) == {"a": "a"}
    assert config_difference(runs[3], runs[0]) == [("seed", 1, 0), ("ppo.entropy-coef", 0.02, 0.08)]


def test_groups_by_given_keys_ignore_the_others_and_labels_name_only_differences() -> None:
    runs = [run("a"), run("b", slots=["mid"]), run("c", slots=["mid"], envs=4)]
    assert names(runs, ["slots"]) == {"slots early": "a", "slots mid": "bc"}
    assert names(runs, ["slots", "seed"]) == {"slots early": "a", "slots mid": "bc"}
    assert names(runs, []) == {"all runs": "abc"}
    assert names(runs) == {"envs 8, slots early": "a", "envs 8, slots mid": "b", "envs 4, slots mid": "c"}


def test_labels_keep_the_table_of_keys_that_share_their_last_part() -> None:
    runs = [info("a", {"x.clip": 1, "y.clip": 1}), info("b", {"x.clip": 2, "y.clip": 1}), info("c", {"y.clip": 2})]
    assert list(names(runs)) == ["x.clip 1, y.clip 1", "x.clip 2, y.clip 1", "x.clip unset, y.clip 2"]


def test_labels_leave_out_the_settings_that_follow_from_the_task() -> None:
    runs = [
        run("a", task="one", slots=["x"], envs=2, training__momentum=0.9),
        run("b", task="two", slots=["y"], envs=2, training__momentum=0.2),
        run("c", task="two", slots=["y"], envs=4, training__momentum=0.4),
    ]
    assert list(names(runs)) == [
        "momentum 0.9, envs 2, task one", "momentum 0.2, envs 2, task two", "momentum 0.4, envs 4, task two",
    ]  # fmt: skip
    assert list(names(runs[:2])) == ["task one", "task two"]


def test_absent_values_are_equal_and_unknown_configurations_stay_apart() -> None:
    runs = [run("a"), info("b", {key: BASE[key] for key in BASE if key != "plan"}), info("c", {}), info("d", {})]
    assert differing_keys(runs) == []
    assert names(runs) == {"all runs": "ab", "c": "c", "d": "d"}


def test_group_curve_is_the_mean_with_the_t_interval_where_two_runs_have_values() -> None:
    curve = group_curve([([1, 2, 3], [1.0, 2.0, 4.0]), ([2, 4], [4.0, 8.0]), ([], [])])
    assert curve.xs.tolist() == [2, 3]  # 1 and 4 are outside the range of one run: nothing is extrapolated
    assert curve.mean.tolist() == [3.0, 5.0]  # the second run has 6 at 3
    quantile = float(stats.t.ppf(0.975, 1))
    assert curve.high - curve.mean == pytest.approx([quantile * 1.0, quantile * 1.0])  # sd √2, over √2
    assert curve.mean - curve.low == pytest.approx(curve.high - curve.mean)


def test_curve_of_the_only_run_has_no_interval_and_gaps_do_not_count() -> None:
    alone = group_curve([([1, 2, 3], [1.0, math.nan, 2.0])])
    assert (alone.xs.tolist(), alone.mean.tolist()) == ([1, 3], [1.0, 2.0])
    assert np.isnan([alone.low, alone.high]).all()
    both = group_curve([([1, 2, 3], [1.0, math.inf, 3.0]), ([1, 1.5, 2, 3], [1.0, 1.0, 1.0, 1.0])])
    assert (both.xs.tolist(), both.mean.tolist()) == ([1, 3], [1.0, 2.0])
    assert group_curve([]).xs.tolist() == []


CURVES = st.lists(
    st.dictionaries(st.integers(0, 9), st.floats(-5, 5) | st.just(math.nan), max_size=6), min_size=1, max_size=5
)


@given(runs=CURVES)
def test_group_curve_equals_its_definition(runs: list[dict[int, float]]) -> None:
    curves = [dict(sorted(points.items())) for points in runs]
    found = group_curve([(list(points), list(points.values())) for points in curves])
    num_runs = sum(map(bool, curves))
    expected = {}
    for x in sorted({x for points in curves for x in points}):
        values = [value for points in curves if (value := value_at(points, x)) is not None]
        if len(values) >= min(num_runs, 2) > 0:
            half = math.nan
            if len(values) > 1:
                quantile = float(stats.t.ppf(0.975, len(values) - 1))
                half = quantile * statistics.stdev(values) / math.sqrt(len(values))
            expected[x] = (statistics.fmean(values), half)
    assert found.xs.tolist() == list(expected)
    assert found.mean == pytest.approx([mean for mean, _ in expected.values()])
    assert found.high - found.mean == pytest.approx([half for _, half in expected.values()], nan_ok=True, abs=1e-9)


def value_at(points: dict[int, float], x: int) -> float | None:
    """Value of a run on the line between its neighbouring points; None outside and beside NaN."""
    if x in points:
        return None if math.isnan(points[x]) else points[x]
    for left, right in pairwise(points):
        if left < x < right:
            value = points[left] + (points[right] - points[left]) * (x - left) / (right - left)
            return None if math.isnan(value) else value
    return None


def test_long_union_of_positions_is_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_groups, "MAX_GROUP_POINTS", 5)
    curve = group_curve([(np.arange(101), np.arange(101.0)), ([0, 100], [0.0, 100.0])])
    assert curve.xs.tolist() == curve.mean.tolist() == [0, 25, 50, 75, 100]


def test_difference_is_taken_at_common_positions_with_both_intervals() -> None:
    one, two = (GroupCurve(*map(np.array, rows)) for rows in (
        ([0.0, 2.0, 4.0], [1.0, 3.0, 5.0], [-2.0, 0.0, 2.0], [4.0, 6.0, 8.0]),
        ([1.0, 4.0], [1.0, 1.0], [-3.0, -3.0], [5.0, 5.0]),
    ))  # fmt: skip
    found = difference_curve(one, two)
    assert found.xs.tolist() == [1, 2, 4]
    assert found.mean.tolist() == [1, 2, 4]
    assert found.high - found.mean == pytest.approx([5, 5, 5])  # half-widths 3 and 4

    alone = two._replace(low=two.low * math.nan, high=two.high * math.nan)
    for first, second in ((one, alone), (alone, one), (alone, alone)):
        assert np.isnan(difference_curve(first, second).low).all()
    assert difference_curve(one, group_curve([])).xs.tolist() == []


def test_equal_groups_differ_from_the_baseline_in_at_most_five_of_100_charts() -> None:
    """Nineteen groups of eight runs. With intervals of 95 % each, a difference leaves 0 out in 31 of 100 charts."""
    rng, charts, wrong = np.random.default_rng(0), 100, 0
    for _ in range(charts):
        baseline, *groups = (
            group_curve([([1.0], value) for value in rng.normal(size=(8, 1))], joint_level(19)) for _ in range(20)
        )
        differences = [difference_curve(group, baseline) for group in groups]
        wrong += any(curve.low[0] > 0 or curve.high[0] < 0 for curve in differences)
    assert wrong <= 5


@pytest.mark.parametrize(
    ("steps", "values", "xs", "means"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], [1, 3, 5, 7, 2, 4, 6, 8], [4, 8], [4, 5]),
        ([1, 2, 3, 4, 5, 6], [1, 3, 5, 7, 2, 4], [4], [4]),  # an unfinished round
        ([1, 2], [1, 3], [2], [2]),  # nothing else is known yet
        ([4, 8], [1, 2], [4, 8], [1, 2]),  # one point per round
        ([2, 4, 6, 8], [math.nan, 1, math.nan, math.inf], [4, 8], [1, math.nan]),
        ([], [], [], []),
    ],
)
def test_round_means_are_those_of_finished_rounds(
    steps: list[int], values: list[float], xs: list[float], means: list[float]
) -> None:
    found = round_means(np.array(steps, float), np.array(values, float), np.array(steps) / 4)
    np.testing.assert_array_equal(found[0], xs)
    np.testing.assert_array_equal(found[1], means)
