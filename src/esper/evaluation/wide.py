"""The wide host in held-out episodes: as many parameters as the grown networks have, without seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from esper.config import Config
from esper.engine.wide_host import open_wide_pool
from esper.evaluation.episodes import run_episodes
from esper.evaluation.results import EpisodeResult
from esper.policy.baselines import StaticAgent
from esper.ppo.rewards import rent_cost
from esper.tasks.prepare import PreparedTask


def run_wide_host(
    prepared: PreparedTask, parameter_ratio: float, config: Config, lanes: Sequence[str], on_step: Callable[[], None]
) -> list[EpisodeResult]:
    """Train a wide host in the held-out episodes. Its further parameters cost rent as those of seeds do.

    Args:
        prepared: Task with a `wide_model`.
        parameter_ratio: Parameters that the wide host should have, divided by those of the host.
    """
    task, profile, data = prepared.task, prepared.profile, prepared.data
    with open_wide_pool(task, profile, data, parameter_ratio, lanes, config) as (pool, ratio):
        results = run_episodes(pool, StaticAgent(), config, on_step)
    rent = rent_cost(ratio, profile.host_parameters, config.reward_weights)
    return [
        msgspec.structs.replace(
            result,
            parameter_ratio=ratio,
            net_return=result.net_return - result.steps * rent,
            test_return=result.test_return - result.steps * rent,
        )
        for result in results
    ]
