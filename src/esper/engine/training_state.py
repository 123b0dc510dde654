"""TrainingState: the state of a run while it trains, shared by the trainer, run control and the checkpoint writer."""

from __future__ import annotations

from torch import Tensor

from esper.config import Config
from esper.domain import StepNumber
from esper.engine.episode import Episode
from esper.envs.stopwatch import StepTimer
from esper.lanes.pool import EnvPool
from esper.policy.agent import Agent
from esper.ranks import SINGLE_RANK, RankGroup
from esper.seeding import decision_uniforms
from esper.telemetry.hub import EventHub
from esper.user_code import TaskOrigin


class TrainingState:
    """Envs, episodes, agent and progress of the run on this rank.

    Args:
        pool: Envs of this rank.
        ranks: Ranks that train together, each with its own pool.
        origin: Source of the task, for checkpoints; None for a built-in one.

    Attributes:
        episodes: The current episode of each env, in the order of `pool.envs`.
        round: Number of completed rounds, which is also the 0-based index of the round in progress.
        step: Number of completed steps of the round in progress.
        timer: Measures the phases of a step.
    """

    def __init__(
        self,
        *,
        config: Config,
        pool: EnvPool,
        agent: Agent,
        hub: EventHub,
        ranks: RankGroup = SINGLE_RANK,
        origin: TaskOrigin | None = None,
    ) -> None:
        self.config = config
        self.origin = origin
        self.ranks = ranks
        self.pool = pool
        self.agent = agent
        self.hub = hub
        self.episodes = [Episode(env, config) for env in pool.envs]
        self.round = 0
        self.step = 0
        self.timer = StepTimer([lane.stopwatch for lane in pool.lanes])

    @property
    def step_number(self) -> StepNumber:
        """1-based round and step of the last completed step."""
        return StepNumber.from_completed(self.round, self.step, self.config.steps)

    def decision_uniforms(self) -> Tensor:
        """Return the uniform random numbers in [0, 1) for all decisions of the current round, [E, T, H]."""
        envs = [env.index for env in self.pool.envs]
        return decision_uniforms(self.config.seed, envs, self.config.steps, self.round)
