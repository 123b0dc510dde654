"""Arms that plant seeds in the host: `grow`, and the same with random plans."""

from __future__ import annotations

import sys
from functools import partial

from research.fashion.cells import MAX_PARAMETERS, Answer, Budget, Compared
from research.fashion.training import HOST_PARAMETERS, TASK
from research.policies import TELEMETRY_DIR

from esper.cli.run_display import run_headless
from esper.common.configuration.config import GROWTH_CONFIG
from esper.common.configuration.files import resolve_config
from esper.networks.tasks.prepare import PreparedTask
from esper.recordings.candidates.candidates import BARE_HOST, COMPARED, describe_candidate
from esper.recordings.files.run_directory import RunDirectory
from esper.studies.growth.candidate_agent import proposing_policies
from esper.studies.growth.director import GrowthDirector
from esper.studies.growth.growth import Growth, make_request
from esper.studies.growth.results import GrowthResults
from esper.studies.growth.run import GrowthRun
from esper.studies.growth.search import PlanSearch, SearchKind
from esper.studies.growth.wide_host import choose_width
from esper.training.engine.start_checks import resolve_policy
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.engine.thread import EngineThread
from esper.training.engine.training_state import TrainingState

FRESH = "mean of its fresh trainings"
"""Name of the answer itself among the networks that are compared, which are means of as many trainings."""


class BilledDirector(GrowthDirector):
    """Counts CPU time instead of the duration of the steps, and bills the comparisons apart.

    Attributes:
        chosen_after: CPU seconds up to the choice of the answer; None before it.
    """

    chosen_after: float | None = None

    def bill(self, budget: Budget) -> None:
        """Bill a budget, also for the CPU time that is spent already, such as that of the dry run."""
        self._billed, self._seconds = budget, budget.spent
        self._billed_apart, self._compared = self._compared, []

    def end_step(self, seconds: float) -> bool:  # noqa: ARG002 (CPU time counts instead)
        """Count the CPU time since the last step, which contains the tests on fresh hosts."""
        return super().end_step(self._billed.spent - self._seconds)

    def _queue_comparisons(self) -> None:
        if self.chosen_after is None:
            self.chosen_after = self._billed.spent
        self._compared = self._billed_apart
        super()._queue_comparisons()


class BilledRun(GrowthRun):
    """The run of a growth with a budget of CPU time.

    Args:
        kind: Kind of its search.
    """

    director: BilledDirector

    def __init__(self, growth: Growth, budget: Budget, kind: SearchKind) -> None:
        super().__init__(growth)
        self._budget = budget
        self._kind: SearchKind = kind

    def direct(self, state: TrainingState, prepared: PreparedTask, run: RunDirectory | None) -> None:
        """Give the run its director, as `grow` does."""
        space, config = self._space, state.config
        task, data, profile = prepared.task, prepared.data, prepared.profile
        assert space is not None
        assert run is not None

        def make_search() -> PlanSearch:
            return PlanSearch(space, kind=self._kind, policies=proposing_policies(config), seed=config.seed)

        choose = partial(choose_width, task, profile, data) if self._growth.request.compares else None
        self.director = BilledDirector(self._growth.request, make_search, state, choose)
        self.director.bill(self._budget)
        state.director = self._director = self.director
        self._results = GrowthResults(self._growth, self.director, state, task=task, splits=data[0], run=run)


def grow(budget: Budget, seed: int, steps: int) -> Answer:
    """Grow the host as `grow --objective score` does. A wide host and the architecture from scratch are compared."""
    return _grow(budget, seed, steps, "guided")


def grow_randomly(budget: Budget, seed: int, steps: int) -> Answer:
    """Grow the host with random plans, which are chosen as `grow` chooses. Nothing is compared with the answer."""
    return _grow(budget, seed, steps, "random")


def _grow(budget: Budget, seed: int, steps: int, kind: SearchKind) -> Answer:
    settings = {
        "task": TASK.name,
        "steps": steps,
        "seed": seed,
        "devices": ("cpu:0",),
        "telemetry-dir": str(TELEMETRY_DIR / "fashion"),
    }
    config = resolve_policy(resolve_config(None, settings, base=GROWTH_CONFIG))
    request = make_request(
        minutes=budget.seconds / 60,
        objective="score",
        max_parameters=f"{MAX_PARAMETERS}x",
        compares=kind == "guided",
    )
    growth = Growth(request=request)
    run = BilledRun(growth, budget, kind)
    engine = EngineThread(StartPoint(config), RunOptions(interactive=False, load_kind=lambda: run))
    run_headless(engine, sys.stderr, narrate=None)
    search, grown = growth.search, growth.grown
    if not growth.is_complete or search is None or grown is None:
        raise SystemExit(f"the growth has no answer: {engine.ending and engine.ending.text}")
    chosen = search.find(search.chosen or BARE_HOST)
    assert chosen is not None
    assert grown.structure.test_score is not None
    assert run.director.chosen_after is not None
    own = [one for one in search.candidates if one.name not in COMPARED]
    return Answer(
        cpu_minutes=run.director.chosen_after / 60,
        test=grown.structure.test_score,
        validation=max(chosen.fresh_scores),
        parameters=round((chosen.parameter_ratio or 1.0) * HOST_PARAMETERS),
        trainings=sum(1 + len(one.fresh_scores) for one in own),
        architecture=describe_candidate(chosen.name),
        compared={
            FRESH if one is chosen else one.name: Compared(
                one.test_interval.mean, round((one.parameter_ratio or 1.0) * HOST_PARAMETERS)
            )
            for one in search.candidates
            if one.test_interval is not None and (one.name in COMPARED or one is chosen)
        },
        compared_cpu_minutes=(budget.spent - run.director.chosen_after) / 60,
    )
