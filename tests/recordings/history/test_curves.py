"""Curves of a run: names, values over all envs and of single envs, and those of an excerpt."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from esper.recordings import events as ev
from esper.recordings.history.curves import POPULATION, Point, RunCurves, split_name
from tests.factory import env_stepped, example_run, stamp
from tests.recordings.files.recordings import fold
from tests.sanctum.population import population

RUN = example_run()


def points_of(curves: RunCurves, events: Iterable[ev.AnyEvent]) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of each curve."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        for point in curves.points(event):
            if isinstance(point, Point):
                found.setdefault(point.curve, []).append((point.step, point.value))
    return found


def test_population_has_five_numbers_of_each_step() -> None:
    found = points_of(RunCurves(), RUN)
    for step in range(1, 11):
        scores = [
            event.score
            for event in RUN
            if isinstance(event, ev.EnvStepped) and (event.round - 1) * 5 + event.step == step
        ]
        numbers = [found[f"accuracy/{owner}"][step - 1] for owner in POPULATION]
        assert numbers == [(step, pytest.approx(value)) for value in np.percentile(scores, [0, 25, 50, 75, 100])]


def test_population_leaves_out_values_that_are_not_finite() -> None:
    found = points_of(RunCurves(per_env=True), RUN)
    assert math.isnan(found["gradient norm/env 01"][2][1])
    assert len(found["gradient norm/max"]) == 10
    assert all(math.isfinite(value) for _, value in found["gradient norm/max"])


def test_everything_recorded_has_a_curve() -> None:
    step = env_stepped(metrics={"top/5": 0.9}, loss_scale=2.0, round=2, step=18)
    run = [*population(rounds=2), step, ev.PhaseTimed(round=2, step=18, wall=0.1, phases={})]
    quantities = {split_name(name)[0] for name in points_of(RunCurves(), run)}
    assert quantities >= {
        *("accuracy", "train accuracy", "loss", "train loss", "reward", "reward part accuracy", "reward part rent"),
        *(
            "dependence",
            "seed gradient norm",
            "predicted return",
            "gradient norm",
            "parameters",
            "loss scale",
            "skipped batches",
            "top/5",
        ),
        *("final accuracy", "return", "fossilized seeds", "culled seeds", "rollbacks"),
        *("learning rate", "entropy", "KL", "clip fraction", "explained variance", "policy loss", "value loss"),
        *("busy", "memory allocated", "memory used", "step time"),
    }


def test_plantings_are_counted_per_episode_and_round() -> None:
    found = points_of(RunCurves(), RUN)
    assert found["planted/conv_small in early"] == [(5, 0.5), (10, 0.5)]  # envs 0 and 3 of 4
    assert found["planted/norm in late"] == [(5, 0.25), (10, 0.25)]


def test_round_without_plantings_has_zero() -> None:
    run = [event for event in RUN if not (isinstance(event, ev.SeedMoved) and event.round == 2)]
    assert points_of(RunCurves(), run)["planted/norm in late"] == [(5, 0.25), (10, 0.0)]


def test_curves_of_an_excerpt_continue_those_of_the_run() -> None:
    start = next(i for i, event in enumerate(RUN) if isinstance(event, ev.RoundStarted) and event.round == 2)
    whole, excerpt = points_of(RunCurves(), RUN), points_of(RunCurves(fold(RUN[:start])), RUN[start:])
    assert excerpt == {name: [point for point in points if point[0] > 5] for name, points in whole.items()}


def test_rounds_are_counted_without_steps() -> None:
    started, *_ = RUN
    ended = [event for event in RUN if isinstance(event, (ev.EpisodeEnded, ev.PolicyUpdated))]
    assert [step for step, _ in points_of(RunCurves(), stamp([started, *ended]))["return/median"]] == [5, 10]
