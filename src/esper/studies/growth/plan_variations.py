"""Proposals of a search: plans that were good elsewhere, the plan of an episode, and variations of the best plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from esper.common.decisions import CULL, GERMINATE, PlannedDecision, label_decision, write_plan
from esper.studies.growth.space import PlanSpace
from esper.training.policy.actions import Action, decision_of_action

_KINDS = {
    "tiny": ("norm",),
    "small": ("depthwise", "linear_lowrank"),
    "middle": ("conv_light", "mlp"),
    "large": ("conv_heavy", "self_attention", "conv_light", "mlp"),
}
"""Blueprints of seeds of four sizes. Of each size, the first that a slot offers is planted."""
_FIRST, _SECOND, _LAST = 0, 1, -1
_KNOWN: Sequence[Mapping[int, str]] = (
    {_FIRST: "middle", _SECOND: "large"},
    {_FIRST: "middle", _SECOND: "middle"},
    {_LAST: "tiny"},
    {_FIRST: "large", _SECOND: "large"},
    {_FIRST: "small", _SECOND: "small"},
    {_FIRST: "tiny"},
    {_FIRST: "large"},
    {_LAST: "large"},
    {_LAST: "small"},
)
"""Size of the seed in each slot of a known plan, keyed by the index of the slot, in the order of trial."""


def known_plans(space: PlanSpace) -> list[str]:
    """Return up to nine plans that were good on other tasks, the most promising ones first.

    Seeds are planted from the first step on, in the first slot, the second or the last. Plans that are too large, or
    equal to another one, are left out.
    """
    names = [site.name for site in space.sites]
    found: dict[str, None] = {}
    for sizes in _KNOWN:
        slots = {names[index]: size for index, size in sizes.items() if index < len(names)}
        seeds: list[PlannedDecision] = []
        for step, (slot, size) in enumerate(slots.items(), start=1):
            offered = space.offered(slot)
            blueprint = next((name for name in _KINDS[size] if name in offered), None)
            if blueprint is not None:
                seeds.append(PlannedDecision.planting(step, slot, blueprint))
        plan = space.plan(seeds)
        if plan and space.fits(plan):
            found[plan] = None
    return list(found)


def plan_of(actions: Sequence[Action], slots: Sequence[str], blueprints: Sequence[str]) -> str:
    """Return the plan of the seeds that an episode planted and did not cull; empty if there are none.

    Args:
        actions: Action of each step.
        slots: Names of the slots.
        blueprints: Blueprints that the policy can select, in the order of the head.
    """
    decisions = (decision_of_action(action, slots, blueprints) for action in actions)
    seeds = _kept_seeds(PlannedDecision(step, decision) for step, decision in enumerate(decisions, start=1))
    return write_plan(sorted(seeds.values(), key=lambda planned: planned.step))


def without_each_seed(plan: str, space: PlanSpace) -> dict[str, str]:
    """Return a plan without each of its seeds, keyed by the seed that is left out; empty for a plan of one seed.

    The other seeds keep their steps and options. On the host of the search, the objective of a plan minus that of the
    plan without a seed is then the exact effect of this seed.
    """
    planned = space.parse(plan)
    seeds = {decision.slot: decision for _, decision in planned if decision.op == GERMINATE}
    if len(seeds) < 2:
        return {}
    return {
        label_decision(seed): write_plan(other for other in planned if other.decision.slot != slot)
        for slot, seed in seeds.items()
    }


def variations(plan: str, space: PlanSpace) -> Iterator[str]:
    """Yield plans that differ from a plan in one seed: its blueprint, its step, its slot, or one seed more.

    A seed keeps its options unless it moves to another slot, which may not have them. Seeds that the plan culls are
    left out.
    """
    yield from _distinct(plan, space, _changes(_kept_seeds(space.parse(plan)), space))


def _kept_seeds(decisions: Iterable[PlannedDecision]) -> dict[str, PlannedDecision]:
    """Return the plantings of the seeds that are not culled later, keyed by slot."""
    seeds: dict[str, PlannedDecision] = {}
    for planned in decisions:
        slot = str(planned.decision.slot)
        if planned.decision.op == GERMINATE:
            seeds[slot] = planned
        elif planned.decision.op == CULL:
            seeds.pop(slot, None)
    return seeds


def _changes(seeds: dict[str, PlannedDecision], space: PlanSpace) -> Iterator[dict[str, PlannedDecision]]:
    blueprints = {slot: str(seed.decision.blueprint) for slot, seed in seeds.items()}
    for slot, seed in seeds.items():
        offered = space.offered(slot)
        place = offered.index(blueprints[slot])
        for other in (place - 1, place + 1):
            if 0 <= other < len(offered):
                decision = msgspec.structs.replace(seed.decision, blueprint=offered[other])
                yield seeds | {slot: seed._replace(decision=decision)}
    last = max((seed.step for seed in seeds.values()), default=0)
    for site in space.sites:
        if site.name not in seeds:
            for blueprint in dict.fromkeys(blueprints.values()):
                if blueprint in site.blueprints:
                    yield seeds | {site.name: PlannedDecision.planting(last + 1, site.name, blueprint)}
    for slot, seed in seeds.items():
        yield seeds | {slot: seed._replace(step=seed.step + max(space.steps // 8, 1))}
        if seed.step > 1:
            yield seeds | {slot: seed._replace(step=(seed.step - 1) // 2 + 1)}
    for slot, seed in seeds.items():
        for site in space.sites:
            if site.name not in seeds and blueprints[slot] in site.blueprints:
                others = {name: other for name, other in seeds.items() if name != slot}
                yield others | {site.name: PlannedDecision.planting(seed.step, site.name, blueprints[slot])}


def _distinct(plan: str, space: PlanSpace, changes: Iterator[dict[str, PlannedDecision]]) -> Iterator[str]:
    known = {plan, ""}
    for seeds in changes:
        changed = space.plan(seeds.values())
        if changed not in known and space.fits(changed):
            known.add(changed)
            yield changed
