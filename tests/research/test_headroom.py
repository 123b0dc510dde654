"""`research/headroom.py` makes its tables from lessons."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from research.alternatives import KIND_PLANS
from research.curriculum import Course
from research.teach import lesson_path, prepare
from research.teaching.lessons import Lesson, write_lesson

from esper.training.policy.observation import BASE_FEATURES, ObservationShape
from research import context_gain, headroom
from tests.research.teaching.made import made_lesson

COURSE = Course("digits", 12, 8)
SHAPE = ObservationShape(3, 7)
STEPS = 12


def lesson_of(context: int, plans: list[str]) -> Lesson:
    """Return a lesson whose best kind of plan depends on a feature of the host, 0 or 1.

    The heuristic gains 0.3 in half of the contexts, waiting 0.2 in the other half, and all other plans nothing.
    """
    feature = context % 2
    alternatives = list(dict.fromkeys(plans))
    gains = [0.0] * len(alternatives)
    gains[feature] = (0.2, 0.3)[feature]
    lesson = made_lesson(float(feature), gains, SHAPE, steps=STEPS)
    lesson.rent_OPT[:, 1] = 0
    lesson.info.alternatives[:] = alternatives
    return lesson


def run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["headroom.py", "--directory", str(directory)])
    monkeypatch.setattr(headroom, "COURSES", (COURSE,))
    monkeypatch.setattr(context_gain, "PENALTIES", (0.1,))
    headroom.main()


def test_tables_show_what_a_feature_of_the_host_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = headroom.plans_of(prepare(COURSE)[1])
    for context in range(COURSE.contexts):
        write_lesson(lesson_path(tmp_path, 0, COURSE, context), lesson_of(context, plans))
    run(tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    assert "### digits-12: 8 contexts, 23 kinds of plans" in printed
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("| 0.002")
    ]
    cost = 0.001  # of the op of every plan that plants
    assert rows[0][:3] == ["0.002", "heuristic", f"{0.15 - cost:+.3f}"]
    assert rows[0][4] == "+0.100"
    assert rows[0][5].startswith("+0.10")  # waiting where it is better
    assert [row[1] for row in rows[1:]] == [
        "layout and host before the first step", "also 5 steps of the idle host", "also 10 steps of the idle host",
    ]  # fmt: skip
    assert all(cell.startswith("+0.10") for row in rows[1:] for cell in row[2:])


def test_arrays_hold_gain_rent_and_observations_of_the_idle_host() -> None:
    plans = headroom.plans_of(prepare(COURSE)[1])
    assert len(plans) == len(KIND_PLANS) + 2
    lessons = [lesson_of(context, plans) for context in range(3)]
    found = headroom.read_contexts(lessons, plans, 0)
    rent_C = np.array([0.001, 0.01, 0.002])
    for context, lesson in enumerate(lessons):
        index = [lesson.info.alternatives.index(plan) for plan in plans]
        expected = lesson.returns(rent_C[context])[:, index].numpy()
        np.testing.assert_allclose(found.returns(rent_C)[:, context], expected, atol=1e-12)
    base_T = lessons[1].obs_OPTF[1, 0, :, :BASE_FEATURES]
    assert found.measured_OCTF.shape == (2, 3, 10, 7)
    for column, feature in ((0, "loss"), (1, "score")):
        place = {"loss": 1, "score": 1 + headroom.HISTORY_STEPS}[feature]
        np.testing.assert_allclose(found.measured_OCTF[1, 1, :, column], base_T[1:11, place])
    assert found.features(rent_C, 5).shape[2] == found.visible_OCF.shape[2] + 1 + 35
    absent = made_lesson(1.0, [0.0, 0.1], SHAPE, slots=2, steps=STEPS).obs_OPTF[:, 0, 0]
    assert headroom._visible(absent, SHAPE).shape[1] == found.visible_OCF.shape[2]
    assert torch.isfinite(torch.from_numpy(headroom._visible(absent, SHAPE))).all()


def test_joined_courses_keep_their_structures_apart() -> None:
    plans = headroom.plans_of(prepare(COURSE)[1])
    lessons = [lesson_of(context, plans) for context in range(3)]
    one, other = headroom.read_contexts(lessons, plans, 0), headroom.read_contexts(lessons[:2], plans, 4)
    joined = headroom.join([one._replace(structure_C=np.array([0, 1, 0])), other])
    assert joined.course_C.tolist() == [0, 0, 0, 4, 4]
    assert joined.structure_C.tolist() == [0, 1, 0, 2, 2]
    np.testing.assert_array_equal(joined.gain_OCP[:, 3:], other.gain_OCP)
    assert joined.measured_OCTF.shape == (2, 5, 10, 7)
