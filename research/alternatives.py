"""Alternatives that `research/teach.py` plays in each context: plans for any slots, and changes of an episode."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from esper.domain import Op
from esper.policy.actions import WAIT_DECISION, Action
from esper.policy.baselines import germinate_action
from esper.search.space import PlanSpace
from esper.teaching.lessons import Lesson
from esper.teaching.player import Alternative

DRAWN_PLANS = 2
"""Number of plans of a context that are drawn at random."""
KEPT_PLANS = 5
"""Number of kinds of plans in a later iteration: the best ones of the course at the rent of the context."""
LATER_PLANS, LATER_STARTS = 2, (0.15, 0.4)
"""Number of these that are also played with later starts, and the starts, as fractions of the episode."""
MAX_CHANGED = 2
"""Number of plantings of an episode that are changed, from the first on; the last one is changed, too."""
TINY, SMALL, MIDDLE, LARGE = range(4)
KINDS = (
    ("norm",),
    ("depthwise", "linear_lowrank"),
    ("conv_light", "mlp"),
    ("conv_heavy", "self_attention", "conv_light", "mlp"),
)
"""Blueprints of seeds of four sizes. Of each size, the first that a slot offers is planted."""
FIRST, SECOND, LAST, ALL = 0, 1, -1, -2
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


def kind_plan(name: str, space: PlanSpace, start: float | None = None) -> str:
    """Return a plan of `KIND_PLANS` for the slots of a task; a slot that it lacks stays empty.

    Args:
        start: First step as a fraction of the episode; None: that of the kind.
    """
    sizes, usual = KIND_PLANS[name]
    start = usual if start is None else start
    slots = [site.name for site in space.sites]
    if ALL in sizes:
        sizes = dict.fromkeys(range(len(slots)), sizes[ALL])
    seeds: dict[str, tuple[str, int]] = {}
    for index, size in sizes.items():
        if index < len(slots):
            slot = slots[index]
            blueprint = next((kind for kind in KINDS[size] if kind in space.offered(slot)), None)
            if blueprint:
                seeds[slot] = (blueprint, round(start * space.steps) + len(seeds))
    return space.plan(seeds)


def mean_returns(lessons: Sequence[Lesson], space: PlanSpace, rent: float) -> dict[str, float]:
    """Return the mean return of each kind of plan over the lessons of the first iteration of a course."""
    means: dict[str, float] = {}
    for name in KIND_PLANS:
        plan = kind_plan(name, space)
        returns = [lesson.returns(rent)[:, lesson.info.alternatives.index(plan)].mean() for lesson in lessons]
        means[name] = float(torch.stack(returns).mean())
    return means


def best_plans(lessons: Sequence[Lesson], space: PlanSpace, rent: float) -> list[str]:
    """Return the kinds of plans with the highest mean return in the lessons of a course, and later starts of the best.

    A late seed pays less rent, and meets a host that is trained already.
    """
    means = mean_returns(lessons, space, rent)
    best = sorted(means, key=lambda name: means[name], reverse=True)[:KEPT_PLANS]
    plans = [kind_plan(name, space) for name in best]
    later = [kind_plan(name, space, start) for name in best[:LATER_PLANS] for start in LATER_STARTS]
    return list(dict.fromkeys([*plans, *later]))


def drawn_plans(space: PlanSpace, generator: np.random.Generator) -> list[str]:
    """Return random plans of one to three seeds in the first half of the episode, early steps more often."""
    plans: list[str] = []
    for _ in range(DRAWN_PLANS):
        slots = generator.permutation([site.name for site in space.sites])[: generator.integers(1, 4)]
        last = math.log(space.steps / 2)
        seeds = {
            str(slot): (str(generator.choice(space.offered(str(slot)))), int(math.exp(generator.uniform(0, last))) - 1)
            for slot in slots
        }
        plans.append(space.plan(seeds))
    return plans


def changes(actions_TH: Tensor, space: PlanSpace, blueprints: Sequence[str], policy: str) -> list[Alternative]:
    """Return changes of an episode of a policy, each followed by the policy or by a plan.

    Each of the first plantings is left out, or has the next smaller or larger blueprint, and the policy goes on. After
    the first planting, a plan plants a small or a middle seed in another slot: single changes do not lead from one
    large seed to two small ones. An episode without a planting gets one at three steps. A last change makes no seed
    permanent, which costs an op and gains nothing by itself.

    Args:
        actions_TH: Actions of the episode.
        policy: Name of the policy that follows.
    """
    actions = [Action(*row) for row in actions_TH.tolist()]
    wait = WAIT_DECISION.action
    slots = [site.name for site in space.sites]
    found: list[Alternative] = []
    planted = [step for step, action in enumerate(actions) if action.op == Op.GERMINATE]
    for step in dict.fromkeys([*planted[:MAX_CHANGED], *planted[-1:]]):
        first, action = tuple(actions[:step]), actions[step]
        found.append(Alternative(policy, (*first, wait)))
        offered = space.offered(slots[action.slot])
        place = offered.index(blueprints[action.blueprint])
        for other in (place - 1, place + 1):
            if 0 <= other < len(offered):
                changed = action._replace(blueprint=blueprints.index(offered[other]))
                found.append(Alternative(policy, (*first, changed)))
    for step in planted[:1]:
        first = tuple(actions[: step + 1])
        empty = next((index for index in range(len(slots)) if index != actions[step].slot), None)
        if empty is not None and step + 1 < len(actions):
            for size in (SMALL, MIDDLE):
                blueprint = next((kind for kind in KINDS[size] if kind in space.offered(slots[empty])), None)
                if blueprint:
                    found.append(Alternative(f"{blueprint}@{slots[empty]}:{step + 1}", first))
    if not planted:
        for step in (0, len(actions) // 10, len(actions) // 4):
            for size in (SMALL, MIDDLE):
                blueprint = next((kind for kind in KINDS[size] if kind in space.offered(slots[0])), None)
                if blueprint:
                    action = germinate_action(0, blueprints.index(blueprint))
                    found.append(Alternative(policy, (*actions[:step], action)))
    if any(action.op == Op.FOSSILIZE for action in actions):
        found.append(Alternative("", tuple(wait if action.op == Op.FOSSILIZE else action for action in actions)))
    return list(dict.fromkeys(found))
