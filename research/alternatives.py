"""Alternatives that `research/teach.py` plays in each context: plans for any slots, and changes of an episode.

Shapes: T steps, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from research.teaching.lessons import Lesson
from research.teaching.player import Alternative
from torch import Tensor

from esper.common.configuration.config import ConfigError
from esper.common.decisions import FOSSILIZE, GERMINATE, WAIT, Decision, PlannedDecision
from esper.studies.growth.space import PlanSpace
from esper.training.policy.actions import Action, decision_of_action

DRAWN_PLANS = 2
"""Number of plans of a context that are drawn at random."""
KEPT_PLANS = 5
"""Number of kinds of plans in a later iteration: those with the highest return in the course at the context's rent."""
LATER_PLANS, LATER_STARTS = 2, (0.15, 0.4)
"""Number of these plans that are also played with later starts, and the starts, as fractions of the episode."""
MAX_CHANGED = 2
"""Number of plantings of an episode that are changed, from the first on; the last one is changed, too."""
TINY, SMALL, MIDDLE, LARGE = range(4)
"""Sizes of seeds."""
BLUEPRINTS = (
    ("norm",),
    ("depthwise", "linear_lowrank"),
    ("conv_light", "mlp"),
    ("conv_heavy", "self_attention", "conv_light", "mlp"),
)
"""Blueprints of each size. The first that a slot offers is planted.

The lists equal those of `growth/plan_variations.py` today. They are separate, because baselines and lessons must not
change when the search does.
"""
FIRST, SECOND, LAST, ALL = 0, 1, -1, -2
"""Indices of slots; `ALL` stands for every slot."""
KIND_PLANS: dict[str, tuple[dict[int, int], float]] = {
    "tiny first": ({FIRST: TINY}, 0),
    "tiny all": ({ALL: TINY}, 0),
    "small first": ({FIRST: SMALL}, 0),
    "small last": ({LAST: SMALL}, 0),
    "small two": ({FIRST: SMALL, SECOND: SMALL}, 0),
    "small all": ({ALL: SMALL}, 0),
    "middle first": ({FIRST: MIDDLE}, 0),
    "middle second": ({SECOND: MIDDLE}, 0),
    "middle two": ({FIRST: MIDDLE, SECOND: MIDDLE}, 0),
    "middle all": ({ALL: MIDDLE}, 0),
    "large first": ({FIRST: LARGE}, 0),
    "large two": ({FIRST: LARGE, SECOND: LARGE}, 0),
    "middle, large": ({FIRST: MIDDLE, SECOND: LARGE}, 0),
    "small first, early": ({FIRST: SMALL}, 0.1),
    "small two, early": ({FIRST: SMALL, SECOND: SMALL}, 0.1),
    "middle first, early": ({FIRST: MIDDLE}, 0.1),
    "middle two, early": ({FIRST: MIDDLE, SECOND: MIDDLE}, 0.1),
    "large first, early": ({FIRST: LARGE}, 0.1),
    "middle, large, early": ({FIRST: MIDDLE, SECOND: LARGE}, 0.1),
    "small two, later": ({FIRST: SMALL, SECOND: SMALL}, 0.25),
    "middle, large, later": ({FIRST: MIDDLE, SECOND: LARGE}, 0.25),
}
"""Plans for any slots, by name: size of the seed in each slot, and the first step as a fraction of the episode."""


def blueprint_of_size(size: int, slot: str, space: PlanSpace) -> str | None:
    """Return the blueprint of a size that a slot offers; None if it offers none."""
    return next((name for name in BLUEPRINTS[size] if name in space.offered(slot)), None)


def sized_plan(sizes: Mapping[int, int], space: PlanSpace, start: float = 0) -> str:
    """Return a plan of seeds of some sizes, one step after another; a slot that the task lacks stays empty.

    Args:
        sizes: Size of each seed, keyed by the index of its slot.
        start: First step as a fraction of the episode, 0 to 1.
    """
    slots = [site.name for site in space.sites]
    if ALL in sizes:
        sizes = dict.fromkeys(range(len(slots)), sizes[ALL])
    seeds: list[PlannedDecision] = []
    for index, size in sizes.items():
        if index < len(slots):
            blueprint = blueprint_of_size(size, slots[index], space)
            if blueprint:
                step = round(start * space.steps) + len(seeds) + 1
                seeds.append(PlannedDecision.planting(step, slots[index], blueprint))
    return space.plan(seeds)


def kind_plan(name: str, space: PlanSpace, start: float | None = None) -> str:
    """Return a plan of `KIND_PLANS` for the slots of a task.

    Args:
        start: First step as a fraction of the episode, 0 to 1; None: that of the kind.
    """
    sizes, usual = KIND_PLANS[name]
    return sized_plan(sizes, space, usual if start is None else start)


