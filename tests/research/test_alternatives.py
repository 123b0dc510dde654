"""`research/alternatives.py`: plans for any slots, and changes of an episode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from research.alternatives import DRAWN_PLANS, KIND_PLANS, best_plans, changes, drawn_plans, kind_plan
from research.growth_search import constant_plans
from research.teaching.player import Alternative
from torch import Tensor

from esper.common.configuration.config import Config, ConfigError
from esper.common.decisions import Decision
from esper.common.domain import HEADS
from esper.networks.tasks.prepare import prepare_task
from esper.studies.growth.space import PlanSpace
from esper.training.policy.actions import action_of
from esper.training.policy.observation import ObservationShape
from tests.research.teaching.made import made_lesson

STEPS = 20
SHAPE = ObservationShape(3, 7)
PROFILE = prepare_task(Config(task="digits", steps=STEPS)).profile
SPACE = PlanSpace(PROFILE.sites, STEPS, PROFILE.host_parameters)
ONE_SLOT = PlanSpace(PROFILE.sites[:1], STEPS, PROFILE.host_parameters)
WAIT = Decision("wait")


def planting(slot: int, blueprint: str) -> Decision:
    return Decision("germinate", PROFILE.sites[slot].name, blueprint).with_defaults()


def episode(ops: Mapping[int, Decision]) -> Tensor:
    """Return the actions [T, H] of an episode, given those that do not wait, keyed by step."""
    actions_TH = torch.zeros(STEPS, len(HEADS), dtype=torch.int64)
    slots = [site.name for site in PROFILE.sites]
    for step, decision in ops.items():
        actions_TH[step] = torch.tensor(action_of(decision, slots, PROFILE.blueprints))
    return actions_TH


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("small last", "1:depthwise@late"),
        ("tiny all", "1:norm@early 2:norm@mid 3:norm@late"),
        ("middle, large", "1:conv_light@early 2:conv_heavy@mid"),
        ("small two, later", "6:depthwise@early 7:depthwise@mid"),
    ],
)
def test_kind_of_plan_fits_the_slots(name: str, plan: str) -> None:
    assert kind_plan(name, SPACE) == plan


def test_kind_of_plan_leaves_out_slots_that_a_task_lacks() -> None:
    assert kind_plan("middle, large", ONE_SLOT, 0.4) == "9:conv_light@early"
    assert kind_plan("middle second", ONE_SLOT) == ""
    assert kind_plan("small last", ONE_SLOT) == kind_plan("small all", ONE_SLOT) == "1:depthwise@early"


def test_constant_plans_of_the_benchmark_stay_as_they_are() -> None:
    """Its stored episodes are found by these names."""
    assert constant_plans(SPACE) == [
        *(f"1:{name}@early 2:{name}@mid" for name in ("depthwise", "conv_light", "conv_heavy")),
        *(f"1:{name}@early" for name in ("depthwise", "conv_light", "conv_heavy")),
        *(f"1:{name}@late" for name in ("depthwise", "conv_light", "conv_heavy")),
    ]


def test_best_plans_are_those_of_the_rent_with_later_starts() -> None:
    """Two kinds gain 0.3 and 0.29; the first of them has the higher rent."""
    plans = list(dict.fromkeys(["", *(kind_plan(name, SPACE) for name in KIND_PLANS)]))
    better = {kind_plan("large two", SPACE): 0.3, kind_plan("tiny first", SPACE): 0.29}
    lesson = made_lesson(1.0, [better.get(plan, 0.0) for plan in plans], SHAPE)
    lesson.info.alternatives[:] = plans
    lesson.rent_OPT[:, plans.index(kind_plan("large two", SPACE))] *= 10
    cheap, dear = (best_plans([lesson], SPACE, rent) for rent in (0.0001, 0.008))
    assert cheap[:2] == ["1:conv_heavy@early 2:conv_heavy@mid", "1:norm@early"]
    assert dear[0] == "1:norm@early"
    assert {"4:norm@early", "9:norm@early"} < set(dear)
    assert {"4:conv_heavy@early 5:conv_heavy@mid", "9:conv_heavy@early 10:conv_heavy@mid"} < set(cheap)
    with pytest.raises(ConfigError, match="--iteration 0"):
        best_plans([], SPACE, 0.002)


def test_drawn_plans_are_reproducible_and_early() -> None:
    """Lessons of an iteration are played by several commands, which must draw the same plans."""
    first, second = (drawn_plans(SPACE, np.random.default_rng([7000, 3])) for _ in range(2))
    assert first == second
    generator = np.random.default_rng(0)
    plans = [plan for _ in range(40) for plan in drawn_plans(SPACE, generator)]
    assert len(plans) == 40 * DRAWN_PLANS
    ops = [SPACE.parse(plan) for plan in plans]
    assert {len(of_plan) for of_plan in ops} == {1, 2, 3}
    steps = [op.step for of_plan in ops for op in of_plan]
    assert max(steps) < STEPS / 2 + 2  # seeds of the same step wait for a free one
    assert sum(step < 4 for step in steps) > len(steps) / 2


def test_plantings_are_changed_one_at_a_time() -> None:
    """The policy plants in four steps: the first two plantings and the last are changed."""
    names = {2: "norm", 5: "conv_light", 9: "norm", 12: "conv_heavy"}
    slots = {2: 0, 5: 1, 9: 1, 12: 2}
    ops = {step: planting(slots[step], name) for step, name in names.items()}
    ops[15] = Decision("fossilize", PROFILE.sites[0].name)
    found = changes(episode(ops), SPACE, PROFILE.blueprints, "pupil")
    by_step: dict[int, list[Decision]] = {}
    for one in found:
        if one.then == "pupil":
            step = len(one.first) - 1
            assert one.first[:-1] == tuple(ops.get(before, WAIT) for before in range(step))
            by_step.setdefault(step, []).append(one.first[-1])
    assert by_step.keys() == {2, 5, 12}
    for step, others in by_step.items():
        offered = SPACE.offered(PROFILE.sites[slots[step]].name)
        place = offered.index(names[step])
        neighbours = [name for name in offered[max(place - 1, 0) : place + 2] if name != names[step]]
        assert others == [WAIT, *(planting(slots[step], name) for name in neighbours)]
    before = (WAIT, WAIT, ops[2])
    assert Alternative("4:depthwise@mid", before) in found
    assert Alternative("4:conv_light@mid", before) in found
    kept = tuple(ops.get(step, WAIT) if step != 15 else WAIT for step in range(STEPS))
    assert found[-1] == Alternative("", kept)
    assert len(set(found)) == len(found) == sum(map(len, by_step.values())) + 3


def test_episode_without_a_planting_gets_one() -> None:
    found = changes(episode({}), SPACE, PROFILE.blueprints, "pupil")
    assert [(len(one.first) - 1, one.first[-1], one.then) for one in found] == [
        (step, planting(0, name), "pupil") for step in (0, 2, 5) for name in ("depthwise", "conv_light")
    ]


def test_second_seed_needs_another_slot_and_a_step() -> None:
    only = changes(episode({3: planting(0, "norm")}), ONE_SLOT, PROFILE.blueprints, "pupil")
    late = changes(episode({STEPS - 1: planting(0, "norm")}), SPACE, PROFILE.blueprints, "pupil")
    assert {one.then for one in (*only, *late)} == {"pupil"}
