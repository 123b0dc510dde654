"""`research/teach.py` and `research/generalist_evaluation.py`: lessons, the report, and the comparison with plans."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
from research.alternatives import KIND_PLANS, kind_plan
from research.curriculum import COURSES, Course
from research.generalist_evaluation import CONSTANT, PARTS, Outcome, Part, Results, choose_plans, print_rows
from research.teach import DIRECTORY, PUPIL, draw, lesson_path, prepare, report
from research.teaching.lessons import Lesson, write_lesson

from esper.common.configuration.config import ConfigError
from esper.training.policy.observation import ObservationShape
from tests.research.teaching.made import made_lesson

COURSE = Course("digits", 12, 5)
OTHER = Course("research/somewhere.py:OTHER", 15, 1)
SHAPE = ObservationShape(3, 7)


def lesson_of(gains: Sequence[float], alternatives: Sequence[str]) -> Lesson:
    """Return a lesson without rent and costs."""
    lesson = made_lesson(1.0, gains, SHAPE)
    lesson.info.alternatives[:] = alternatives
    lesson.rent_OPT.zero_()
    lesson.cost_OPT.zero_()
    return lesson


def test_courses_have_folders_of_their_own() -> None:
    assert len({course.name for course in COURSES}) == len(COURSES)
    assert lesson_path(DIRECTORY, 2, OTHER, 7) == DIRECTORY / "iteration-2" / "other-15" / "00007.safetensors"
    taught = {course.task for course in COURSES}
    assert not {part.course.task for part in PARTS.values() if part.lessons_of is None} & taught
    assert {(part.lessons_of, part.course.steps) for part in PARTS.values() if part.lessons_of} <= {
        (course.task, course.steps) for course in COURSES
    }


def test_rent_of_a_context_stays_as_it_is() -> None:
    """Stored lessons have these rents; the plans are drawn after them."""
    rents = [draw(*key)[1] for key in ((0, 0), (0, 1), (1, 0))]
    assert rents == pytest.approx([0.0018444970567, 0.0015623345068, 0.0042448370288], rel=1e-10)


def test_report_chooses_in_one_order_and_scores_in_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lucky = lesson_of([0.0, 0.0, 0.0], ["", PUPIL, "1:norm@early"])
    lucky.score_OPT[0, 2, 1:] += 0.3  # good in one order, bad in the other
    lucky.score_OPT[1, 2, 1:] -= 0.1
    for context, lesson in enumerate((lucky, lesson_of([0.1, 0.0], ["", PUPIL]))):
        write_lesson(lesson_path(tmp_path, 1, COURSE, context), lesson)
    write_lesson(lesson_path(tmp_path, 1, OTHER, 0), lesson_of([0.0, 0.2], ["", PUPIL]))
    report([COURSE, OTHER], Namespace(directory=tmp_path, iteration=1))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["digits-12", "2", "1"], ["other-15", "1", "0"], ["all", "3", "1"]]
    assert rows[0][3].startswith("+0.025 [")  # −0.05 and +0.1
    assert rows[1][3] == "+0.000"


def outcomes(*gains: float, rent: float = 0.0) -> list[Outcome]:
    return [Outcome(gain=gain, rent=rent, score=0.5, parameter_ratio=2.0, broke_down=False) for gain in gains]


def test_rows_compare_with_plans_at_their_rent(capsys: pytest.CaptureFixture[str]) -> None:
    others: dict[str, Sequence[Outcome]] = {
        "static": outcomes(0.1, 0.3),
        **{kind: outcomes(0.0, 0.0) for kind in CONSTANT},
    }
    others["large two"] = outcomes(0.5, 0.7, rent=25.0)
    policies = [outcomes(0.3, 0.4, rent=10.0), outcomes(0.4, 0.5, rent=10.0)]
    cheap, dear = (Results(rent, policies, others, "large two", "small two") for rent in (0.0, 0.02))
    assert (cheap.hindsight, dear.hindsight) == ("large two", "static")  # 25 × 0.02 is 0.5
    assert Results(0.0, policies, {"static": others["static"]}, None, None).hindsight is None
    assert cheap.difference("heuristic") == cheap.difference(None) == ""
    assert cheap.difference("large two").startswith("-0.200 [")
    assert dear.difference("large two").startswith("+0.100 [")
    print_rows("digits", [dear])
    cells = [cell.strip() for cell in capsys.readouterr().out.split("|")[1:-1]]
    assert cells[:5] == ["digits, 0.02", "2", "0", "×2.00", "0.500"]
    assert cells[6:8] == ["", ""]
    assert [cell.split(" ")[0] for cell in cells[8:]] == ["+0.000", "large", "small", "static"]


def test_plans_to_compare_with_are_chosen_in_the_lessons(tmp_path: Path) -> None:
    space = prepare(COURSE)[1]
    plans = list(dict.fromkeys(["", *(kind_plan(kind, space) for kind in KIND_PLANS)]))
    better = {kind_plan("middle two", space): 0.1, kind_plan("small first, early", space): 0.2}
    write_lesson(lesson_path(tmp_path, 0, COURSE, 0), lesson_of([better.get(plan, 0.0) for plan in plans], plans))
    part = Part(Course("somewhere", COURSE.steps, 8), COURSE.task)
    (at_rent,), (without,) = (choose_plans(one, tmp_path) for one in (part, part._replace(lessons_of=None)))
    assert at_rent == ("middle two", "small first, early")
    assert without == (None, None)
    with pytest.raises(ConfigError, match="--iteration 0"):
        choose_plans(part, tmp_path / "empty")