def mean_returns(lessons: Sequence[Lesson], space: PlanSpace, rent: float) -> dict[str, float]:
    """Return the mean net return of each kind of plan, keyed by its name.

    Args:
        lessons: Lessons of the first iteration of a course, which have all kinds.
        rent: Weight of the rent.

    Raises:
        ConfigError: There are no lessons.
    """
    if not lessons:
        raise ConfigError("no lessons of iteration 0 of this course; play them with research.teach play --iteration 0")
    means: dict[str, float] = {}
    for name in KIND_PLANS:
        plan = kind_plan(name, space)
        returns = [lesson.returns(rent)[:, lesson.info.alternatives.index(plan)].mean() for lesson in lessons]
        means[name] = float(torch.stack(returns).mean())
    return means


def best_plans(lessons: Sequence[Lesson], space: PlanSpace, rent: float) -> list[str]:
    """Return the plans of the kinds with the highest mean net return, and the best of them with later starts.

    A late seed pays rent for fewer steps, and its host is trained already.

    Args:
        lessons: Lessons of the first iteration of a course.
        rent: Weight of the rent.

    Raises:
        ConfigError: There are no lessons.
    """
    means = mean_returns(lessons, space, rent)
    best = sorted(means, key=lambda name: means[name], reverse=True)[:KEPT_PLANS]
    plans = [kind_plan(name, space) for name in best]
    later = [kind_plan(name, space, start) for name in best[:LATER_PLANS] for start in LATER_STARTS]
    return list(dict.fromkeys([*plans, *later]))


def drawn_plans(space: PlanSpace, generator: np.random.Generator) -> list[str]:
    """Return random plans of one to three seeds, planted in the first half of the episode, mostly early."""
    plans: list[str] = []
    for _ in range(DRAWN_PLANS):
        slots = generator.permutation([site.name for site in space.sites])[: generator.integers(1, 4)]
        last = math.log(space.steps / 2)
        seeds: list[PlannedDecision] = []
        for slot in map(str, slots):
            blueprint = str(generator.choice(space.offered(slot)))
            seeds.append(PlannedDecision.planting(int(math.exp(generator.uniform(0, last))), slot, blueprint))
        plans.append(space.plan(seeds))
    return plans


def changes(actions_TH: Tensor, space: PlanSpace, blueprints: Sequence[str], policy: str) -> list[Alternative]:
    """Return changes of an episode of a policy, each followed by the policy or by a plan.

    - Each of the first plantings and the last one is left out, or has the next smaller or larger blueprint. The policy
      decides after it.
    - After the first planting, a plan plants a small or a middle seed in another slot. Single changes do not lead from
      one large seed to two small ones.
    - An episode without a planting gets a small or a middle seed at one of three steps.
    - No seed is fossilized: this op has a cost, and no gain by itself.

    Args:
        actions_TH: Actions of the episode.
        blueprints: Blueprints that the policy can select, in the order of the head.
        policy: Name of the policy that decides after the change.
    """
    slots = [site.name for site in space.sites]
    decisions = [decision_of_action(Action(*row), slots, blueprints) for row in actions_TH.tolist()]
    planted = [step for step, decision in enumerate(decisions) if decision.op == GERMINATE]
    if planted:
        found = [
            Alternative(policy, (*decisions[:step], changed))
            for step in dict.fromkeys([*planted[:MAX_CHANGED], planted[-1]])
            for changed in _other_decisions(decisions[step], space)
        ]
        found += _second_seeds(decisions[: planted[0] + 1], space)
    else:
        found = _added_seeds(decisions, space, policy)
    if any(decision.op == FOSSILIZE for decision in decisions):
        kept = (Decision(WAIT) if decision.op == FOSSILIZE else decision for decision in decisions)
        found.append(Alternative("", tuple(kept)))
    return list(dict.fromkeys(found))


def _other_decisions(planting: Decision, space: PlanSpace) -> list[Decision]:
    """Return waiting, and the planting with the next smaller and larger blueprint of its slot."""
    offered = space.offered(str(planting.slot))
    place = offered.index(str(planting.blueprint))
    neighbours = [offered[other] for other in (place - 1, place + 1) if 0 <= other < len(offered)]
    return [Decision(WAIT), *(msgspec.structs.replace(planting, blueprint=name) for name in neighbours)]


def _second_seeds(first: Sequence[Decision], space: PlanSpace) -> list[Alternative]:
    """Return plans that plant a seed in another slot, right after the first planting.

    Args:
        first: Decisions up to the first planting, which is the last of them.
    """
    empty = next((site.name for site in space.sites if site.name != first[-1].slot), None)
    if empty is None or len(first) >= space.steps:
        return []
    names = [blueprint_of_size(size, empty, space) for size in (SMALL, MIDDLE)]
    plans = [str(PlannedDecision.planting(len(first) + 1, empty, name)) for name in names if name]
    return [Alternative(plan, tuple(first)) for plan in plans]


def _added_seeds(decisions: Sequence[Decision], space: PlanSpace, policy: str) -> list[Alternative]:
    """Return the episode with a seed in the first slot, planted at the start, after 10 % or after 25 % of the steps."""
    slots = [site.name for site in space.sites]
    names = [blueprint_of_size(size, slots[0], space) for size in (SMALL, MIDDLE)]
    return [
        Alternative(policy, (*decisions[:step], Decision(GERMINATE, slots[0], name).with_defaults()))
        for step in (0, len(decisions) // 10, len(decisions) // 4)
        for name in names
        if name
    ]
