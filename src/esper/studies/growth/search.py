"""PlanSearch: proposes candidates of a growth, prunes their trials, and names those that are trained on fresh hosts.

The first candidates are the bare host, a policy, and plans that were good elsewhere. Then the best plan so far is tried
without each of its seeds, which gives their exact effects. Its other variations alternate with the remaining proposals,
then with draws of Optuna's sampler, which learns from all trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import optuna
from optuna.trial import Trial, TrialState

from esper.recordings.candidates.candidates import BARE_HOST, Origin, Outcome
from esper.studies.growth.optuna_sampler import NumberedSampler, silence_optuna
from esper.studies.growth.plan_variations import known_plans, variations, without_each_seed
from esper.studies.growth.space import PlanSpace

SearchKind = Literal["guided", "tpe", "random"]
MAX_REDRAWS = 100
"""Number of draws in a row that may be known or too large, before the space counts as exhausted."""
MAX_GUIDED_REDRAWS = 10
"""Number of such draws in a row after which plans are drawn at random: in a small space, TPE repeats the best ones."""
FIRST_PROPOSALS = 8
"""Number of candidates before the first variation of the best one."""
FIRST_RUNG = 2 / 3
"""Fraction of a training after which the worse half of the candidates is pruned."""


class Proposal(NamedTuple):
    """A candidate to be tried."""

    name: str
    """Plan, or name of a policy; `BARE_HOST` for the empty plan."""
    origin: Origin


class PlanSearch:
    """A search over plans. The same calls give the same candidates.

    Args:
        space: Plans that can be drawn.
        kind: `guided`; or `tpe` or `random`, without proposals and variations, as baselines.
        policies: Names of policies whose own episodes are tried; only of a guided search.
        plans: Plans of the user, which are tried first; an empty one is left out. Only of a guided search.
        seed: Random seed of the draws.
    """

    def __init__(
        self,
        space: PlanSpace,
        *,
        kind: SearchKind = "guided",
        policies: Sequence[str] = (),
        plans: Sequence[str] = (),
        seed: int,
    ) -> None:
        silence_optuna()
        self._space = space
        self._is_guided = kind == "guided"
        self._policies = policies
        self._random = NumberedSampler("random", f"growth {seed}")
        self._sampler = self._random if kind == "random" else NumberedSampler("tpe", f"growth {seed}")
        self._study = optuna.create_study(
            direction="maximize",
            sampler=self._sampler,
            pruner=optuna.pruners.SuccessiveHalvingPruner(
                min_resource=max(1, round(space.steps * FIRST_RUNG)), reduction_factor=2
            ),
        )
        proposals = [Proposal(BARE_HOST, "host")]
        if self._is_guided:
            proposals += [Proposal(plan, "known") for plan in plans if plan and space.fits(plan)]
            proposals += [Proposal(name, "policy") for name in policies[:1]]
            proposals += [Proposal(plan, "known") for plan in known_plans(space)]
            proposals += [Proposal(name, "policy") for name in policies[1:]]
        self._proposals = deque(proposals)
        self._is_variation_next = False
        self._trials: dict[str, Trial] = {}
        """Trials of the study that are in progress, keyed by plan."""
        self._reported: dict[str, int] = {}
        """Last step that was reported of each trial."""
        self._values: dict[str, float | None] = {}
        """Value of each candidate; None for one that is in progress, pruned or failed."""
        self._plans: dict[str, str] = {}
        """Plan of the episode of each policy."""
        self._calls: list[list[Any]] = []
        """Calls that changed the search, for `load_state_dict`."""

    def next_candidates(self, count: int) -> list[Proposal]:
        """Return the next candidates to be tried: `count`, or fewer if there are no others."""
        found: list[Proposal] = []
        while len(found) < count and (proposal := self._next()) is not None:
            self._values[proposal.name] = None
            found.append(proposal)
        self._calls.append(["next", count, [proposal.name for proposal in found]])
        return found

    def _next(self) -> Proposal | None:
        """Return the next candidate; None if there is none. The first ones are all proposals."""
        if self._is_guided and len(self._values) >= FIRST_PROPOSALS:
            plan = next((plan for plan in self._without_seeds().values() if plan not in self._values), None)
            if plan is None:
                self._is_variation_next = not self._is_variation_next
                plan = self._variation() if self._is_variation_next else None
            if plan is not None:
                self._enqueue(plan)
                return Proposal(plan, "variation")
        while self._proposals:
            proposal = self._proposals.popleft()
            if proposal.name not in self._values:
                self._enqueue(proposal.name)
                return proposal
        return self._draw()

    def _without_seeds(self) -> dict[str, str]:
        """Return the best plan so far without each of its seeds; empty if a policy is best."""
        return self._without_each_seed(next(iter(self._ranked()), BARE_HOST))

    def _without_each_seed(self, name: str) -> dict[str, str]:
        return {} if name in self._policies else without_each_seed(name, self._space)

    def _enqueue(self, plan: str) -> None:
        """Add a plan to the study, if it belongs to the space."""
        parameters = None if plan in self._policies else self._space.parameters_of(plan)
        if parameters is not None:
            self._study.enqueue_trial(parameters)
            trial = self._study.ask()
            self._space.draw(trial)
            self._trials[plan] = trial

    def _variation(self) -> str | None:
        """Return a variation of the best candidate that was not tried yet; of the next best if there is none."""
        for name in self._ranked():
            plan = self._plans.get(name, name)
            if plan and plan not in self._values and self._space.fits(plan):
                return plan
            for changed in variations(plan, self._space):
                if changed not in self._values:
                    return changed
        return None

    def _draw(self) -> Proposal | None:
        found: Proposal | None = None
        for attempt in range(MAX_REDRAWS):
            self._study.sampler = self._sampler if attempt < MAX_GUIDED_REDRAWS else self._random
            trial = self._study.ask()
            plan = self._space.draw(trial)
            if plan not in self._values and self._space.fits(plan):
                self._trials[plan] = trial
                found = Proposal(plan, "drawn")
                break
            self._study.tell(trial, state=TrialState.FAIL)
        self._study.sampler = self._sampler
        return found

    def report(self, name: str, step: int, value: float) -> bool:
        """Report the objective of a trial after a step, and return True if the trial is to be pruned.

        Args:
            step: Number of completed steps.
        """
        self._calls.append(["report", name, step, value])
        trial = self._trials.get(name)
        if name in self._without_seeds().values():  # it measures the effect of a seed, for which it must end
            return False
        if trial is None or step <= self._reported.get(name, 0):  # a training that is repeated after a fault
            return False
        self._reported[name] = step
        trial.report(value, step)
        return trial.should_prune()

    def allows(self, parameter_ratio: float) -> bool:
        """Return True if a network is small enough; see `PlanSpace.allows`."""
        return self._space.allows(parameter_ratio)

    def tell(self, name: str, outcome: Outcome, value: float | None, plan: str = "") -> None:
        """Record the end of a trial.

        Args:
            value: Objective at the end; None unless the trial is done.
            plan: Plan of the episode of a policy.
        """
        self._calls.append(["tell", name, outcome, value, plan])
        trial = self._trials.pop(name, None)
        if trial is not None:
            if outcome == "pruned":
                self._study.tell(trial, state=TrialState.PRUNED)
            elif value is None:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
        self._values[name] = value if outcome == "done" else None
        if name in self._policies:
            self._plans[name] = plan

    def finalists(self, count: int) -> list[str]:
        """Return the bare host, and the best other candidates, at most `count`.

        A policy that planted nothing is the bare host once more, and is left out.
        """
        idle = {name for name, plan in self._plans.items() if not plan}
        left_out = {BARE_HOST, *idle}
        return [BARE_HOST, *[name for name in self._ranked() if name not in left_out][:count]]

    def effects(self, name: str) -> dict[str, float]:
        """Return the exact effect of each seed of a plan on the objective, on the host of the search.

        Seeds without which the plan was not tried to the end are left out. The result is empty for a policy, because it
        would decide otherwise without a seed.
        """
        value = self._values.get(name)
        if value is None:
            return {}
        without = {seed: self._values.get(other) for seed, other in self._without_each_seed(name).items()}
        return {seed: value - other for seed, other in without.items() if other is not None}

    def _ranked(self) -> list[str]:
        """Return the candidates whose trials are done, the best first."""
        done = {name: value for name, value in self._values.items() if value is not None}
        return sorted(done, key=lambda name: -done[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the calls so far, as JSON-compatible values."""
        return {"calls": list(self._calls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Repeat the calls of a stored search. This search must be a new one.

        Raises:
            ValueError: Another version of Optuna, or of this package, proposes other candidates.
        """
        for name, *arguments in state["calls"]:
            if name == "next":
                count, expected = arguments
                found = [proposal.name for proposal in self.next_candidates(count)]
                if found != expected:
                    raise ValueError(f"the search was stored by another version: it proposed {expected}, not {found}")
            elif name == "report":
                self.report(*arguments)
            else:
                self.tell(*arguments)
