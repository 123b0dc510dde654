"""Trainings without decisions: of the bare host until it is flat, and of networks that a growth only compares.

Shapes: H hosts, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from esper.config import TaskError
from esper.engine.fresh_scores import NetworkScores, measure_env
from esper.envs.env import Env
from esper.formatting import pluralise
from esper.intervals import crossed_interval
from esper.lanes.pool import EnvPool
from esper.policy.actions import WAIT_DECISION
from esper.seeding import EpisodeKey

MAX_DOUBLINGS = 4
"""Number of times that `choose_steps` doubles the steps."""
_ROUND = 1
"""Round of the hosts that choose the steps; a growth trains those of round 0."""


class Trained(NamedTuple):
    """Result of a training."""

    scores: list[float]
    """Validation score after each step, a fraction."""
    best: NetworkScores | None
    """Scores of the network with the best finite validation score; None without one."""


def train_envs(
    pool: EnvPool, envs: Iterable[Env], steps: int, is_stopped: Callable[[], bool]
) -> dict[Env, Trained] | None:
    """Train envs at the start of their episodes for all steps.

    Args:
        steps: Steps of an episode of the pool.
        is_stopped: Called before each step; True ends the trainings.

    Returns:
        The result of each env; None if the trainings were stopped.

    Raises:
        FaultError: A lane, the model or the score failed.
    """
    trained = {env: Trained([], None) for env in envs}
    for step in range(steps):
        if is_stopped():
            return None
        for env, epoch in pool.start_step(dict.fromkeys(trained, WAIT_DECISION.action), step)().items():
            score, (before, _) = epoch.measured.score, trained[env]
            if math.isfinite(score) and score > max(filter(math.isfinite, before), default=-math.inf):
                trained[env] = Trained(before, measure_env(env))
            before.append(score)
    return trained


def choose_steps(
    steps: int, seed: int, open_pool: Callable[[int], AbstractContextManager[EnvPool]], is_stopped: Callable[[], bool]
) -> int | None:
    """Return the number of steps from which on twice as many do not improve the bare host beyond chance.

    Args:
        steps: Smallest number of steps.
        seed: Random seed of the run.
        open_pool: Opens the envs of the bare host, with episodes of a number of steps.
        is_stopped: Called before each step; True ends the trainings.

    Returns:
        The number of steps, at most 2 ** `MAX_DOUBLINGS` times the smallest; None if the trainings were stopped.

    Raises:
        TaskError: A training had no finite score.
        FaultError: A lane, the model or the score failed.
    """
    shorter = None
    for _ in range(1 + MAX_DOUBLINGS):
        with open_pool(steps) as pool:
            pool.begin({env: EpisodeKey(seed, env.index, _ROUND) for env in pool.envs})
            trained = train_envs(pool, pool.envs, steps, is_stopped)
        if trained is None:
            return None
        best = [one.best.validation for one in trained.values() if one.best is not None]
        if len(best) < len(trained):
            trainings = f"a training of your network for {pluralise(steps, 'step')}"
            raise TaskError(f"{trainings} had no finite score; give --steps yourself")
        longer = torch.stack(best).double().numpy()
        if shorter is not None and crossed_interval(longer - shorter).low <= 0:
            return steps // 2
        shorter, steps = longer, 2 * steps
    return steps // 2
