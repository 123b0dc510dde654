"""The wide host: as many parameters as the grown networks have, without seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import msgspec
from torch import nn

from esper.config import Config
from esper.evaluation.episodes import run_episodes
from esper.evaluation.results import EpisodeResult
from esper.lanes.pool import EnvPool
from esper.policy.baselines import StaticAgent
from esper.ppo.rewards import rent_cost
from esper.seeding import forked_generators
from esper.tasks.prepare import PreparedTask
from esper.tasks.probe import probe_task

_WIDTH_FACTORS = 200
"""Number of width factors among which that of the wide host is chosen."""


def run_wide_host(
    prepared: PreparedTask, parameter_ratio: float, config: Config, lanes: Sequence[str], on_step: Callable[[], None]
) -> list[EpisodeResult]:
    """Train a wide host in the held-out episodes. Its further parameters cost rent as those of seeds do.

    Args:
        prepared: Task with a `wide_model`.
        parameter_ratio: Parameters that the wide host should have, divided by those of the host.
    """
    task = prepared.task
    assert task.wide_model is not None
    host = prepared.profile.host_parameters
    factors = [1 + (parameter_ratio - 1) * index / _WIDTH_FACTORS for index in range(_WIDTH_FACTORS + 1)]
    sizes = {factor: _count_parameters(partial(task.wide_model, factor)) / host for factor in factors}
    factor = min(factors, key=lambda factor: abs(sizes[factor] - parameter_ratio))
    wide = replace(task, model=partial(task.wide_model, factor), source=None)
    profile = probe_task(wide, prepared.data, [site.name for site in prepared.profile.sites])
    # A worker would import the task from the user's file, which has the narrow host.
    lanes = lanes[:1] if task.source else lanes
    with closing(EnvPool(wide, profile, prepared.data, lanes, config)) as pool:
        results = run_episodes(pool, StaticAgent(), config, on_step)
    rent = rent_cost(sizes[factor], host, config.reward_weights)
    return [
        msgspec.structs.replace(
            result,
            parameter_ratio=sizes[factor],
            net_return=result.net_return - result.steps * rent,
            test_return=result.test_return - result.steps * rent,
        )
        for result in results
    ]


def _count_parameters(model: Callable[[], nn.Module]) -> int:
    with forked_generators(0):
        return sum(parameter.numel() for parameter in model().parameters())
