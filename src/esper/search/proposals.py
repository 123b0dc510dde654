"""Proposals of a search: plans that were good elsewhere, the plan of an episode, and variations of the best plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from esper.domain import Op
from esper.growth.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS
from esper.policy.actions import Action
from esper.policy.baselines import germinate_action
from esper.policy.plan import CULL
from esper.search.space import PlannedSeed, PlanSpace

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
        seeds: dict[str, PlannedSeed] = {}
        for step, (slot, size) in enumerate(slots.items()):
            offered = space.offered(slot)
            blueprint = next((name for name in _KINDS[size] if name in offered), None)
            if blueprint is not None:
                seeds[slot] = PlannedSeed(blueprint, step)
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
    planted: dict[int, tuple[int, Action]] = {}
    for step, action in enumerate(actions):
        if action.op == Op.GERMINATE:
            planted[action.slot] = (step, action)
        elif action.op == Op.CULL:
            planted.pop(action.slot, None)
    return " ".join(
        f"{blueprints[action.blueprint]}@{slots[slot]}:{step}{_options(action)}"
        for slot, (step, action) in sorted(planted.items(), key=lambda item: item[1][0])
    )


def _options(action: Action) -> str:
    """Return the options of a new seed that differ from those of a plan without options."""
    usual = germinate_action(action.slot, action.blueprint)
    options: list[str] = []
    if action.tempo != usual.tempo:
        options.append(f",tempo={INITIAL_RAMP_EPOCHS[action.tempo]}")
    if action.alpha_target != usual.alpha_target:
        options.append(f",alpha={ALPHA_TARGETS[action.alpha_target]}")
    if action.style != usual.style:
        options.append(f",style={BLEND_STYLES[action.style].name}")
    return "".join(options)


def without_each_seed(plan: str, space: PlanSpace) -> dict[str, str]:
    """Return a plan without each of its seeds, keyed by the seed that is left out; empty for a plan of one seed.

    The other seeds keep their steps and options. On the host of the search, the objective of a plan minus that of the
    plan without a seed is then the exact effect of this seed.
    """
    ops = space.parse(plan)
    seeds = {op.slot: op.name for op in ops if op.name != CULL}
    if len(seeds) < 2:
        return {}
    return {
        f"{blueprint} in {slot}": " ".join(op.word for op in ops if op.slot != slot)
        for slot, blueprint in seeds.items()
    }


def variations(plan: str, space: PlanSpace) -> Iterator[str]:
    """Yield plans that differ from a plan in one seed: its blueprint, its step, its slot, or one seed more.

    A seed keeps its options unless it moves to another slot, which may not have them. Seeds that the plan culls are
    left out.
    """
    yield from _distinct(plan, space, _changes(_kept_seeds(plan, space), space))


def _kept_seeds(plan: str, space: PlanSpace) -> dict[str, PlannedSeed]:
    seeds: dict[str, PlannedSeed] = {}
    for op in space.parse(plan):
        if op.name == CULL:
            del seeds[op.slot]
        else:
            options = "".join(f",{name}={value}" for name, value in op.options.items())
            seeds[op.slot] = PlannedSeed(op.name, op.step, options)
    return seeds


def _changes(seeds: dict[str, PlannedSeed], space: PlanSpace) -> Iterator[dict[str, PlannedSeed]]:
    for slot, seed in seeds.items():
        offered = space.offered(slot)
        place = offered.index(seed.blueprint)
        for other in (place - 1, place + 1):
            if 0 <= other < len(offered):
                yield seeds | {slot: seed._replace(blueprint=offered[other])}
    last = max((seed.step for seed in seeds.values()), default=-1)
    kinds = dict.fromkeys(seed.blueprint for seed in seeds.values())
    for site in space.sites:
        if site.name not in seeds:
            for blueprint in kinds:
                if blueprint in site.blueprints:
                    yield seeds | {site.name: PlannedSeed(blueprint, last + 1)}
    for slot, seed in seeds.items():
        yield seeds | {slot: seed._replace(step=seed.step + max(space.steps // 8, 1))}
        if seed.step:
            yield seeds | {slot: seed._replace(step=seed.step // 2)}
    for slot, seed in seeds.items():
        for site in space.sites:
            if site.name not in seeds and seed.blueprint in site.blueprints:
                others = {name: other for name, other in seeds.items() if name != slot}
                yield others | {site.name: seed._replace(options="")}


def _distinct(plan: str, space: PlanSpace, changes: Iterator[dict[str, PlannedSeed]]) -> Iterator[str]:
    known = {plan, ""}
    for seeds in changes:
        changed = space.plan(seeds)
        if changed not in known and space.fits(changed):
            known.add(changed)
            yield changed
