"""The number of steps after which the bare host is flat: longer trainings do not improve it.

Shapes: H hosts, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import msgspec
import torch
from torch import Tensor

from esper.common.configuration.config import Config, TaskError
from esper.common.formatting import pluralise
from esper.common.intervals import crossed_interval
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.studies.growth.fresh_scores import measure_env
from esper.studies.growth.growth import FRESH_HOSTS
from esper.training.engine.episode import Episode, begin_episodes
from esper.training.engine.step import StepResult, play_steps, tick_slots
from esper.training.lanes.pool import EnvPool
from esper.training.policy.baselines import StaticAgent

MAX_DOUBLINGS = 4
"""Number of times that `choose_steps` doubles the steps."""
_ROUND = 1
"""Round of the hosts that choose the steps; a growth trains those of round 0."""


def choose_steps(
    config: Config,
    open_pool: Callable[[Config], AbstractContextManager[EnvPool]],
    is_stopped: Callable[[], bool],
    ranks: RankGroup = SINGLE_RANK,
) -> int | None:
    """Return the number of steps from which on twice as many do not improve the bare host beyond chance.

    Args:
        config: Configuration with the smallest number of steps.
        open_pool: Opens this rank's envs of the bare host with a configuration.
        is_stopped: Called after each step; True ends the trainings.
        ranks: Ranks that share the envs. All of them call this together.

    Returns:
        The number of steps, at most 2 ** `MAX_DOUBLINGS` times the smallest; None if the trainings were stopped.

    Raises:
        TaskError: A training had no finite score.
        FaultError: A lane, the model or the score failed.
    """
    shorter, steps = None, config.steps
    for _ in range(1 + MAX_DOUBLINGS):
        hosts = msgspec.structs.replace(config, envs=FRESH_HOSTS, steps=steps)
        best: list[Tensor] = []
        for of_rank in ranks.run_on_every_rank(partial(_train_own, ranks, hosts, open_pool, is_stopped)):
            if of_rank is None:
                return None
            best += of_rank
        if len(best) < FRESH_HOSTS:
            trainings = f"a training of your network for {pluralise(steps, 'step')}"
            raise TaskError(f"{trainings} had no finite score; give --steps yourself")
        longer = torch.stack(best).double().numpy()
        if shorter is not None and crossed_interval(longer - shorter).low <= 0:
            return steps // 2
        shorter, steps = longer, 2 * steps
    return steps // 2


def _train_own(
    ranks: RankGroup,
    hosts: Config,
    open_pool: Callable[[Config], AbstractContextManager[EnvPool]],
    is_stopped: Callable[[], bool],
) -> list[Tensor] | None:
    """Return the result of `train_hosts` for the hosts of this rank, which may be none."""
    if not ranks.env_range(hosts.envs):
        return []
    with open_pool(hosts) as pool:
        return train_hosts(pool, hosts, is_stopped)


def train_hosts(pool: EnvPool, config: Config, is_stopped: Callable[[], bool]) -> list[Tensor] | None:
    """Train the bare hosts of a pool for all steps.

    Args:
        is_stopped: Called after each step; True ends the trainings.

    Returns:
        `ScoreScale.gain` of the scores of each host's best network, by parts of the validation split, [N]; hosts
        without a finite score are left out. None if the trainings were stopped.

    Raises:
        FaultError: A lane, the model or the score failed.
    """
    qualities: dict[int, float] = {}
    """`ScoreScale.gain` of the best score of each host."""
    best: dict[int, Tensor] = {}

    def end(result: StepResult) -> None:
        for episode in result.episodes:
            env, score = episode.env, episode.view.scores[-1]
            scale = episode.view.score_scale
            quality = scale.gain(score)
            if not episode.inactive and math.isfinite(score) and quality > qualities.get(env.index, -math.inf):
                qualities[env.index], best[env.index] = quality, scale.gain(1.0) * measure_env(env).validation
        tick_slots(result.episodes)

    stopped = False

    def after_step(_is_ahead: bool) -> bool:
        nonlocal stopped
        stopped = is_stopped()
        return not stopped

    episodes = [Episode(env, config) for env in pool.envs]
    begin_episodes(pool, episodes, pool.keys_of(_ROUND))
    play_steps(pool, episodes, StaticAgent(), range(config.steps), end, after_step=after_step)
    return None if stopped else [best[index] for index in sorted(best)]
