"""Exercises: returns that can be compared between orders, and each sequence of actions once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from research.teaching.exercises import split_lesson

from esper.training.policy.observation import ObservationShape
from tests.research.teaching.made import made_lesson

SHAPE = ObservationShape(2, 3)
RENTS = (0.001, 0.002)


def test_actions_of_another_order_give_no_return_and_the_level_of_orders_is_removed() -> None:
    lesson = made_lesson(1.0, [0.0, 0.3, 0.1], SHAPE)
    score_OPT, actions_OPTH = lesson.score_OPT.clone(), lesson.actions_OPTH.clone()
    score_OPT[1, :, 1:] += 0.5  # an easy order
    score_OPT[1, 2, 1:] += 0.1
    actions_OPTH[1, 2, 0, 2] = 2  # alternative 2, a policy, takes another action there
    lesson = replace(lesson, score_OPT=score_OPT, actions_OPTH=actions_OPTH)
    first, second = split_lesson(lesson, RENTS)
    assert first.is_same_OP.tolist() == [[True, True, True], [True, True, False]]
    cost = 0.001 + 3 * 0.01
    assert first.returns(0.01).tolist() == pytest.approx([0.25, 0.55 - cost, 0.35 - cost])
    assert second.returns(0.01).tolist() == pytest.approx([0.25, 0.55 - cost, 0.45 - cost])


def test_repetitions_are_left_out_in_the_order_that_has_them() -> None:
    lesson = made_lesson(1.0, [0.0, 0.3, 0.1, 0.2], SHAPE)
    actions_OPTH = lesson.actions_OPTH.clone()
    actions_OPTH[0, 3] = actions_OPTH[0, 1]
    first, second = split_lesson(replace(lesson, actions_OPTH=actions_OPTH), RENTS)
    assert (len(first.valid_PT), len(second.valid_PT)) == (3, 4)
    assert first.score_OPT.shape[:2] == (2, 3)
    assert torch.equal(first.actions_PTH, lesson.actions_OPTH[0, :3])
    assert all(len(mask) == 3 for mask in first.masks)
