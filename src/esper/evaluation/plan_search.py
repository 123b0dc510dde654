"""Search for a plan on the hosts of a training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec

from esper.config import Config
from esper.evaluation.journal import EvaluationJournal
from esper.evaluation.results import RANDOM_SEARCH, SEARCH
from esper.evaluation.search import Rung, draw_plans, find_best, halving_schedule, random_schedule
from esper.evaluation.training_hosts import TrainingHosts
from esper.policy.plan import parse_plan
from esper.policy.plan_agent import PlanAgent
from esper.process import cpu_seconds
from esper.seeding import make_generator
from esper.tasks.prepare import PreparedTask

SCHEDULES: dict[str, Callable[[int], list[Rung]]] = {SEARCH: halving_schedule, RANDOM_SEARCH: random_schedule}
"""Function from the number of episodes to the rungs, keyed by policy."""


class FoundPlan(msgspec.Struct, frozen=True):
    """Result of a search."""

    plan: str
    cpu_seconds: float
    """CPU time of all processes."""


class _HostResult(msgspec.Struct, frozen=True):
    returns: list[float]
    """Net return of each candidate."""
    cpu_seconds: float


def search_plan(
    policy: str,
    prepared: PreparedTask,
    config: Config,
    episodes: int,
    lanes: Sequence[str],
    journal: EvaluationJournal,
    on_step: Callable[[int], None],
) -> FoundPlan:
    """Search for the plan with the highest net return.

    Args:
        policy: `search` or `random-search`.
        config: Configuration of the run on whose hosts the plans are played.
        episodes: Maximum number of episodes of the search.
        journal: Journal of the search; hosts that it has are not played again.
        on_step: Called after each step with the number of envs that took it.

    Raises:
        FaultError: A lane failed.
        OSError: The journal cannot be written.
    """
    schedule = SCHEDULES[policy](episodes)
    sites, blueprints = prepared.profile.sites, prepared.profile.blueprints
    random_seed = make_generator(config.seed, policy).initial_seed()
    offered = {site.name: site.blueprints for site in sites}
    plans = draw_plans(schedule[0].candidates, offered, config.steps, random_seed)
    spent = 0.0
    with closing(TrainingHosts(prepared, config, lanes, on_step)) as hosts:

        def play(candidates: Sequence[str], host: int) -> list[float]:
            nonlocal spent

            def compute() -> _HostResult:
                start = cpu_seconds()
                agents = [PlanAgent(parse_plan(plan, config.steps), sites, blueprints) for plan in candidates]
                return _HostResult(hosts.play(agents, host), cpu_seconds() - start)

            if journal.has(f"host {host}"):
                on_step(len(candidates) * config.steps)
            result = journal.recall(f"host {host}", _HostResult, compute)
            spent += result.cpu_seconds
            return result.returns

        best = find_best(plans, schedule, play)
    return FoundPlan(plans[best.candidate], spent)
