"""GrowthRun: the run of a growth: its configuration, the plans that it can try, its director, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import msgspec

from esper.common.configuration.config import Config, ConfigError, TaskError
from esper.common.control import RequestQueue
from esper.common.system.ranks import RankGroup
from esper.networks.tasks.prepare import PreparedTask
from esper.networks.tasks.profile import TaskProfile
from esper.recordings.checkpoints.manifest import Manifest
from esper.recordings.files.run_directory import RunDirectory
from esper.studies.growth.candidate_agent import build_candidates, proposing_policies
from esper.studies.growth.director import GrowthDirector
from esper.studies.growth.fresh_scores import check_samples
from esper.studies.growth.growth import Growth, growth_identity
from esper.studies.growth.host_training import choose_steps
from esper.studies.growth.results import GrowthResults
from esper.studies.growth.search import PlanSearch
from esper.studies.growth.space import PlanSpace
from esper.studies.growth.wide_host import choose_width
from esper.studies.harvest.model import check_is_one_structure
from esper.training.engine.run_kind import RunKind
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.errors import FaultError, StoppedError
from esper.training.lanes.pool import EnvPool
from esper.training.policy.agent import Agent


class GrowthRun(RunKind):
    """The run of a growth. In each of its rounds, every env trains one candidate."""

    deals_envs = True
    continuation = "the same command continues the growth"

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._space: PlanSpace | None = None
        self._director: GrowthDirector | None = None
        self._results: GrowthResults | None = None
        """Results of the growth; None on other ranks than 0."""

    def identity(self, config: Config, command: str | None, name: str) -> dict[str, Any]:  # noqa: ARG002
        """Return the settings that a growth keeps."""
        return {"growth": growth_identity(config, self._growth.request)}

    def configure(
        self,
        prepared: PreparedTask,
        saved: Manifest | None,
        lanes: Sequence[str],
        control: RequestQueue,
        ranks: RankGroup,
    ) -> Config:
        """Check the task of a growth, and return the configuration with its rounds, and with its steps until flat.

        Raises:
            TaskError: The task cannot be grown, or its host cannot be trained.
            ConfigError: The limit of parameters is not valid.
            StoppedError: A stop was requested meanwhile.
        """
        task, data, profile, config, _, _ = prepared
        request = self._growth.request
        check_is_one_structure(task)
        check_samples(task.name, data[0])
        request.info(profile.host_parameters)  # checks the limit before anything is written
        compared = request.compared(has_wide=task.wide_model is not None)
        config = msgspec.structs.replace(config, rounds=request.expected_rounds(config.envs, len(compared)))
        if not request.until_flat:
            return config
        if saved:
            return msgspec.structs.replace(config, steps=saved.config["steps"])

        def open_pool(hosts: Config) -> closing[EnvPool]:
            self.stage = f"training your network for {hosts.steps} steps, to choose --steps"
            return closing(EnvPool(task, profile, data, lanes, hosts, ranks.env_range(hosts.envs)))

        try:
            steps = choose_steps(config, open_pool, lambda: control.stop_requested, ranks)
        except FaultError as fault:
            raise TaskError(str(fault)) from fault
        self.stage = None
        if steps is None:
            raise StoppedError
        return msgspec.structs.replace(config, steps=steps)

    def build_agent(self, config: Config, prepared: PreparedTask, ranks: RankGroup, *, resumes: bool) -> Agent:  # noqa: ARG002
        """Return the agent that lets the candidate of each env decide.

        Raises:
            CheckpointError: The proposing policy is a checkpoint that has none.
            ConfigError: The user's plan does not fit the task or is too large, or the user's policy cannot be loaded.
        """
        agent = build_candidates(config, prepared.profile, ranks)
        self._space = self._make_space(config, prepared.profile)
        return agent

    def _make_space(self, config: Config, profile: TaskProfile) -> PlanSpace:
        """Return the plans that can be tried. Raises ConfigError if the plan of the user is larger than they may be."""
        request = self._growth.request
        limit = request.info(profile.host_parameters).max_parameters
        space = PlanSpace(profile.sites, config.steps, profile.host_parameters, limit)
        if not space.fits(config.plan):
            raise ConfigError(
                f"--plan has {space.parameter_ratio(config.plan):.3g} times the parameters of your network, more than "
                f"--max-parameters {request.max_parameters}; change one of them"
            )
        return space

    def direct(self, state: TrainingState, prepared: PreparedTask, run: RunDirectory | None) -> None:
        """Give the run the director that searches."""
        config, space = state.config, self._space
        task, data, profile = prepared.task, prepared.data, prepared.profile
        assert space is not None

        def make_search() -> PlanSearch:
            return PlanSearch(space, policies=proposing_policies(config), plans=[config.plan], seed=config.seed)

        choose = partial(choose_width, task, profile, data) if task.wide_model else None
        director = GrowthDirector(self._growth.request, make_search, state, choose)
        state.director = self._director = director
        if state.ranks.rank == 0:
            assert run is not None
            self._results = GrowthResults(self._growth, director, state, task=task, splits=data[0], run=run)

    def finish(self) -> None:
        """Test and write the networks, and report the answer. Raises FaultError if a network cannot be built."""
        assert self._director is not None
        networks = self._director.fetch(lambda: self._results.names() if self._results else [])
        if self._results is not None:
            self._results.finish(networks)
