"""Trained policies and plans, as the scripts of this folder play them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import numpy as np

from esper.common.configuration.config import Config
from esper.networks.tasks.profile import TaskProfile
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.recordings.files.runs import resolve_run
from esper.studies.evaluation.held_out import held_out_config, prepare_held_out, read_training_seeds
from esper.studies.evaluation.results import EpisodeResult
from esper.training.engine.agent_factory import build_trained
from esper.training.engine.trained_policy import policy_of
from esper.training.lanes.devices import resolve_devices
from esper.training.lanes.pool import EnvPool
from esper.training.policy.plan import parse_plan
from esper.training.policy.plan_agent import PlanAgent
from esper.training.ppo.agent import PPOAgent

TELEMETRY_DIR = Path("telemetry")
"""Directory of the runs that are given by name; others are given by path."""


class TrainedPolicies:
    """Policies of one configuration, one for each training seed, and the task of their held-out episodes.

    Args:
        names: Checkpoints, or runs, whose newest ones are used.
        episodes: Number of episodes, one for each env.
        options: Values of the options of `add_options`.

    Attributes:
        paths: Paths of the checkpoints.
        prepared: Task of the episodes.
        config: Configuration of the episodes.
    """

    def __init__(self, names: Sequence[str], episodes: int, options: argparse.Namespace) -> None:
        self.paths = [find_checkpoint(resolve_run(name, TELEMETRY_DIR)) for name in names]
        checkpoints = read_training_seeds(self.paths)
        self._policies = [policy_of(saved, path) for saved, path in zip(checkpoints, self.paths, strict=True)]
        self.prepared = prepare_held_out(checkpoints[0], options.task)
        self.config = held_out_config(self.prepared.config, episodes, options.seed)
        self._lanes = resolve_devices(options.devices)

    def open_pool(self, config: Config) -> AbstractContextManager[EnvPool]:
        """Return the envs of a configuration, as a context whose end stops the lanes."""
        task, profile, data = self.prepared.task, self.prepared.profile, self.prepared.data
        return closing(EnvPool(task, profile, data, self._lanes, config))

    def agents(self, config: Config) -> list[PPOAgent]:
        """Return the policies, acting in envs of a configuration."""
        profile = self.prepared.profile
        return [build_trained(policy, config, profile.sites, profile.blueprints) for policy in self._policies]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `TrainedPolicies` reads."""
    parser.add_argument("--task", help="another task than that of the checkpoint; needed if that is a file")
    parser.add_argument("--seed", type=int, required=True, help="random seed of the episodes, as of evaluate")
    parser.add_argument("--devices", nargs="+", default=["auto"])


def plan_agent(plan: str, profile: TaskProfile, steps: int) -> PlanAgent:
    """Return a policy that follows a plan in episodes of some steps. An empty plan grows nothing."""
    return PlanAgent(parse_plan(plan, steps) if plan else [], profile.sites, profile.blueprints)


def net_returns(episodes: Sequence[EpisodeResult]) -> np.ndarray:
    """Return the net return of each episode."""
    return np.array([episode.net_return for episode in episodes])
