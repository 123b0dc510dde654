"""Set-up of a growth: its configuration, the plans that it can try, and the director of its trainings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

import msgspec

from esper.checkpoint.manifest import Manifest
from esper.config import Config, ConfigError, TaskError
from esper.control import RequestQueue
from esper.engine.agent_factory import proposing_policies
from esper.engine.fresh_scores import check_samples
from esper.engine.growth import Growth
from esper.engine.growth_director import GrowthDirector
from esper.engine.growth_results import GrowthResults
from esper.engine.host_training import choose_steps
from esper.engine.training_state import TrainingState
from esper.engine.wide_host import choose_width
from esper.harvest.model import check_is_one_structure
from esper.lanes.errors import FaultError, StoppedError
from esper.lanes.pool import EnvPool
from esper.recording.run_directory import RunDirectory
from esper.search.search import PlanSearch
from esper.search.space import PlanSpace
from esper.tasks.prepare import PreparedTask
from esper.tasks.profile import TaskProfile


def configure_growth(
    growth: Growth, prepared: PreparedTask, saved: Manifest | None, lanes: Sequence[str], control: RequestQueue
) -> Config:
    """Check the task of a growth, and return the configuration with its rounds, and with its steps until flat.

    Args:
        saved: The checkpoint from which the growth resumes; None for a new one.

    Raises:
        TaskError: The task cannot be grown, or its host cannot be trained.
        ConfigError: The limit of parameters is not valid.
        StoppedError: A stop was requested meanwhile.
    """
    task, data, profile, config, _, _ = prepared
    check_is_one_structure(task)
    check_samples(task.name, data[0])
    growth.request.info(profile.host_parameters)  # checks the limit before anything is written
    compared = growth.request.compared(has_wide=task.wide_model is not None)
    config = msgspec.structs.replace(config, rounds=growth.request.expected_rounds(config.envs, len(compared)))
    if not growth.request.until_flat:
        return config
    if saved:
        return msgspec.structs.replace(config, steps=saved.config["steps"])

    def open_pool(hosts: Config) -> closing[EnvPool]:
        growth.stage = f"training your network for {hosts.steps} steps, to choose --steps"
        return closing(EnvPool(task, profile, data, lanes, hosts))

    try:
        steps = choose_steps(config, open_pool, lambda: control.stop_requested)
    except FaultError as fault:
        raise TaskError(str(fault)) from fault
    growth.stage = None
    if steps is None:
        raise StoppedError
    return msgspec.structs.replace(config, steps=steps)


def make_plan_space(growth: Growth, config: Config, profile: TaskProfile) -> PlanSpace:
    """Return the plans that a growth can try. Raises ConfigError if the plan of the user is larger than they may be."""
    limit = growth.request.info(profile.host_parameters).max_parameters
    space = PlanSpace(profile.sites, config.steps, profile.host_parameters, limit)
    if not space.fits(config.plan):
        raise ConfigError(
            f"--plan has {space.parameter_ratio(config.plan):.3g} times the parameters of your network, more than "
            f"--max-parameters {growth.request.max_parameters}; change one of them"
        )
    return space


def direct_growth(
    growth: Growth, space: PlanSpace, state: TrainingState, *, prepared: PreparedTask, run: RunDirectory
) -> GrowthResults:
    """Give a growth its director, and return the object that computes its results at the end."""
    config = state.config
    task, data, profile = prepared.task, prepared.data, prepared.profile

    def make_search() -> PlanSearch:
        return PlanSearch(space, policies=proposing_policies(config), plans=[config.plan], seed=config.seed)

    director = GrowthDirector(
        growth.request, make_search, state, partial(choose_width, task, profile, data) if task.wide_model else None
    )
    state.director = director
    return GrowthResults(growth, director, state, task=task, splits=data[0], run=run)
