"""PlanSpace: the plans that a search can draw, as parameters of Optuna.

A plan of the space has one to three seeds in different slots, planted in the first half of the training, because a seed
needs the rest of it to pay its rent. Early steps are drawn more often than late ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from optuna.trial import BaseTrial

from esper.common.decisions import CULL, PlannedDecision, write_plan
from esper.networks.seeds.blueprints import build_seed
from esper.networks.seeds.site import SlotSite
from esper.training.policy.plan import parse_plan

MAX_SEEDS = 3
"""Maximum number of seeds of a drawn plan."""
_SEEDS = "seeds"


class PlanSpace:
    """Plans for the slots of a task.

    Args:
        sites: Its slots, in the order of the forward pass.
        steps: Number of steps of a training.
        host_parameters: Number of parameters of the bare host.
        max_parameters: Maximum number of parameters of a grown network; None without a limit.
    """

    def __init__(
        self, sites: Sequence[SlotSite], steps: int, host_parameters: int, max_parameters: int | None = None
    ) -> None:
        self.sites = sites
        self.steps = steps
        self._host_parameters = host_parameters
        self._max_parameters = max_parameters
        self._offered = {site.name: site.blueprints for site in sites}
        self._last_step = max(steps // 2, 1)
        """Last step, from 1, in which a drawn plan plants a seed."""

    def draw(self, trial: BaseTrial) -> str:
        """Return the plan of a trial, whose parameters are drawn if they are not fixed.

        Each slot is drawn from all of them, because Optuna requires fixed choices. A slot that is drawn twice gets one
        seed, so that a plan can have fewer seeds than the trial has drawn.
        """
        names = list(self._offered)
        count = trial.suggest_int(_SEEDS, 1, min(MAX_SEEDS, len(names)))
        chosen = dict.fromkeys(trial.suggest_categorical(f"slot {index + 1}", names) for index in range(count))
        seeds: list[PlannedDecision] = []
        for slot in chosen:
            blueprint = trial.suggest_categorical(f"blueprint in {slot}", self._offered[slot])
            step = trial.suggest_int(f"step in {slot}", 1, self._last_step, log=True)
            seeds.append(PlannedDecision.planting(step, slot, blueprint))
        return self.plan(seeds)

    def parameters_of(self, plan: str) -> dict[str, str | int] | None:
        """Return the parameters that `draw` turns into a plan; None for a plan outside of the space."""
        planned = self.parse(plan)
        slots = [decision.slot for _, decision in planned]
        if not 1 <= len(planned) <= min(MAX_SEEDS, len(self.sites)) or len(set(slots)) < len(slots):
            return None
        if any(decision.op == CULL or decision.options or step > self._last_step for step, decision in planned):
            return None
        found: dict[str, str | int] = {_SEEDS: len(planned)}
        for index, (step, decision) in enumerate(planned):
            slot = str(decision.slot)
            found |= {
                f"slot {index + 1}": slot,
                f"blueprint in {slot}": str(decision.blueprint),
                f"step in {slot}": step,
            }
        return found

    def plan(self, seeds: Iterable[PlannedDecision]) -> str:
        """Return the plan of some plantings.

        If two seeds have the same step, the one in the later slot waits for a free step.
        """
        order = list(self._offered)
        free = 1
        planned: list[PlannedDecision] = []
        for step, decision in sorted(seeds, key=lambda seed: (seed.step, order.index(str(seed.decision.slot)))):
            free = max(free, step)
            if free <= self.steps:
                planned.append(PlannedDecision(free, decision))
            free += 1
        return write_plan(planned)

    def parse(self, plan: str) -> list[PlannedDecision]:
        """Return the decisions of a plan; none for the empty one."""
        return parse_plan(plan, self.steps) if plan else []

    def offered(self, slot: str) -> Sequence[str]:
        """Return the blueprints that a slot offers, from small to large."""
        return sorted(self._offered[slot], key=lambda name: self._size(slot, name))

    def parameter_ratio(self, plan: str) -> float:
        """Return the parameters of the largest network that a plan grows, divided by those of the host."""
        grown: dict[str, int] = {}
        largest = 0
        for _, decision in self.parse(plan):
            slot, blueprint = str(decision.slot), decision.blueprint
            grown[slot] = 0 if blueprint is None else self._size(slot, blueprint)
            largest = max(largest, sum(grown.values()))
        return 1 + largest / self._host_parameters

    def fits(self, plan: str) -> bool:
        """Return True if the largest network of a plan has at most as many parameters as are allowed."""
        return self.allows(self.parameter_ratio(plan))

    def allows(self, parameter_ratio: float) -> bool:
        """Return True if a network of this size is allowed."""
        limit = self._max_parameters
        return limit is None or round(parameter_ratio * self._host_parameters) <= limit

    def _size(self, slot: str, blueprint: str) -> int:
        return _count_parameters(next(site for site in self.sites if site.name == slot), blueprint)


@lru_cache(1024)
def _count_parameters(site: SlotSite, blueprint: str) -> int:
    seed = build_seed(blueprint, site.layout, site.channels, site.is_causal, torch.Generator().manual_seed(0))
    return sum(parameter.numel() for parameter in seed.parameters())
